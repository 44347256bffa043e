"""Ranks that are alike, so that one of them can be examined for all.

Two ranks are alike if they run the same nodes, their collectives and messages share groups and
peers in the same places (one cohort), and for each of these the others who take part are alike too.
Then whatever a node of a rank waits for, the same node of each rank that is like it waits for the same
of ranks that are like those: who waits in a circle among parts waits in one among ranks.

Parts are found as the coarsest division that is stable (color refinement): ranks are divided by
cohort, then by who takes part, until nothing is divided any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flint.backends.chakra.checking.cohorts import Cohort
from flint.backends.chakra.checking.messages import AllMessages
from flint.ir.program import Int64s

#: Divisions after which every rank is examined instead.
_MOST_ROUNDS = 256


@dataclass(frozen=True, eq=False)
class Uses:
    """Who takes part in what, a line each: rank, its label, and the number of the group.

    `edge` lines up the sides of messages: sender, its label, receiver, its label.
    """

    cohort: Int64s
    group_rank: Int64s
    group_label: Int64s
    group: Int64s
    edges: Int64s


def find_parts(
    cohorts: Sequence[Cohort], exchange: AllMessages, members: Sequence[Sequence[int]], world: int
) -> Int64s:
    """For each rank the number of its part. Traces have no findings and are complete."""
    alone = np.arange(world)
    uses = make_uses(cohorts, exchange, world)
    sizes = np.bincount(uses.group, minlength=len(members))
    if any(size and size != len(members[g]) for g, size in enumerate(sizes.tolist())):
        return alone  # somebody is listed twice, or is not a rank
    part = uses.cohort
    count = len(np.unique(part))
    for _ in range(_MOST_ROUNDS):
        refined = _refine(part, uses)
        if refined.max() + 1 == count:
            return part
        part, count = refined, int(refined.max()) + 1
    return alone


def make_uses(cohorts: Sequence[Cohort], exchange: AllMessages, world: int) -> Uses:
    cohort = np.zeros(world, dtype=np.int64)
    lines: list[Int64s] = [np.zeros((0, 3), dtype=np.int64)]
    for number, each in enumerate(cohorts):
        cohort[each.ranks] = number
        groups = each.collectives.values
        labels = np.tile(np.arange(groups.shape[1]), len(groups))
        ranks = np.repeat(each.ranks, groups.shape[1])
        lines.append(np.column_stack((ranks, labels, groups.reshape(-1))))
    table = np.concatenate(lines)
    table = table[np.lexsort((table[:, 1], table[:, 0]))]
    sends, receives = exchange.sends, exchange.receives
    edges = np.column_stack((sends.source, sends.label, sends.target, receives.label))
    return Uses(cohort, table[:, 0], table[:, 1], table[:, 2], edges)


def _refine(part: Int64s, uses: Uses) -> Int64s:
    """Divide parts by who takes part in what their ranks do."""
    source, sent, target, received = uses.edges.T
    lines = np.concatenate(
        (
            _lines(uses.group_rank, 0, uses.group_label, meetings(part, uses)[uses.group], 0),
            _lines(source, 1, sent, part[target], received),
            _lines(target, 2, received, part[source], sent),
        )
    )
    lines = lines[np.lexsort((lines[:, 2], lines[:, 1], lines[:, 0]))]
    counts = np.bincount(lines[:, 0], minlength=len(part))
    stops = np.cumsum(counts)
    said = np.ascontiguousarray(lines[:, 1:])
    data, width = said.tobytes(), said.shape[1] * said.itemsize
    numbers: dict[tuple[int, bytes], int] = {}
    return np.array(
        [
            numbers.setdefault((own, data[width * (stop - count) : width * stop]), len(numbers))
            for own, count, stop in zip(part.tolist(), counts.tolist(), stops.tolist(), strict=True)
        ],
        dtype=np.int64,
    )


def _lines(rank: Int64s, what: int, label: Int64s, other: Int64s, at: Int64s | int) -> Int64s:
    count = len(rank)
    return np.column_stack((rank, np.full(count, what), label, other, np.broadcast_to(at, count)))


def meetings(part: Int64s, uses: Uses) -> Int64s:
    """For each group a number, equal for groups in which the same parts take the same part."""
    pairs = participants(part, uses)
    counts = np.bincount(pairs[:, 0])
    stops = np.cumsum(counts)
    said = np.ascontiguousarray(pairs[:, 1:])
    data, width = said.tobytes(), said.shape[1] * said.itemsize
    numbers: dict[bytes, int] = {}
    return np.array(
        [
            numbers.setdefault(data[width * (stop - count) : width * stop], len(numbers))
            for count, stop in zip(counts.tolist(), stops.tolist(), strict=True)
        ],
        dtype=np.int64,
    )


def participants(part: Int64s, uses: Uses) -> Int64s:
    """(group, part, label) of all who take part, each once, sorted."""
    table = np.column_stack((uses.group, part[uses.group_rank], uses.group_label))
    table = table[np.lexsort((table[:, 2], table[:, 1], table[:, 0]))]
    new = np.ones(len(table), dtype=np.bool_)
    new[1:] = (table[1:] != table[:-1]).any(axis=1)
    return table[new]
