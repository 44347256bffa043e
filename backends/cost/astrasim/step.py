"""What a run by ASTRA-sim's rules says: when ranks end, what they did meanwhile, why some never end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from typing_extensions import TypedDict

from flint.backends.chakra.manifest import ranks_text
from flint.backends.chakra.schema import CommType
from flint.backends.cost.astrasim.ring import Fabric
from flint.backends.cost.astrasim.traces import Meeting, MessageEnd
from flint.errors import FlintError
from flint.io.documents import Unpublished
from flint.text import format_duration

#: Name of these rules among the policies of `flint estimate --overlap`.
ASTRA_SIM: Final = "astra-sim"
#: Version of the JSON form.
SCHEMA: Final = "flint.simulated/1"


class SlowestDocument(TypedDict):
    """The rank that ends last, the first of several."""

    rank: int  #: Its number.
    compute_ns: int  #: How long it computes, in ns.
    exposed_ns: int  #: How long it waits for communication, in ns.


class SimulatedDocument(TypedDict):
    """What traces take by the rules of ASTRA-sim."""

    schema: Literal["flint.simulated/1"]  #: Kind and version of this document.
    policy: Literal["astra-sim"]  #: Whose rules.
    warnings: list[str]  #: Files that are not as they were written: sentences.
    network: str  #: Name of the network file.
    ranks: int  #: Ranks that were run.
    step_time_ns: int  #: When the last rank ends, in ns.
    slowest: SlowestDocument  #: The rank that ends last.
    end_ns: list[int]  #: When each rank ends, in ns, from rank 0.


@dataclass(frozen=True, slots=True)
class Spent:
    """Time of one rank in communication of one kind between the same ranks.

    `kind` is None for messages that it sends. `busy_ns` counts from when all members have entered,
    `waited_ns` is how long it waited for the last of them.
    """

    kind: CommType | None
    members: Sequence[int]
    count: int
    busy_ns: int
    waited_ns: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a rank that does not finish waits in, by Flint's own run of the traces."""

    rank: int  #: Its number.
    node: int  #: The id of the node in its trace.
    name: str  #: What that is called.
    what: str  #: What it communicates.
    absent: tuple[int, ...]  #: Ranks that do not come there.
    is_message: Unpublished[bool] = False  #: Whether it is a receive.

    def __str__(self) -> str:
        named = f" ({self.name})" if self.name else ""
        whom = f"rank {self.absent[0]}" if len(self.absent) == 1 else "ranks"
        told = whom if len(self.absent) == 1 else f"{whom} {ranks_text(self.absent)}"
        return f"rank {self.rank} waits in node {self.node}{named}, {self.what}, for {told}"


class NeverEndsError(FlintError):
    """FL707 for ranks that wait forever; `waiting` says in what, one entry for each that is known."""

    def __init__(self, stuck: Sequence[int], waiting: Sequence[Waiting]) -> None:
        self.stuck = tuple(stuck)
        self.waiting = tuple(waiting)
        super().__init__(
            "FL707",
            f"ASTRA-sim does not finish these traces: {len(stuck)} ranks wait forever, the first is {stuck[0]}",
            help=self.cause or "flint check says what they wait for",
        )

    @property
    def cause(self) -> str:
        """Where the waiting begins: with a rank that has ended without the others, or in a circle."""
        stuck = set(self.stuck)
        for waiting in self.waiting:
            ended = [rank for rank in waiting.absent if rank not in stuck]
            if ended:
                return f"{waiting}; rank {ended[0]} has ended without joining"
        return f"in a circle, first: {self.waiting[0]}" if self.waiting else ""


@dataclass(frozen=True)
class SimulatedStep:
    """When each rank ends by the rules of ASTRA-sim, how long it computed, and in what it communicated.

    `kernels` are the computations of each, `memory_ns` is how long each moved remote memory, `warnings` say which files are not as they were written.

    Times are in ns.
    """

    network: str
    fabric: Fabric
    end_ns: tuple[int, ...]
    compute_ns: tuple[int, ...]
    spent: tuple[tuple[Spent, ...], ...] = ()
    kernels: tuple[int, ...] = ()
    memory_ns: tuple[int, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def step_time_ns(self) -> int:
        """When the last rank ends."""
        return max(self.end_ns)

    @property
    def slowest(self) -> int:
        """The rank that ends last, the first of several."""
        return self.end_ns.index(self.step_time_ns)

    def to_json(self) -> SimulatedDocument:
        """Exact numbers, JSON-able."""
        rank = self.slowest
        return {
            "schema": SCHEMA,
            "policy": ASTRA_SIM,
            "warnings": list(self.warnings),
            "network": self.network,
            "ranks": len(self.end_ns),
            "step_time_ns": self.step_time_ns,
            "slowest": {
                "rank": rank,
                "compute_ns": self.compute_ns[rank],
                "exposed_ns": self.end_ns[rank] - self.compute_ns[rank],
            },
            "end_ns": list(self.end_ns),
        }

    def to_text(self) -> str:
        """For people."""
        parts = zip(self.fabric.topologies, self.fabric.sizes, strict=True)
        rank, compute = self.slowest, self.compute_ns[self.slowest]
        exposed = self.step_time_ns - compute
        return (
            f"network    {self.network}: {', '.join(f'{t} of {n}' for t, n in parts)}\n"
            "rules      ASTRA-sim's, congestion-unaware: one communication of a rank at a time\n"
            f"step time  {format_duration(self.step_time_ns)} ({self.step_time_ns:,} ns)\n"
            f"rank {rank:<5} ends last: {format_duration(compute)} of computation, "
            f"{format_duration(exposed)} of exposed communication"
        )


def work_text(work: Meeting | MessageEnd) -> str:
    """What a node communicates, in a few words."""
    if isinstance(work, Meeting):
        kind = work.kind.name.lower()
        return f"{kind} of {work.size_bytes:,} bytes between ranks {ranks_text(work.members)}"
    return f"a message of {work.size_bytes:,} bytes with tag {work.tag}"
