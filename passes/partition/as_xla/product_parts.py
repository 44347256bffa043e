"""Tensors of a product in a group of devices, and how XLA's partitioner lines up their parts.

Axes are taken apart into prime factors, so that devices of one group can be named by those of
another of the same size.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from flint.passes.partition.as_xla.layouts import Axes, Layout, axes_of, count

#: Axes of each factor; of one that is not here, none.
Places = dict[int, Axes]


@dataclass(frozen=True)
class Part:
    """A tensor in a group: the factor, size and axes there of each dimension, bits of an element."""

    factors: tuple[int, ...]
    sizes: tuple[int, ...]
    axes: Layout
    bits: int

    @property
    def places(self) -> Places:
        """Axes of the factors that have any."""
        return {f: axes for f, axes in zip(self.factors, self.axes, strict=True) if axes}

    @property
    def devices(self) -> int:
        """How many parts there are."""
        return count(axes_of(self.axes))

    @property
    def elements(self) -> int:
        """Of the whole tensor in the group."""
        return math.prod(self.sizes)

    @property
    def part_bits(self) -> int:
        """Size of one device's part."""
        both = zip(self.sizes, self.axes, strict=True)
        return self.bits * math.prod(-(-size // count(axes)) for size, axes in both)

    def count(self, factors: Iterable[int]) -> int:
        """Parts along some factors."""
        places = self.places
        return math.prod(count(places.get(f, ())) for f in factors)

    def at(self, factors: Collection[int]) -> Axes:
        """Axes of some factors, in the order of dimensions."""
        return tuple(a for f, axes in self.places.items() if f in factors for a in axes)

    def without(self, factors: Collection[int]) -> Places:
        """Axes of the other factors."""
        return {f: axes for f, axes in self.places.items() if f not in factors}

    def moved(self, places: Mapping[int, Axes]) -> Part:
        """The tensor with these axes, and no other."""
        return replace(self, axes=tuple(places.get(f, ()) for f in self.factors))

    def inside(self, places: Places, held: Collection[int]) -> Part:
        """The tensor of one of the groups that `held` factors make, divided there as `places` says."""
        parts = self.places
        sizes = tuple(
            -(-size // count(parts.get(f, ()))) if f in held else size
            for f, size in zip(self.factors, self.sizes, strict=True)
        )
        return replace(self.moved(places), sizes=sizes)

    def listing(self, group: Axes, own: Collection[tuple[str, int, int]]) -> Axes:
        """Axes of a group that are not `own`, in the order in which XLA numbers its devices."""
        used = [a for a in axes_of(self.axes) if a not in own]
        return (*used, *(a for a in group if a not in own and a not in used))


def aligned(
    part: Part, own: Axes, group: Axes, reference: Part, held: Axes, keep: Places
) -> Places:
    """The axes `keep` of a part in groups along `own` axes, when its groups become `held`.

    Groups of the same devices stay. Else the devices of each take the places of the reference's,
    in its order.
    """
    if set(own) == set(held):
        return keep
    mine, theirs = part.moved(keep).listing(group, own), reference.listing(group, held)
    if [size for *_, size in mine] != [size for *_, size in theirs]:
        return {f: left for f, a in keep.items() if (left := tuple(x for x in a if x not in held))}
    names = dict(zip(mine, theirs, strict=True))
    return {f: tuple(names[a] for a in axes) for f, axes in keep.items()}


def matching_factors(part: Part, group: Axes, held: Axes) -> frozenset[int] | None:
    """The factors of a part that make the very groups along `held` axes, if any do.

    XLA takes dimensions on which the first two devices of a group are at the same place, copies
    counting as one more dimension.
    """
    if not part.places:
        return None
    rest = tuple(a for a in group if a not in held)
    copies = tuple(a for a in group if a not in axes_of(part.axes))
    every = {**part.places, -1: copies}
    found = {f: axes for f, axes in every.items() if not rest or rest[-1] not in axes}
    if {a for axes in found.values() for a in axes} != set(held):
        return None
    return frozenset(found)
