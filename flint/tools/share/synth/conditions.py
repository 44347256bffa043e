"""Conditions: the totals that a generated workload is asked for, or that a workload has.

Quantities are those of one device in one step, of the program with most FLOPs. A condition that is
None, or not in its mapping, is left to the generator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flint.errors import FlintError, nearest
from flint.ir.mesh import Mesh
from flint.ir.op_class import OpClass
from flint.ir.program import MOST_INT64, Program, Region, RegionKind
from flint.ir.workload import Workload
from flint.passes.work.totals import total
from flint.tools.explore.machine.quantities import EXAMPLES, KeyUnit, amount_of
from flint.tools.share.requests import SynthRequest
from flint.tools.share.totals import BETWEEN, LISTED, comm_bytes_by_label

# How many layers a program has: how often the body that does most of its work repeats.


def depth_of(program: Program) -> int:
    """The number of layers; 1 where nothing repeats.

    Of loops that read or write one part of stacked arrays in each iteration, the one with most
    FLOPs says it; without such loops any loop. A loop over microbatches stacks as well, but what is
    inside it stacks too: of equal FLOPs the inner loop is the layers.
    """
    loops = [
        (i, r)
        for i, r in enumerate(program.regions)
        if r.kind is RegionKind.LOOP and r.trip_count > 1
    ]
    stacked = [(i, r) for i, r in loops if _is_stacked(program, i, r)]
    if not (chosen := stacked or loops):
        return 1
    best = max(chosen, key=lambda item: (_flops_in(program, item[1]), item[0]))
    return best[1].trip_count


def _is_stacked(program: Program, number: int, region: Region) -> bool:
    """Whether rows directly in the loop take or write parts of arrays of one part an iteration."""
    rows = np.arange(region.start, region.stop)
    rows = rows[program.region[rows] == number]
    takes = np.isin(program.op[rows], (OpClass.DYNAMIC_SLICE, OpClass.UPDATE_SLICE))
    for row in rows[takes].tolist():
        for whole in program.dependencies(row).tolist():
            shape = program.shapes[program.shape[whole]]
            if len(shape) > 1 and shape[0] == region.trip_count:
                return True
    return False


def _flops_in(program: Program, region: Region) -> int:
    """FLOPs of all its runs in one step, with what is inside it."""
    rows = np.arange(len(program))
    inside = (region.start <= rows) & (rows < region.stop)
    return total(program, np.where(inside, program.flops, 0))


#: Rows and layers beyond which no program is generated.
MOST_ROWS, MOST_LAYERS = 100_000, 10_000


@dataclass(frozen=True)
class Conditions:
    """What one device does in one step. Raises FlintError FL951 or FL953 when it is made.

    `flops`: floating point operations, a multiply-add counts 2. `axis_bytes`: bytes that the device
    puts into communication, by label of mesh axes (`data`, or `data,model`). `depth`: layers, how
    often the body with most FLOPs repeats. `memory_bytes`: the peak of a step, as `flint estimate` counts it for operations (without what
    the software keeps beside it). `rows`: rows of the program.
    """

    mesh: Mesh | None = None
    flops: float | None = None
    axis_bytes: Mapping[str, float] = field(default_factory=dict)
    depth: int | None = None
    memory_bytes: float | None = None
    rows: int | None = None

    def __post_init__(self) -> None:
        _require_positive(self)
        _require_axes(self.mesh, self.axis_bytes)

    def to_json(self) -> dict[str, Any]:
        """The same as JSON: the mesh by axis."""
        return {
            "mesh": None if self.mesh is None else dict(self.mesh.shape),
            "flops": self.flops,
            "axis_bytes": dict(self.axis_bytes),
            "layers": self.depth,
            "memory_bytes": self.memory_bytes,
            "rows": self.rows,
        }


def conditions_of(workload: Workload) -> Conditions:
    """The totals of a workload: those of its program with most FLOPs, the first of equals.

    The peak of memory is that of `flint.backends.cost.memory.memory.step_memory`.
    """
    from flint.backends.cost.memory.memory import step_memory

    flops = [flops_of(p) for p in workload.programs]
    largest = workload.programs[flops.index(max(flops))]
    return Conditions(
        mesh=workload.mesh,
        flops=float(max(flops)),
        axis_bytes={k: float(v) for k, v in comm_bytes_by_label(largest).items()},
        depth=depth_of(largest),
        memory_bytes=float(max(use.peak_bytes for use in step_memory(workload))) or None,
        rows=len(largest),
    )


def flops_of(program: Program) -> int:
    """FLOPs of one device in one step; loops count as often as they run."""
    return total(program, program.flops)


def _require_positive(asked: Conditions) -> None:
    limits = {
        "flops": (asked.flops, MOST_INT64, "FLOPs of a step"),
        "depth": (asked.depth, MOST_LAYERS, "layers"),
        "memory_bytes": (asked.memory_bytes, MOST_INT64, "bytes of memory"),
        "rows": (asked.rows, MOST_ROWS, "rows"),
    }
    least = {"flops": 0, "depth": 1, "memory_bytes": 1, "rows": 1}
    for name, (value, most, what) in limits.items():
        if value is not None and not least[name] <= value <= most:
            raise FlintError(
                "FL953",
                f"{value:g} {what} are not possible",
                help=f"give from {least[name]} to {most:,}",
            )


def _require_axes(mesh: Mesh | None, axis_bytes: Mapping[str, float]) -> None:
    """Axes with bytes are those of the mesh, with more than one device along them."""
    if axis_bytes and mesh is None:
        raise FlintError(
            "FL953", "bytes of axes without a mesh are not possible", help="also give --mesh"
        )
    for label, asked_bytes in axis_bytes.items():
        assert mesh is not None
        if not 0 <= asked_bytes <= MOST_INT64:
            raise FlintError("FL953", f"{asked_bytes:g} bytes over {label} are not possible")
        if label != LISTED:
            _require_label(mesh, label)


def _require_label(mesh: Mesh, label: str) -> None:
    names = [part.partition(":")[0] for part in label.split(",")]
    for name in names:
        if name not in mesh.names:
            raise FlintError(
                "FL951",
                f"mesh has no axis '{name}'{nearest(name, mesh.names)}",
                help=f"the mesh is {mesh}; join several axes with {BETWEEN}",
            )
    if all(mesh.axis_size(name) == 1 for name in names):
        raise FlintError(
            "FL953",
            f"nothing can be sent over axis '{label}': its size is 1",
            help=f"the mesh is {mesh}",
        )


# Conditions as users write them: `--flops 1e15`, `--bytes data=2GiB`.


def conditions_from_text(asked: SynthRequest) -> Conditions:
    """The conditions that options of the command line say.

    Raises FlintError FL101 (mesh), FL950 (a value that cannot be read), FL951 (an axis that there
    is not) or FL953 (what no program can have).
    """
    given: dict[str, Any] = {
        "flops": None if asked.flops is None else flops_from_text(asked.flops),
        "depth": asked.layers,
        "memory_bytes": None if asked.memory is None else _bytes("--memory", asked.memory),
        "rows": asked.rows,
    }
    found = {name: value for name, value in given.items() if value is not None}
    if asked.mesh is not None:
        found["mesh"] = Mesh.parse(asked.mesh)
    if asked.bytes is not None:
        found["axis_bytes"] = bytes_from_text(asked.bytes)
    return Conditions(**found)


def flops_from_text(text: str) -> float:
    """FLOPs: a number (`1e15`), or one with a unit (`1.2PFLOP`). Raises FlintError FL950."""
    amount = amount_of(text, KeyUnit.NONE, needs_unit=False)
    amount = amount or amount_of(f"{text.strip()}/s", KeyUnit.FLOPS_PER_S, needs_unit=True)
    if amount is None or amount.is_factor:
        raise _unreadable("--flops", text, "1e15 or 1.2PFLOP")
    return amount.value


def bytes_from_text(text: str) -> Mapping[str, float]:
    """Bytes by label of axes: `data=2GiB,data+model=100MB`. Raises FlintError FL950."""
    pairs = _pairs("--bytes", text, "data=2GiB,model=300MB").items()
    return {key.replace(BETWEEN, ","): _bytes(f"--bytes {key}", value) for key, value in pairs}


def _bytes(option: str, text: str) -> float:
    amount = amount_of(text, KeyUnit.BYTES, needs_unit=False)
    if amount is None or amount.is_factor:
        raise _unreadable(option, text, EXAMPLES[KeyUnit.BYTES])
    return amount.value


def _pairs(option: str, text: str, example: str) -> dict[str, str]:
    """`a=1,b=2` by key. Raises FlintError FL950 for parts without = and keys given twice."""
    found: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = (word.strip() for word in part.partition("="))
        if not (key and equals and value) or key in found:
            raise _unreadable(option, text, example)
        found[key] = value
    return found


def _unreadable(option: str, text: str, example: str) -> FlintError:
    return FlintError("FL950", f"{option} cannot be '{text}'", help=f"give it as {example}")
