"""Values that use the same memory at different times."""

from __future__ import annotations

from bisect import bisect_left, insort

#: From one moment to another, both included.
Interval = tuple[int, int]


class Storage:
    """Groups of values, each with one piece of memory and the moments at which it is needed.

    Value v needs `size[v]` bytes during `intervals[v]`. A group with a value of `kept` is only
    read.
    """

    def __init__(self, size: list[int], intervals: list[Interval], kept: list[bool]) -> None:
        self.size = size
        self._kept = kept
        self._busy = [[interval] for interval in intervals]
        self._reserved = [end for _, end in intervals]
        self._parent = list(range(len(size)))

    def root(self, value: int) -> int:
        """The value that stands for its group."""
        parent = self._parent
        while parent[value] != value:
            parent[value] = parent[parent[value]]
            value = parent[value]
        return value

    def share(self, value: int, other: int, *, resize: bool = False, apart: bool = False) -> bool:
        """Put two groups into one memory if they are never needed at once; whether they are.

        The last moment of one may be the first of the other where callers know that what happens
        then may write over what it reads; `apart` says that it may not. Sizes are equal, unless
        `resize` takes the larger.
        """
        a, b = self.root(value), self.root(other)
        if a == b:
            return True
        if self._kept[a] or self._kept[b] or (self.size[a] != self.size[b] and not resize):
            return False
        few, many = sorted((self._busy[a], self._busy[b]), key=len)
        near = int(apart)
        if any(_meets(many, (start - near, end + near)) for start, end in few):
            return False
        for interval in few:
            _insert(many, interval)
        self._parent[b] = a
        self._busy[a], self._busy[b] = many, []
        self._reserved[a] = max(self._reserved[a], self._reserved[b])
        self.size[a] = max(self.size[a], self.size[b])
        return True

    def join(self, value: int, other: int) -> None:
        """Put two groups into the memory of `value`, of its size, whatever reads them when."""
        a, b = self.root(value), self.root(other)
        if a == b:
            return
        busy = self._busy[a] + self._busy[b]
        self._busy[a] = [(min(start for start, _ in busy), max(end for _, end in busy))]
        self._reserved[a] = max(self._reserved[a], self._reserved[b])
        self._parent[b], self._busy[b] = a, []

    def absorb(self, value: int, other: int) -> bool:
        """Put part of a value into another group's memory, and make the value smaller by it."""
        a, b = self.root(value), self.root(other)
        fits = a != b and not self._kept[b] and self.size[b] <= self.size[a]
        if not fits or any(_meets(self._busy[b], interval) for interval in self._busy[a]):
            return False
        for interval in self._busy[a]:
            _insert(self._busy[b], interval)
        self._reserved[b] = max(self._reserved[b], self._reserved[a])
        self.size[a] -= self.size[b]
        return True

    def reserve(self, value: int, until: int) -> None:
        """Keep the group's memory until a moment, whether it is needed then or not."""
        root = self.root(value)
        self._reserved[root] = max(self._reserved[root], until)

    def span(self, value: int) -> Interval:
        """The first and the last moment of the group."""
        root = self.root(value)
        return self._busy[root][0][0], max(self._busy[root][-1][1], self._reserved[root])


def _meets(busy: list[Interval], interval: Interval) -> bool:
    """Whether `interval` has more in common with the sorted `busy` than an end with a beginning."""
    start, end = interval
    at = bisect_left(busy, interval)
    if at < len(busy) and (busy[at][0] < end or busy[at][0] == start):
        return True
    return at > 0 and busy[at - 1][1] > start


def _insert(busy: list[Interval], interval: Interval) -> None:
    """Add an interval, joined with those that it touches: chains of updates stay short."""
    at = bisect_left(busy, interval)
    if at > 0 and busy[at - 1][1] == interval[0]:
        busy[at - 1] = (busy[at - 1][0], interval[1])
    else:
        insort(busy, interval)
