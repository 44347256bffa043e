"""Schedules: in which order each rank of a pipeline runs its passes.

Stage `chunk * ranks + rank` is the `chunk`-th stage of rank `rank`. A unit is one pass of one
microbatch through one stage (`units.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType

from flint.errors import FlintError, nearest
from flint.passes.pipeline.schedule.units import Unit, Work

#: What one rank runs, from first to last.
Order = tuple[Unit, ...]


@dataclass(frozen=True)
class Schedule:
    """A schedule by name, and what is known of it.

    `order(ranks, microbatches, chunks, rank)` is what that rank runs.
    `in_flight(ranks, microbatches, chunks, rank)` is of how many passes forward the rank holds
    activations at most: one for each microbatch and chunk, from its forward pass until the last
    part of its backward pass (in inference: while it runs).
    `bubble(ranks, microbatches, chunks)` is the part of the step in which a rank waits, from 0 to
    1, where all stages are equal, sending takes no time, and a whole backward pass takes twice as
    long as the forward pass, each part of a split one as long.
    """

    name: str
    summary: str
    order: Callable[[int, int, int, int], Order]
    in_flight: Callable[[int, int, int, int], int]
    bubble: Callable[[int, int, int], Fraction]
    splits_backward: bool = False
    takes_chunks: bool = False
    trains: bool = True


def orders(schedule: str, ranks: int, microbatches: int, chunks: int = 1) -> tuple[Order, ...]:
    """Return what each rank runs, rank by rank. Raises FlintError FL246 as `check_schedule` does."""
    found = check_schedule(schedule, ranks, microbatches, chunks)
    return tuple(found.order(ranks, microbatches, chunks, rank) for rank in range(ranks))


def check_schedule(schedule: str, ranks: int, microbatches: int, chunks: int = 1) -> Schedule:
    """Return the schedule of that name if it is possible with these numbers.

    Raises FlintError FL246 for a name that is not in `SCHEDULES`, for numbers below one, for
    chunks where the schedule has none, and for interleaving microbatches that are not a multiple
    of the ranks.
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
    if chunks > 1 and not found.takes_chunks:
        usable = ", ".join(name for name, other in SCHEDULES.items() if other.takes_chunks)
        raise FlintError(
            "FL246",
            f"schedule '{schedule}' has one stage per rank, not {chunks} chunks",
            help=f"use chunks=1, or one of: {usable}",
        )
    if chunks > 1 and found.trains and microbatches % ranks:
        raise FlintError(
            "FL246",
            f"schedule '{schedule}' cannot interleave {microbatches} microbatches on {ranks} ranks",
            help=f"use a multiple of {ranks} microbatches, or chunks=1",
        )
    return found


def gpipe(ranks: int, microbatches: int, chunks: int, rank: int) -> Order:
    """All forward passes, then all backward passes (arXiv 1811.06965, section 2.3)."""
    return _all(Work.FORWARD, range(microbatches)) + _all(Work.BACKWARD, range(microbatches))


def one_forward_one_backward(ranks: int, microbatches: int, chunks: int, rank: int) -> Order:
    """Forward passes until the first gradient can arrive, then a forward and a backward in turn.

    The schedule of PipeDream-Flush (arXiv 2104.04473, section 2.2.1).
    """
    forward = _all(Work.FORWARD, range(microbatches))
    backward = _all(Work.BACKWARD, range(microbatches))
    return _in_turn(forward, backward, ranks - 1 - rank)


def interleaved(ranks: int, microbatches: int, chunks: int, rank: int) -> Order:
    """1F1B over several stages per rank: rounds of as many microbatches as there are ranks.

    A round goes through the chunks one after the other, the backward passes through them in
    reverse (arXiv 2104.04473, section 2.2.2). A rank warms up with all chunks but the last of
    the first round, and two passes for each rank behind it: what is on its way there and back.
    """
    if chunks == 1:
        return one_forward_one_backward(ranks, microbatches, chunks, rank)
    forward = tuple(_rounds(Work.FORWARD, ranks, microbatches, range(chunks)))
    backward = tuple(_rounds(Work.BACKWARD, ranks, microbatches, range(chunks)[::-1]))
    return _in_turn(forward, backward, _interleaved_warm_up(ranks, chunks, rank))


def zero_bubble_h1(ranks: int, microbatches: int, chunks: int, rank: int) -> Order:
    """1F1B whose backward pass is split: weight gradients fill the time in which ranks waited.

    Rank k leaves the first k weight gradients for the end, so that every rank holds as many
    microbatches as the first rank of 1F1B (ZB-H1 in arXiv 2401.10241, section 2.1).
    """
    order: list[Unit] = []
    weights = iter(_all(Work.WEIGHT_BACKWARD, range(microbatches)))
    for unit in one_forward_one_backward(ranks, microbatches, chunks, rank):
        if unit.work is Work.FORWARD:
            order.append(unit)
            continue
        order.append(unit._replace(work=Work.INPUT_BACKWARD))
        if unit.microbatch >= rank:
            order.append(next(weights))
    return tuple(order) + tuple(weights)


