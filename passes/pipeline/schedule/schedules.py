"""Schedules: in which order each rank of a pipeline runs its passes, and which stages it holds.

A schedule is one function: what `rank` of `ranks` runs, from first to last, for that many
microbatches and chunks (stages per rank). A unit is one pass of one microbatch through one chunk
(`units.py`). `@schedule` gives the function its name, and says where the stages lie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from flint.errors import FlintError, nearest
from flint.passes.pipeline.schedule.units import (
    Place,
    StagePlacement,
    Unit,
    UnitWork,
    folded,
    looped,
)

#: What one rank runs, from first to last.
Order = tuple[Unit, ...]
#: `(ranks, microbatches, chunks, rank)` to what that rank runs.
OrderOfRank = Callable[[int, int, int, int], Order]

#: Stages per rank of a schedule that takes any number of them.
ANY = 0
#: In the steps of a schedule: the chunk that has waited longest.
ANY_CHUNK = -1


@dataclass(frozen=True)
class PipelineSchedule:
    """A schedule by name: its order, how many stages a rank holds (or `ANY`), and which."""

    name: str
    summary: str
    order: OrderOfRank
    chunks: int
    place: Place

    @cached_property
    def trains(self) -> bool:
        """Whether it has backward passes."""
        return any(
            unit.work is not UnitWork.FORWARD for unit in self.order(1, 2, self.chunks or 1, 0)
        )

    @property
    def fewest_chunks(self) -> int:
        """Chunks to show it with: as few as tell it from others."""
        return self.chunks or (2 if self.trains else 1)

    def placement(self, ranks: int, chunks: int = 1) -> StagePlacement:
        """Where the stages lie."""
        return StagePlacement.of(self.place, ranks, chunks)


_FOUND: dict[str, PipelineSchedule] = {}
#: Every schedule by the name that a user gives.
SCHEDULES: Mapping[str, PipelineSchedule] = MappingProxyType(_FOUND)


def schedule(
    name: str, summary: str, *, chunks: int = 1, place: Place = looped
) -> Callable[[OrderOfRank], OrderOfRank]:
    """Make a function the order of the schedule `name`."""

    def register(order: OrderOfRank) -> OrderOfRank:
        assert name not in _FOUND, f"two schedules are called {name}"
        _FOUND[name] = PipelineSchedule(name, summary, order, chunks, place)
        return order

    return register


def orders(schedule: str, ranks: int, microbatches: int, chunks: int = 1) -> tuple[Order, ...]:
    """Return what each rank runs, rank by rank.

    Raises FlintError FL246 as `check_schedule` does, and for microbatches that do not fit.
    """
    found = check_schedule(schedule, ranks, microbatches, chunks)
    return tuple(found.order(ranks, microbatches, chunks, rank) for rank in range(ranks))


def placement(schedule: str, ranks: int, chunks: int = 1) -> StagePlacement:
    """Return where the stages of a schedule lie. Raises FlintError FL246 as `check_schedule` does."""
    return check_schedule(schedule, ranks, 1, chunks).placement(ranks, chunks)


def check_schedule(
    schedule: str, ranks: int, microbatches: int, chunks: int = 1
) -> PipelineSchedule:
    """Return the schedule of that name.

    Raises FlintError FL246 for a name that is not in `SCHEDULES`, for numbers below one, and for
    more or fewer chunks than the schedule has.
    """
    found = SCHEDULES.get(schedule)
    if found is None:
        raise FlintError(
            "FL246",
            f"unknown schedule '{schedule}'{nearest(schedule, list(SCHEDULES))}",
            help="one of: " + ", ".join(SCHEDULES),
        )
    for name, value in (("ranks", ranks), ("microbatches", microbatches), ("chunks", chunks)):
        if value < 1:
            raise FlintError("FL246", f"a pipeline with {value} {name}", help="use 1 or more")
    if found.chunks not in (ANY, chunks):
        usable = ", ".join(n for n, other in SCHEDULES.items() if other.chunks in (ANY, chunks))
        has = "one stage" if found.chunks == 1 else f"{found.chunks} stages"
        raise FlintError(
            "FL246",
            f"schedule '{schedule}' has {has} per rank, not {chunks} "
            f"chunk{'s' if chunks > 1 else ''}",
            help=f"use chunks={found.chunks}, or one of: {usable}",
        )
    return found


@schedule("gpipe", "all forward passes, then all backward passes")
def gpipe(ranks: int, microbatches: int, chunks: int, rank: int) -> Order:
    """All forward passes, then all backward passes (arXiv 1811.06965, section 2.3)."""
    return _all(UnitWork.FORWARD, range(microbatches)) + _all(
        UnitWork.BACKWARD, range(microbatches)
    )


@schedule("1f1b", "forward and backward passes in turn: the bubble of gpipe, less memory")
def one_forward_one_backward(ranks: int, microbatches: int, chunks: int, rank: int) -> Order:
    """Forward passes until the first gradient can arrive, then a forward and a backward in turn.

    The schedule of PipeDream-Flush (arXiv 2104.04473, section 2.2.1).
    """
    forward = _all(UnitWork.FORWARD, range(microbatches))
    backward = _all(UnitWork.BACKWARD, range(microbatches))
    return _in_turn(forward, backward, ranks - 1 - rank)


@schedule(
    "interleaved-1f1b",
    "1f1b with several stages per rank: a smaller bubble, more sends",
    chunks=ANY,
)
def interleaved(ranks: int, microbatches: int, chunks: int, rank: int) -> Order:
    """1F1B over several stages per rank: rounds of as many microbatches as there are ranks.

    A round goes through the chunks one after the other, the backward passes through them in
    reverse (arXiv 2104.04473, section 2.2.2). A rank warms up with all chunks but the last of
    the first round, and two passes for each rank behind it: what is on its way there and back.
    Raises FlintError FL246 for microbatches that are not a multiple of the ranks.
    """
    if chunks == 1:
        return one_forward_one_backward(ranks, microbatches, chunks, rank)
    if microbatches % ranks:
        raise FlintError(
            "FL246",
            "schedule 'interleaved-1f1b' cannot interleave "
            f"{microbatches} microbatches on {ranks} ranks",
            help=f"use a multiple of {ranks} microbatches, or chunks=1",
        )
    forward = tuple(_rounds(UnitWork.FORWARD, ranks, microbatches, range(chunks)))
    backward = tuple(_rounds(UnitWork.BACKWARD, ranks, microbatches, range(chunks)[::-1]))
    return _in_turn(forward, backward, (chunks - 1) * ranks + 2 * (ranks - 1 - rank))


@schedule("zb-h1", "1f1b with weight gradients in the bubble, in the memory of its first rank")
def zero_bubble_h1(ranks: int, microbatches: int, chunks: int, rank: int) -> Order:
    """1F1B whose backward pass is split: weight gradients fill the time in which ranks waited.

    Rank k leaves the first k weight gradients for the end, so that every rank holds as many
    microbatches as the first rank of 1F1B (ZB-H1 in arXiv 2401.10241, section 2.1).
    """
    order: list[Unit] = []
    weights = iter(_all(UnitWork.WEIGHT_BACKWARD, range(microbatches)))
    for unit in one_forward_one_backward(ranks, microbatches, chunks, rank):
        if unit.work is UnitWork.FORWARD:
            order.append(unit)
            continue
        order.append(unit._replace(work=UnitWork.INPUT_BACKWARD))
        if unit.microbatch >= rank:
            order.append(next(weights))
    return tuple(order) + tuple(weights)


@schedule(
    "zb-v",
    "two stages per rank, there and back: almost no bubble, in the memory of 1f1b's first rank",
    chunks=2,
    place=folded,
)
def zero_bubble_v(ranks: int, microbatches: int, chunks: int, rank: int) -> Order:
    """The V schedule: split backward passes over stages that turn around at the last rank.

    A rank warms up with forward passes until the first gradient can be there, and then has as
    many microbatches in its two chunks as it may hold: after that a forward pass always follows
    weight gradients, which free memory. At the end weight gradients wait for gradients of inputs
    that others wait for (ZB-V in arXiv 2401.10241). With fewer microbatches
    than fill the pipeline, the order of as many as do, without the others.
    """
    behind, count = ranks - 1 - rank, max(microbatches, 2 * ranks - 1)
    steps = _Steps(count)
    steps.add("f0", 2 * behind + 1)
    steps.add("f1 f0", rank)
    steps.add("f1 i1 w1", behind + 1)
    steps.add("f0 i0 w0 f1 i1 w1", count - 2 * ranks + 1 + rank)
    steps.add("i0 w0 f1 i1 w1", behind)
    steps.add("i0 i1", rank)
    steps.add("i0 w0", behind + 1)
    steps.add("w1", rank)
    steps.add("w0", rank)
    return tuple(unit for unit in steps.order if unit.microbatch < microbatches)


@schedule(
    "dualpipev",
    "two stages per rank, there and back: a forward and a backward pass side by side",
    chunks=2,
    place=folded,
)
def dualpipe_v(ranks: int, microbatches: int, chunks: int, rank: int) -> Order:
    """One half of DualPipe (arXiv 2412.19437, section 3.2.1), whose stages turn around.

    Cut in the middle, each half of DualPipe holds every stage once; its eight steps are those of
    DeepSeek's description of DualPipeV. In the steady state a forward pass of one chunk and a
    backward pass of the other run at one time there; here one follows the other. Backward passes
    are split where a gradient is awaited, at the beginning and at the end.
    Raises FlintError FL246 for less than two microbatches for each rank.
    """
    if microbatches < 2 * ranks:
        raise FlintError(
            "FL246",
            f"schedule 'dualpipev' cannot fill {ranks} ranks with {microbatches} microbatches",
            help=f"use {2 * ranks} or more",
        )
    behind = ranks - 1 - rank
    steps = _Steps(microbatches)
    steps.add("f0", 2 * behind)
    steps.add("f0 f1", rank + 1)
    steps.add("i1 w1 f1", behind)
    steps.add("f0 b1 f1 b0", microbatches - 2 * ranks + rank + 1)
    steps.add("b1 f1 b0", behind)
    for number in range(2 * (rank + 1)):
        steps.add(("b" if number <= rank else "i") + ("0" if number % 2 else "1"))
    steps.add("w i0", behind)
    steps.add("w", rank + 1)
    return tuple(steps.order)


@schedule("forward", "inference: only forward passes", chunks=ANY)
def forward_only(ranks: int, microbatches: int, chunks: int, rank: int) -> Order:
    """Inference: forward passes alone, with chunks in rounds as in interleaved 1F1B."""
    return tuple(_rounds(UnitWork.FORWARD, ranks, microbatches, range(chunks)))


def _all(work: UnitWork, microbatches: range) -> Order:
    return tuple(Unit(work, 0, microbatch) for microbatch in microbatches)


def _rounds(work: UnitWork, ranks: int, microbatches: int, chunks: range) -> Iterator[Unit]:
    for first in range(0, microbatches, ranks):
        for chunk in chunks:
            for microbatch in range(first, min(first + ranks, microbatches)):
                yield Unit(work, chunk, microbatch)


def _in_turn(forward: Order, backward: Order, warm_up: int) -> Order:
    """`warm_up` forward units, then forward and backward units in turn while there are both."""
    warm_up = min(warm_up, len(forward))
    pairs = zip(forward[warm_up:], backward, strict=False)
    steady = tuple(unit for pair in pairs for unit in pair)
    return forward[:warm_up] + steady + backward[len(forward) - warm_up :]


class _Steps:
    """An order written step by step; each pass takes the next microbatch of its chunk.

    "f0" is a forward pass of chunk 0, "b0" a backward pass, "i0" and "w0" its two parts, and "w"
    are the weight gradients that wait longest, of any chunk.
    """

    def __init__(self, microbatches: int) -> None:
        self.order: list[Unit] = []
        self._forward = [iter(range(microbatches)) for _ in range(2)]
        self._backward = [iter(range(microbatches)) for _ in range(2)]
        self._waiting: list[Unit] = []

    def add(self, passes: str, times: int = 1) -> None:
        for name in passes.split() * times:
            self.order.append(self._next(name[0], int(name[1:] or ANY_CHUNK)))

    def _next(self, letter: str, chunk: int) -> Unit:
        if letter == "f":
            return Unit(UnitWork.FORWARD, chunk, next(self._forward[chunk]))
        if letter == "b":
            return Unit(UnitWork.BACKWARD, chunk, next(self._backward[chunk]))
        if letter == "i":
            unit = Unit(UnitWork.INPUT_BACKWARD, chunk, next(self._backward[chunk]))
            self._waiting.append(unit._replace(work=UnitWork.WEIGHT_BACKWARD))
            return unit
        found = next(unit for unit in self._waiting if chunk in (ANY_CHUNK, unit.chunk))
        self._waiting.remove(found)
        return found
