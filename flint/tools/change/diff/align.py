"""Which entries of two sequences are the same: an alignment that insertions do not disturb.

Tokens that stand once in both sequences are anchors, if they come in one order in both (patience
diff); between two anchors the search goes on with what is unique there, and then with `difflib`.
What is left is tried with the next, coarser tokens, and at last without an order: moved entries.

Reference: B. Cohen, "Patience Diff Advantages", 2010.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from difflib import SequenceMatcher

Pair = tuple[int, int]
#: A part of both sequences, as (start, stop) of each.
_Gap = tuple[int, int, int, int]
#: Cells of a gap that `difflib` may compare: its time grows with them.
_MOST_CELLS = 250_000


def align(levels: Sequence[tuple[Sequence[Hashable], Sequence[Hashable]]]) -> list[Pair]:
    """Pairs of entries, in the order of the first sequence; each entry is in one pair at most.

    Each level has the tokens of both sequences, the finest level first.
    """
    first, second = levels[0]
    gaps: list[_Gap] = [(0, len(first), 0, len(second))]
    found: list[Pair] = []
    for a, b in levels:
        left = []
        for gap in gaps:
            mine = list(_aligned(a, b, gap))
            found += mine
            left += _between(gap, mine)
        gaps = left
    found += _moved(levels, found)
    return sorted(found)


def _aligned(a: Sequence[Hashable], b: Sequence[Hashable], gap: _Gap) -> Iterator[Pair]:
    """Pairs of equal tokens within a gap, in order in both."""
    pending = [gap]
    while pending:
        part = pending.pop()
        start, stop, begin, end = part
        while start < stop and begin < end and a[start] == b[begin]:
            yield start, begin
            start, begin = start + 1, begin + 1
        while start < stop and begin < end and a[stop - 1] == b[end - 1]:
            stop, end = stop - 1, end - 1
            yield stop, end
        part = (start, stop, begin, end)
        if start == stop or begin == end:
            continue
        anchors = _anchors(a, b, part)
        if not anchors and (stop - start) * (end - begin) > _MOST_CELLS:
            anchors = _anchors(_numbered(a, start, stop), _numbered(b, begin, end), part)
        if anchors:
            yield from anchors
            pending += _between(part, anchors)
        else:
            matcher = SequenceMatcher(None, a[start:stop], b[begin:end], autojunk=False)
            for block in matcher.get_matching_blocks():
                for offset in range(block.size):
                    yield start + block.a + offset, begin + block.b + offset


def _anchors(a: Sequence[Hashable], b: Sequence[Hashable], gap: _Gap) -> list[Pair]:
    """Tokens that stand once on both sides, as many as are in one order on both."""
    start, stop, begin, end = gap
    mine, theirs = _once(a, start, stop), _once(b, begin, end)
    pairs = sorted((i, theirs[token]) for token, i in mine.items() if token in theirs)
    return _longest_rising(pairs)


def _once(tokens: Sequence[Hashable], start: int, stop: int) -> dict[Hashable, int]:
    counts = Counter(tokens[start:stop])
    return {tokens[i]: i for i in range(start, stop) if counts[tokens[i]] == 1}


def _numbered(tokens: Sequence[Hashable], start: int, stop: int) -> list[Hashable]:
    """Tokens that are told apart by how often they stood before: unique, where nothing else is."""
    seen: Counter[Hashable] = Counter()
    found: list[Hashable] = [None] * start
    for token in tokens[start:stop]:
        found.append((token, seen[token]))
        seen[token] += 1
    return found


def _longest_rising(pairs: Sequence[Pair]) -> list[Pair]:
    """The longest part of pairs, sorted by the first numbers, in which the second rise, too."""
    ends: list[int] = []  # the smallest last number of a rising part of each length
    at: list[int] = []
    before: list[int] = []
    for number, (_, j) in enumerate(pairs):
        length = bisect_left(ends, j)
        ends[length : length + 1] = [j]
        at[length : length + 1] = [number]
        before.append(at[length - 1] if length else -1)
    found: list[Pair] = []
    number = at[-1] if at else -1
    while number >= 0:
        found.append(pairs[number])
        number = before[number]
    return found[::-1]


def _between(gap: _Gap, pairs: Sequence[Pair]) -> list[_Gap]:
    """What of a gap lies between pairs, where both sides have something."""
    start, stop, begin, end = gap
    left = []
    for i, j in (*sorted(pairs), (stop, end)):
        if i > start and j > begin:
            left.append((start, i, begin, j))
        start, begin = i + 1, j + 1
    return left


def _moved(
    levels: Sequence[tuple[Sequence[Hashable], Sequence[Hashable]]], found: Sequence[Pair]
) -> list[Pair]:
    """Pairs of equal tokens of what is in no pair yet, wherever they are; not by coarsest tokens."""
    mine, theirs = {i for i, _ in found}, {j for _, j in found}
    moved: list[Pair] = []
    for a, b in levels[:-1] or levels:
        waiting: dict[Hashable, list[int]] = {}
        for j in range(len(b)):
            if j not in theirs:
                waiting.setdefault(b[j], []).append(j)
        for i in range(len(a)):
            if i not in mine and waiting.get(a[i]):
                j = waiting[a[i]].pop(0)
                moved.append((i, j))
                mine.add(i)
                theirs.add(j)
    return moved