def forward_only(ranks: int, microbatches: int, chunks: int, rank: int) -> Order:
    """Inference: forward passes alone, with chunks in rounds as in interleaved 1F1B."""
    return tuple(_rounds(Work.FORWARD, ranks, microbatches, range(chunks)))


def _all(work: Work, microbatches: range) -> Order:
    return tuple(Unit(work, 0, microbatch) for microbatch in microbatches)


def _rounds(work: Work, ranks: int, microbatches: int, chunks: range) -> Iterator[Unit]:
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


def _interleaved_warm_up(ranks: int, chunks: int, rank: int) -> int:
    return (chunks - 1) * ranks + 2 * (ranks - 1 - rank)


def _held_by_gpipe(ranks: int, microbatches: int, chunks: int, rank: int) -> int:
    """Every microbatch (arXiv 1811.06965, section 2.3, without rematerialisation)."""
    return microbatches


def _held_by_1f1b(ranks: int, microbatches: int, chunks: int, rank: int) -> int:
    """One for each rank from here to the last (arXiv 2104.04473, section 2.2.1)."""
    return min(ranks - rank, microbatches)


def _held_interleaved(ranks: int, microbatches: int, chunks: int, rank: int) -> int:
    """The warm-up and one more (arXiv 2104.04473, section 2.2.2)."""
    if chunks == 1:
        return _held_by_1f1b(ranks, microbatches, chunks, rank)
    return min(_interleaved_warm_up(ranks, chunks, rank) + 1, microbatches * chunks)


def _held_by_zb_h1(ranks: int, microbatches: int, chunks: int, rank: int) -> int:
    """On every rank as on the first of 1F1B (arXiv 2401.10241, section 2.3)."""
    return min(ranks, microbatches)


def _held_forward(ranks: int, microbatches: int, chunks: int, rank: int) -> int:
    return 1


def _bubble(ranks: int, microbatches: int, chunks: int) -> Fraction:
    """`(p - 1) / (v m + p - 1)` of the step, p ranks, m microbatches and v chunks.

    GPipe: arXiv 1811.06965, section 2.3. 1F1B waits as long; interleaved, v times shorter:
    arXiv 2104.04473, sections 2.2.1 and 2.2.2, as `(p - 1) / (v m)` of the time without waiting.
    """
    return Fraction(ranks - 1, chunks * microbatches + ranks - 1)


def _bubble_of_zb_h1(ranks: int, microbatches: int, chunks: int) -> Fraction:
    """`(p - 1) (F + B - W)` of idle time (arXiv 2401.10241, section 2.3), here F = B = W = 1.

    That holds while W is no longer than F and B. Fewer microbatches than ranks leave too few weight gradients to fill the rest.
    """
    idle = ranks - 1 + max(0, ranks - microbatches)
    return Fraction(idle, 3 * microbatches + idle)


def _bubble_forward(ranks: int, microbatches: int, chunks: int) -> Fraction:
    """As `_bubble`; a last round that is not full waits for itself between two chunks."""
    idle = ranks - 1 + (chunks - 1) * (-microbatches % ranks)
    return Fraction(idle, chunks * microbatches + idle)


_ALL = (
    Schedule(
        name="gpipe",
        summary="all forward passes, then all backward passes",
        order=gpipe,
        in_flight=_held_by_gpipe,
        bubble=_bubble,
    ),
    Schedule(
        name="1f1b",
        summary="forward and backward passes in turn: the bubble of gpipe, less memory",
        order=one_forward_one_backward,
        in_flight=_held_by_1f1b,
        bubble=_bubble,
    ),
    Schedule(
        name="interleaved-1f1b",
        summary="1f1b with several stages per rank: a smaller bubble, more sends",
        order=interleaved,
        in_flight=_held_interleaved,
        bubble=_bubble,
        takes_chunks=True,
    ),
    Schedule(
        name="zb-h1",
        summary="1f1b with weight gradients in the bubble, in the memory of its first rank",
        order=zero_bubble_h1,
        in_flight=_held_by_zb_h1,
        bubble=_bubble_of_zb_h1,
        splits_backward=True,
    ),
    Schedule(
        name="forward",
        summary="inference: forward passes alone",
        order=forward_only,
        in_flight=_held_forward,
        bubble=_bubble_forward,
        takes_chunks=True,
        trains=False,
    ),
)

#: Every schedule by the name that a user gives.
SCHEDULES: Mapping[str, Schedule] = MappingProxyType({found.name: found for found in _ALL})
