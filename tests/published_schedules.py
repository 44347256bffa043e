"""What is published of pipeline schedules: activations in flight, and idle time."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

#: `(ranks, microbatches, chunks, rank)` to the most passes forward whose activations a rank holds.
InFlight = Callable[[int, int, int, int], int]
#: `(ranks, microbatches, chunks)` to the part of a step in which a rank waits: equal stages, sends
#: that take no time, and a whole backward pass twice as long as a forward pass or its own parts.
Bubble = Callable[[int, int, int], Fraction]


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
    return min((chunks - 1) * ranks + 2 * (ranks - 1 - rank) + 1, microbatches * chunks)


def _held_by_zb_h1(ranks: int, microbatches: int, chunks: int, rank: int) -> int:
    """On every rank as on the first of 1F1B (arXiv 2401.10241, section 2.3)."""
    return min(ranks, microbatches)


def _held_by_zb_v(ranks: int, microbatches: int, chunks: int, rank: int) -> int:
    """As many as 1F1B's first rank, of chunks half as large (arXiv 2401.10241, ZB-V).

    Too few microbatches reach the ranks in front late, when gradients already come back.
    """
    return min(2 * ranks, 2 * microbatches, microbatches + 1 + rank)


def _held_by_dualpipe_v(ranks: int, microbatches: int, chunks: int, rank: int) -> int:
    """One more than there are stages (DeepSeek's table of DualPipeV: "PP + 1")."""
    return 2 * ranks + 1


def _held_forward(ranks: int, microbatches: int, chunks: int, rank: int) -> int:
    return 1


IN_FLIGHT: dict[str, InFlight] = {
    "gpipe": _held_by_gpipe,
    "1f1b": _held_by_1f1b,
    "interleaved-1f1b": _held_interleaved,
    "zb-h1": _held_by_zb_h1,
    "zb-v": _held_by_zb_v,
    "dualpipev": _held_by_dualpipe_v,
    "forward": _held_forward,
}


def _bubble(ranks: int, microbatches: int, chunks: int) -> Fraction:
    """`(p - 1) / (v m + p - 1)` of the step, p ranks, m microbatches and v chunks.

    GPipe: arXiv 1811.06965, section 2.3. 1F1B waits as long; interleaved, v times shorter:
    arXiv 2104.04473, sections 2.2.1 and 2.2.2, as `(p - 1) / (v m)` of the time without waiting.
    """
    return Fraction(ranks - 1, chunks * microbatches + ranks - 1)


def _bubble_of_zb_h1(ranks: int, microbatches: int, chunks: int) -> Fraction:
    """`(p - 1) (F + B - W)` of idle time (arXiv 2401.10241, section 2.3), here F = B = W = 1.

    That holds while W is no longer than F and B. Fewer microbatches than ranks leave too few weight
    gradients to fill the rest.
    """
    idle = ranks - 1 + max(0, ranks - microbatches)
    return Fraction(idle, 3 * microbatches + idle)


def _bubble_of_a_fold(ranks: int, microbatches: int, chunks: int) -> Fraction:
    """None between a rank's first and last pass (arXiv 2401.10241, ZB-V): `p - 1` forward passes.

    The last rank begins so much later than the first, which ends so much earlier. Microbatches
    that do not fill the pipeline wait for the way there and back: one goes through 4p - 2 passes
    of stages, and each further one brings two forward passes of its own to fill the time.
    """
    idle = max(ranks - 1, 4 * (ranks - 1) - 2 * (microbatches - 1))
    return Fraction(idle, 6 * microbatches + idle)


def _bubble_forward(ranks: int, microbatches: int, chunks: int) -> Fraction:
    """As `_bubble`; a last round that is not full waits for itself between two chunks."""
    idle = ranks - 1 + (chunks - 1) * (-microbatches % ranks)
    return Fraction(idle, chunks * microbatches + idle)


BUBBLE: dict[str, Bubble] = {
    "gpipe": _bubble,
    "1f1b": _bubble,
    "interleaved-1f1b": _bubble,
    "zb-h1": _bubble_of_zb_h1,
    "zb-v": _bubble_of_a_fold,
    "dualpipev": _bubble_of_a_fold,
    "forward": _bubble_forward,
}
