"""Units of a step that are matched: calls of operators, with all the kernels that they launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from flint.backends.cost.replay.changes import communicates, on_device
from flint.backends.cost.simulate.exposure import labels_of
from flint.backends.cost.simulate.timeline import ClassTimeline
from flint.errors import FlintError
from flint.ir.program import Int32s, Kind, Program, Row

#: More are not matched one by one: it takes minutes.
MOST_UNITS = 200_000


@dataclass(frozen=True, slots=True)
class ExecutedCall:
    """One call of an operator, or one communication, as it was executed.

    `kind` is that of its kernel, or of the collective; `over` is "" for kernels. `kernels` is how
    many it launched, and `time_ns` what they take in all. `flops` and `bytes` are of one call,
    `bytes` of communication what its rank puts in.
    """

    kind: str
    over: str
    opcode: str
    op: int
    dtype: str
    shape: tuple[int, ...]
    flops: int
    bytes: int
    scope: str
    phase: str
    kernels: int
    time_ns: float

    @property
    def elements(self) -> int:
        """Elements of its result."""
        return prod(self.shape)

    @property
    def communicates(self) -> bool:
        """Whether it is a collective or message."""
        return bool(self.over)

    @property
    def title(self) -> str:
        """`aten.mm bfloat16[8944,1024]`."""
        shape = f"[{','.join(map(str, self.shape))}]" if self.dtype else ""
        return f"{self.opcode} {self.dtype}{shape}".strip()


def units_of(track: ClassTimeline) -> list[ExecutedCall]:
    """Units of a rank class in order of execution: a loop's as often as it runs.

    Raises FlintError FL841 for more than `MOST_UNITS` kernels.
    """
    program, rows = track.work.program, track.work.nodes.row
    works = (on_device(program) | communicates(program))[rows]
    nodes = np.flatnonzero(works & (program.kind[rows] != Kind.RECV))
    if len(nodes) > MOST_UNITS:
        raise FlintError(
            "FL841",
            f"a step of {len(nodes):,} kernels is too long to be matched: {MOST_UNITS:,} is the limit",
            help="compare one step (--step N), or a capture with fewer layers or microbatches",
        )
    labels = labels_of(program)
    times = (track.end_ns - track.start_ns)[nodes]
    found: list[ExecutedCall] = []
    known: dict[int, Row] = {}
    for group in _calls(program, rows[nodes]):
        members = rows[nodes[group]]
        main = _main(program, members)
        row = known.setdefault(main, program.row(main))
        found.append(_unit(row, labels[main], len(members), float(times[group].sum())))
    return found


def _calls(program: Program, rows: Int32s) -> list[list[int]]:
    """Positions of each call's rows, in the order in which calls begin."""
    launchers = program.launcher[rows].tolist()
    of_call: dict[int, int] = {}
    found: list[list[int]] = []
    for at, launcher in enumerate(launchers):
        if launcher and launcher in of_call:
            found[of_call[launcher]].append(at)
            continue
        if launcher:
            of_call[launcher] = len(found)
        found.append([at])
    return found


def _main(program: Program, rows: Int32s) -> int:
    """The row that has the call's work: the one with a result; of several the longest."""
    has_work = program.result_bytes[rows] > 0
    longest = np.lexsort((program.measured_ns[rows], has_work))
    return int(rows[longest[-1]])


def _unit(row: Row, label: tuple[str, str, str], kernels: int, time_ns: float) -> ExecutedCall:
    kind, over, phase = label
    moved = row.comm_bytes if over else row.operand_bytes + row.result_bytes
    return ExecutedCall(
        kind=kind,
        over=over,
        opcode=row.opcode,
        op=int(row.op),
        dtype=row.dtype,
        shape=tuple(row.shape),
        flops=row.flops,
        bytes=moved,
        scope=row.scope,
        phase=phase,
        kernels=kernels,
        time_ns=time_ns,
    )


def total_ns(units: Sequence[ExecutedCall]) -> float:
    """Time of all of them."""
    return sum(u.time_ns for u in units)
