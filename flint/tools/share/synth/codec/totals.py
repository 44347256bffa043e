"""What each step adds to totals, of steps whose types are known, without writing the program."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flint.ir.mesh import AxisRef, Group
from flint.ir.program import Kind
from flint.tools.share.axis_labels import axis_label
from flint.tools.share.synth.codec.reader import Steps
from flint.tools.share.synth.codec.template import StepKind, Template
from flint.tools.share.synth.codec.work import cost_of
from flint.tools.share.synth.codec.writer import new_sizes, trip_count

Amounts = NDArray[np.float64]


@dataclass(frozen=True)
class Ledger:
    """For each step, of one device in one step of the program: FLOPs, bytes that it sends, bytes that
    are held (arguments, and values that change in loops), and those of its own value, once. `label`
    indexes `labels`, the axes."""

    flops: Amounts
    sent: Amounts
    held: Amounts
    value: Amounts
    label: NDArray[np.int64]
    labels: tuple[str, ...]


def ledger_of(steps: Steps) -> Ledger:
    """The amounts; loops count as often as they run."""
    amounts = np.zeros((4, len(steps)))
    label = np.zeros(len(steps), dtype=np.int64)
    labels: dict[str, int] = {"": 0}
    trips = [1]
    sizes = iter(steps.symbols.taken)
    for number, template in enumerate(steps.templates):
        taken = [next(sizes) for _ in new_sizes(template)]
        if template.step is StepKind.OPEN:
            lenders = [t for t in (steps.types[o] for o in steps.operands[number]) if t]
            trips.append(trips[-1] * trip_count(template, lenders, steps.scene, taken))
        elif template.step is StepKind.CLOSE:
            trips.pop()
        elif template.step is StepKind.ROW:
            amounts[:, number] = _amounts(steps, number, template, trips[-1])
            if template.kind is Kind.COLLECTIVE:
                name = _label(steps, template)
                label[number] = labels.setdefault(name, len(labels))
    flops, sent, held, value = amounts
    return Ledger(flops, sent, held, value, label, tuple(labels))


def _amounts(steps: Steps, number: int, t: Template, trips: int) -> tuple[float, ...]:
    type_ = steps.types[number]
    assert type_ is not None, "a row without a type"
    if t.kind < Kind.COMPUTE:
        is_held = t.kind is Kind.PARAMETER or (t.is_carry and t.changes)
        return 0.0, 0.0, float(type_.num_bytes) if is_held else 0.0, float(type_.num_bytes)
    read = [r for r in (steps.types[o] for o in steps.operands[number][: t.arity]) if r]
    cost = cost_of(t, read, type_)
    sent = float(cost.comm_bytes) * trips
    return float(cost.flops) * trips, sent, 0.0, float(type_.num_bytes)


def _label(steps: Steps, t: Template) -> str:
    names = steps.scene.mesh.names
    return axis_label(Group(tuple(AxisRef(names[a]) for a in t.axes)))
