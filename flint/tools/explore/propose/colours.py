"""Dimensions that are sharded together: a union-find over the dimensions of all values of a program."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

#: A value by its dimensions: one node of the union-find each.
Dims: TypeAlias = tuple[int, ...]


@dataclass
class Colours:
    """Nodes are dimensions of values; those of one colour are sharded alike or not at all.

    `sizes` holds the length of each node.
    """

    sizes: list[int] = field(default_factory=list)
    _parent: list[int] = field(default_factory=list)

    def new(self, shape: Sequence[int]) -> Dims:
        """Nodes for the dimensions of a new value."""
        first = len(self.sizes)
        self.sizes += shape
        self._parent += range(first, len(self.sizes))
        return tuple(range(first, len(self.sizes)))

    def of(self, node: int) -> int:
        """The colour of a node: the first node of those that are like it."""
        parent = self._parent
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    def join(self, a: int, b: int) -> None:
        """Say that two dimensions are sharded alike. Dimensions of length 1 are never sharded."""
        if min(self.sizes[a], self.sizes[b]) > 1:
            a, b = sorted((self.of(a), self.of(b)))
            self._parent[b] = a

    def join_all(self, a: Dims, b: Dims) -> None:
        """Say it of two values of one shape."""
        for one, other in zip(a, b, strict=True):
            self.join(one, other)

    def join_where_equal(self, a: Dims, b: Dims) -> None:
        """Say it of those dimensions that are as long in both values."""
        for one, other in zip(a, b, strict=True):
            if self.sizes[one] == self.sizes[other]:
                self.join(one, other)

    def join_reshaped(self, a: Dims, b: Dims) -> None:
        """Of a reshape: in each group of dimensions with one product, the outermost ones.

        A dimension that is split keeps its shards in the outer part, one that is merged gets those of
        the outer one.
        """
        i = j = 0
        while i < len(a) and j < len(b):
            ends = [i + 1, j + 1]
            while ends[0] <= len(a) and ends[1] <= len(b):
                left = math.prod(self.sizes[n] for n in a[i : ends[0]])
                right = math.prod(self.sizes[n] for n in b[j : ends[1]])
                if left == right:
                    break
                ends[left > right] += 1
            outer = [next((n for n in part if self.sizes[n] > 1), None)
                     for part in (a[i : ends[0]], b[j : ends[1]])]  # fmt: skip
            if outer[0] is not None and outer[1] is not None:
                self.join(outer[0], outer[1])
            i, j = ends
