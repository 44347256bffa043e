"""What two partitioners say about one program, in a form in which they can be compared."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from flint.errors import FlintError
from flint.frontends.jax_step.program import capture_jax
from flint.ir.program import Collective, Kind, Program
from flint.passes.base import run_passes
from flint.passes.compilers.sides import Traffic, ring_factor
from flint.passes.partition import partitioner
from flint.passes.partition.xla import partition_xla
from flint.passes.rewrites.dead_code import DropDeadCode
from tests.zoo import Example


@dataclass(frozen=True)
class Communication:
    """Communication of one partitioned program.

    `plain` is as the partitioner wrote it. `normal` splits all-reduces over several axes into one
    for each axis, writes reduce-scatters as the all-reduces that they replace, and names of
    permutes only the axes that they cross. `wire_bytes` is what a ring sends per device:
    2 (n - 1) / n of the input for all-reduce, n - 1 for all-gather, (n - 1) / n for
    reduce-scatter and all-to-all, 1 for permute.
    """

    plain: Traffic
    normal: Traffic
    wire_bytes: float


def communication(program: Program) -> Communication:
    """Add up the communication of a program."""
    plain: dict[tuple[str, str], list[int]] = {}
    normal: dict[tuple[str, str], list[int]] = {}
    wire = 0.0
    for row in map(program.row, range(len(program))):
        if row.kind is not Kind.COLLECTIVE:
            continue
        times = int(program.trips[row.number])
        if not times:
            continue
        kind = row.collective
        where = row.group if row.group is not None else row.route
        assert where is not None
        _add(plain, (kind.name.lower(), str(where)), times, row.comm_bytes)
        if kind is Collective.REDUCE_SCATTER:
            kind = Collective.ALL_REDUCE
        axes = [str(a) for a in where.axes] or ["ranks"]
        if kind is Collective.PERMUTE:
            axes = sorted({a.name for a in where.axes}) or ["ranks"]
        joined = axes if kind is Collective.ALL_REDUCE else [",".join(axes)]
        for axis in joined:
            _add(normal, (kind.name.lower(), axis), times, row.comm_bytes)
        size = row.group.size(program.mesh) if row.group is not None else 0
        wire += times * row.comm_bytes * ring_factor(row.collective, size)
    return Communication(_frozen(plain), _frozen(normal), wire)


def _add(
    totals: dict[tuple[str, str], list[int]], key: tuple[str, str], times: int, size: int
) -> None:
    entry = totals.setdefault(key, [0, 0])
    entry[0] += times
    entry[1] += times * size


def _frozen(totals: dict[tuple[str, str], list[int]]) -> Traffic:
    return {key: (count, size) for key, (count, size) in sorted(totals.items())}


@dataclass(frozen=True)
class Comparison:
    """Both partitioners on one program."""

    name: str
    mesh: str
    shardy: Communication
    xla: Communication

    @property
    def verdict(self) -> str:
        """`exact`, `normal` (equal in the normal form) or `different`."""
        if self.shardy.plain == self.xla.plain:
            return "exact"
        return "normal" if self.shardy.normal == self.xla.normal else "different"


def compare(example: Example) -> Comparison:
    """Capture a program once and partition it twice."""
    captured = capture_jax(example.step(), example.mesh)
    found = []
    for name, partition in (("shardy", partitioner("shardy")), ("xla", partition_xla)):
        try:
            program = partition(captured)
        except FlintError as error:
            raise AssertionError(f"{example.name} with {name}: {error}") from error
        found.append(communication(run_passes(program, [DropDeadCode()])))
    return Comparison(example.name, str(example.mesh), *found)


def compare_all(examples: Iterable[Example]) -> list[Comparison]:
    """Compare many programs, two at a time: XLA runs in processes of its own."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(compare, examples))
