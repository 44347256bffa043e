"""Following an exemplar: its steps one by one, some left out, exchanged or rewired by the row model."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from flint.ir.op_class import ELEMENTWISE
from flint.ir.program import Kind
from flint.tools.share.conditions import Conditions
from flint.tools.share.synth.codec.reader import Steps
from flint.tools.share.synth.codec.template import StepKind, Template, Vocabulary
from flint.tools.share.synth.codec.writer import new_sizes

#: How often a step that can be is left out, one becomes another operation, and a step of the row model's
#: own comes before; and how often an operand is chosen anew.
LEFT_OUT, EXCHANGED, INSERTED, REWIRED = 0.005, 0.015, 0.003, 0.01
#: How sharply programs of other totals are avoided.
_SHARP = 2.0


@dataclass
class Follower:
    """Where in an exemplar a program is. `mapped` says which of its steps stands for one of the exemplar's."""

    exemplar: Steps
    vocabulary: Vocabulary
    random: np.random.Generator
    place: int = 0
    mapped: dict[int, int] = field(default_factory=dict)
    _sizes: list[tuple[int, ...]] = field(init=False)
    _alike: dict[tuple[object, ...], list[Template]] = field(init=False)

    def __post_init__(self) -> None:
        sizes = iter(self.exemplar.symbols.taken)
        self._sizes = [tuple(next(sizes) for _ in new_sizes(t)) for t in self.exemplar.templates]
        self._alike = defaultdict(list)
        for template in self.vocabulary.templates:
            if template.op in ELEMENTWISE and template.kind is Kind.COMPUTE:
                self._alike[_kind_of(template)].append(template)

    @property
    def is_over(self) -> bool:
        """Whether the exemplar has no more steps."""
        return self.place >= len(self.exemplar)

    @property
    def template(self) -> Template:
        """The template of the next step; now and then another operation of its kind."""
        found = self.exemplar.templates[self.place]
        others = self._alike.get(_kind_of(found), ()) if found.op in ELEMENTWISE else ()
        if len(others) > 1 and self.random.random() < EXCHANGED:
            return others[int(self.random.integers(len(others)))]
        return found

    @property
    def sizes(self) -> tuple[int, ...]:
        """New sizes of the next step."""
        return self._sizes[self.place]

    def operands(self) -> list[int | None]:
        """Our steps for what the next one reads; None for what has none, and for what is chosen anew."""
        found = [self.mapped.get(o) for o in self.exemplar.operands[self.place]]
        return [None if self.random.random() < REWIRED else o for o in found]

    def is_inserted(self) -> bool:
        """Whether a step of the row model's own comes first."""
        return bool(self.random.random() < INSERTED)

    def is_left_out(self) -> bool:
        """Whether the next step is left out: one whose first operand can stand for it."""
        t = self.exemplar.templates[self.place]
        if t.step is not StepKind.ROW or t.op not in ELEMENTWISE or t.kind is not Kind.COMPUTE:
            return False
        first = self.exemplar.operands[self.place][:1]
        same = [self.exemplar.types[o] == self.exemplar.types[self.place] for o in first]
        return any(same) and bool(self.random.random() < LEFT_OUT)

    def took(self, step: int) -> None:
        """The next step became one of ours."""
        self.mapped[self.place] = step
        self.place += 1

    def passed(self) -> None:
        """The next step has none of ours: who reads it reads what it reads."""
        operands = self.exemplar.operands[self.place]
        if operands and operands[0] in self.mapped:
            self.mapped[self.place] = self.mapped[operands[0]]
        self.place += 1


def _kind_of(t: Template) -> tuple[object, ...]:
    """What two operations share that can take each other's place: work, types, phase, shapes."""
    return (
        t.op in ELEMENTWISE,
        t.kind,
        t.dtype,
        t.phase,
        t.flags,
        t.rule,
        t.arguments,
        t.arity,
        t.rate,
    )


def weights_of(profiles: Sequence[Conditions], asked: Conditions) -> NDArray[np.float64]:
    """How much programs of these totals are like what is asked for, in all 1."""
    far = np.array([_SHARP * sum(_far(p, asked)) for p in profiles])
    found = np.exp(far.min() - far)
    return np.asarray(found / found.sum())


def _far(profile: Conditions, asked: Conditions) -> Iterator[float]:
    """What of the structure differs: rows, phases, axes, and a little of the totals."""
    yield 6 * _bits(profile.rows, asked.rows)
    yield 0.3 * _bits(profile.depth, asked.depth)
    yield 0.15 * _bits(profile.flops, asked.flops)
    yield 0.15 * _bits(profile.memory_bytes, asked.memory_bytes)
    if asked.phases:
        phases = {*profile.phases, *asked.phases}
        shares = [profile.phases.get(p, 0.0) - asked.phases.get(p, 0.0) for p in phases]
        yield 4 * sum(map(abs, shares)) + 3 * len(set(profile.phases) ^ set(asked.phases))
    if asked.mesh is not None and profile.mesh is not None:
        yield 2.0 * abs(len(profile.mesh.sizes) - len(asked.mesh.sizes))
        if asked.axis_bytes:
            yield 2.0 * len(_labels(profile) ^ _labels(asked))


def _labels(of: Conditions) -> set[tuple[int, ...]]:
    """Sets of axes that something is sent over, by their numbers."""
    assert of.mesh is not None
    number = {name: n for n, name in enumerate(of.mesh.names)}
    return {tuple(number.get(part, -1) for part in label.split(",")) for label in of.axis_bytes}


def _bits(one: float | None, other: float | None) -> float:
    return abs(math.log2(one / other)) if one and other else 0.0
