"""What a simulator said of traces, rank by rank, and what went wrong where it did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from flint.backends.chakra.manifest import ranks_text
from flint.backends.cost.astrasim.ring import Fabric
from flint.errors import FlintError
from flint.text import format_duration, headings, plural, text_table
from flint.tools.simulators.rank_end import RankEnd

if TYPE_CHECKING:
    from flint.backends.cost.astrasim.step import Waiting
    from flint.tools.simulators.documents import FailureDocument, SimulatedRunDocument
    from flint.tools.simulators.reasons import Comparison

#: How many rows of ranks are printed unless all are asked for.
_SHOWN = 8


@dataclass(frozen=True)
class SimulatedRun:
    """One run of a simulator. It succeeded where every rank finished, whatever its exit status.

    `failure` says why not, `waiting` what the others wait in by Flint's own run of the traces. `ends`
    holds the ranks that finished. `comparison` is the way from Flint's estimate to this time, if
    there is one. `undisturbed_ns` is what Flint's rules say where no rank is late, if some are.
    """

    network: str
    system: str
    fabric: Fabric
    ends: dict[int, RankEnd]
    failure: FlintError | None = None
    notes: tuple[str, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    comparison: Comparison | None = None
    undisturbed_ns: int | None = None

    @property
    def ranks(self) -> int:
        """Ranks of the network."""
        return self.fabric.world

    @property
    def unfinished(self) -> tuple[int, ...]:
        """Ranks that did not finish, ascending."""
        return tuple(r for r in range(self.ranks) if r not in self.ends)

    @property
    def step_time_ns(self) -> int | None:
        """When the last rank finished; None unless all did."""
        return None if self.unfinished else max(e.end_ns for e in self.ends.values())

    @property
    def slowest(self) -> int:
        """The first rank of those that finish last."""
        return min(self.ends, key=lambda r: (-self.ends[r].end_ns, r))

    def document(self) -> SimulatedRunDocument:
        """Exact numbers."""
        ends = [self.ends.get(r) for r in range(self.ranks)]
        sizes = zip(self.fabric.topologies, self.fabric.sizes, strict=True)
        return {
            "network": self.network,
            "system": self.system,
            "dimensions": [(topology, size) for topology, size in sizes],
            "ranks": self.ranks,
            "finished": not self.unfinished,
            "step_time_ns": self.step_time_ns,
            "slowest": None if self.unfinished else self.slowest,
            "end_ns": [e.end_ns if e else None for e in ends],
            "exposed_ns": [e.exposed_ns if e else None for e in ends],
            "compute_ns": [e.compute_ns if e else None for e in ends],
            "comm_ns": [e.comm_ns if e else None for e in ends],
            "unfinished": list(self.unfinished),
            "failure": failure_json(self.failure),
            "waiting": self.waiting,
            "undisturbed_ns": self.undisturbed_ns,
            "comparison": self.comparison,
            "notes": list(self.notes),
        }

    def to_text(self, *, verbose: bool = False) -> str:
        """For people; `verbose` prints a row for each rank."""
        sizes = zip(self.fabric.topologies, self.fabric.sizes, strict=True)
        shape = ", ".join(f"{topology} of {size}" for topology, size in sizes)
        lines = [f"{self.network}: {shape}"]
        if self.unfinished:
            count = f"{len(self.ends)} of {plural(self.ranks, 'rank')}"
            lines.append(f"NOT FINISHED: {count} did, {ranks_text(self.unfinished)} did not")
        else:
            lines.append(f"step time  {_time(self.step_time_ns or 0)}, all ranks finished")
        if self.undisturbed_ns is not None:
            now = self.step_time_ns
            more = "" if now is None else f", {now / self.undisturbed_ns - 1:+.2%}"
            lines.append(f"undisturbed {_time(self.undisturbed_ns)}{more}")
        if self.ends:
            lines += ["", _ends_table(self.ends, verbose=verbose)]
        if self.waiting:
            kept = self.waiting if verbose else self.waiting[:_SHOWN]
            lines += ["", *map(str, kept)]
            if len(self.waiting) > len(kept):
                lines.append(f"... {len(self.waiting) - len(kept)} more (-v)")
        if self.comparison is not None:
            lines += ["", self.comparison.to_text()]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


class Simulation(Protocol):
    """All that a simulator was asked."""

    @property
    def warnings(self) -> Sequence[str]:
        """What was not as files or options make one believe."""

    @property
    def failures(self) -> Sequence[FlintError]:
        """What went wrong, an error for each run that failed."""

    def to_json(self) -> Mapping[str, object]:
        """Exact numbers, JSON-able."""

    def to_text(self, *, verbose: bool = False) -> str:
        """For people."""


def failure_json(failure: FlintError | None) -> FailureDocument | None:
    """An error as it stands in documents."""
    if failure is None:
        return None
    return {"code": failure.code, "message": failure.message, "help": failure.help}


def _time(ns: int) -> str:
    return f"{format_duration(ns)} ({ns:,} cycles of 1 ns)"


def _ends_table(ends: dict[int, RankEnd], *, verbose: bool) -> str:
    """Ranks that agree in one row, the last to finish first."""
    groups: dict[RankEnd | tuple[RankEnd, int], list[int]] = {}
    for rank, end in sorted(ends.items()):
        groups.setdefault((end, rank) if verbose else end, []).append(rank)
    rows = [
        (ranks_text(ranks), f"{ends[ranks[0]].end_ns:,}", *_cells(ends[ranks[0]]))
        for ranks in sorted(groups.values(), key=lambda r: (-ends[r[0]].end_ns, r))
    ]
    kept = rows if verbose else rows[:_SHOWN]
    if len(rows) > len(kept):
        kept.append((f"... {len(rows) - len(kept)} more rows (-v)", "", "", "", ""))
    return text_table(headings("ranks | >cycles | >computes | >communicates | >exposed"), kept)


def _cells(end: RankEnd) -> tuple[str, str, str]:
    compute, comm, exposed = (
        "-" if ns is None else f"{ns:,}" for ns in (end.compute_ns, end.comm_ns, end.exposed_ns)
    )
    return compute, comm, exposed
