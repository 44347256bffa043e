"""How XLA's partitioner settles a product whose tensors want one mesh axis for two things.

It looks for dimensions that tensors agree on, settles these, and goes on in the groups of devices
that are left (`PartitionDot` in xla/service/spmd/dot_handler.cc). First as far as no operand changes
places for it, then with operands moved, in this order:

1. All devices are on one kind of dimension: a batch that operands share; a sum; dimensions that the
   result shares with one operand. The other operand follows, or is gathered.
2. Batch dimensions that an operand and the result divide into as many parts.
3. Dimensions of one operand alone that the result divides into as many parts. Where both operands
   have such, the other one is smaller, and gives up what it has on these devices.
4. Summed dimensions that both divide into as many parts: a sum over these devices.

Else operands follow the result. It compares how many parts there are, not axes: an operand may go to
an idle axis of the same size (`product_parts.aligned`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from flint.passes.partition.as_xla.layouts import (
    Axes,
    Layout,
    axes_of,
    count,
    joined,
    leading,
    split,
)
from flint.passes.partition.as_xla.product_parts import Part, Places, aligned, matching_factors

#: Axes of lhs and rhs, and of the result as the product makes it.
Plan = tuple[Places, Places, Places]


@dataclass(frozen=True)
class Product:
    """Sizes of factors, the factors of the dimensions of lhs, rhs and result, bits of elements."""

    sizes: tuple[int, ...]
    factors: tuple[tuple[int, ...], ...]
    element_bits: tuple[int, ...]


def settled(product: Product, layouts: tuple[Layout, ...], axes: Axes) -> tuple[Layout, ...]:
    """Layouts of lhs, rhs and result in which no axis is wanted for two things.

    `axes` are those that devices of the product lie along.
    """
    used = {a for layout in layouts for a in axes_of(layout)}
    ends = {(name, end) for name, at, size in used for end in (at, at * size)}
    group = split(axes, ends)
    left, right, out = (
        Part(
            factors,
            tuple(product.sizes[f] for f in factors),
            tuple(split(dim, ends) for dim in layout),
            bits,
        )
        for factors, layout, bits in zip(
            product.factors, layouts, product.element_bits, strict=True
        )
    )
    plan = _planned(_Group(left, right, out, group))
    return tuple(
        tuple(joined(places.get(f, ())) for f in factors)
        for places, factors in zip(plan, product.factors, strict=True)
    )


@dataclass(frozen=True)
class _Group:
    """A product of the devices along some axes."""

    left: Part
    right: Part
    out: Part
    axes: Axes

    @property
    def devices(self) -> int:
        return count(self.axes)

    @property
    def batch(self) -> tuple[int, ...]:
        both = {*self.left.factors} & {*self.right.factors}
        return tuple(f for f in self.out.factors if f in both)

    @property
    def summed(self) -> tuple[int, ...]:
        gone = {*self.right.factors} - {*self.out.factors}
        return tuple(f for f in self.left.factors if f in gone)

    @property
    def alone(self) -> tuple[int, ...]:
        """Factors of lhs and result."""
        return tuple(f for f in self.left.factors if f not in self.right.factors)

    @property
    def swapped(self) -> _Group:
        return replace(self, left=self.right, right=self.left)

    def copies(self, part: Part) -> int:
        return self.devices // part.devices

    def rest(self, held: Axes) -> Axes:
        return tuple(a for a in self.axes if a not in held)


def _planned(group: _Group) -> Plan:
    for stays in (True, False):
        plan = (
            _on_all_devices(group, moves=False)
            or _by_batch(group, stays)
            or _by_one_operand(group, stays)
            or _by_sum(group, stays)
            or _of_whole_operands(group)
            or _on_all_devices(group, moves=True)
        )
        if plan is not None:
            return plan
    return _followed(group)


def _followed(group: _Group) -> Plan:
    """Operands are where the result is."""
    return _like(group.left, group.out), _like(group.right, group.out), group.out.places


def _like(part: Part, other: Part) -> Places:
    return {f: axes for f, axes in other.places.items() if f in part.factors}


def _of_whole_operands(group: _Group) -> Plan | None:
    if group.left.places or group.right.places or group.copies(group.out) == 1:
        return None
    return _followed(group)


# all devices on one kind of dimension -------------------------------------------------------------


def _on_all_devices(group: _Group, *, moves: bool) -> Plan | None:
    """`moves`: to where the result is, too."""
    out = group.out
    if out.places and group.copies(out) > 1:
        return None
    return (
        _shared_batch(group)
        or _whole_sum(group)
        or _one_operand_stays(group)
        or _swapped(_one_operand_stays(group.swapped))
        or (_at_result(group) if moves else None)
        or (None if out.places else _sum_of_larger(group))
    )


def _swapped(plan: Plan | None) -> Plan | None:
    return plan and (plan[1], plan[0], plan[2])


def _shared_batch(group: _Group) -> Plan | None:
    left, right, out = group.left, group.right, group.out
    full = [p for p in (left, right) if p.count(group.batch) == group.devices]
    if len(full) == 2 and left.places == right.places:
        return left.places, left.places, left.places
    if out.count(group.batch) == group.devices and any(p.places == out.places for p in full):
        return _followed(group)
    return None


def _whole_sum(group: _Group) -> Plan | None:
    left, right = group.left, group.right
    if not left.count(group.summed) == right.count(group.summed) == group.devices:
        return None
    smaller = left.elements * left.bits < right.elements * right.bits
    places = (right if smaller else left).places
    return places, places, {}


def _one_operand_stays(group: _Group) -> Plan | None:
    left, out = group.left, group.out
    if left.count(group.alone) == group.devices and left.places == out.places:
        return left.places, {}, out.places
    return None


def _at_result(group: _Group) -> Plan | None:
    kinds = group.batch, group.alone, group.swapped.alone
    is_whole = any(group.out.count(kind) == group.devices for kind in kinds)
    return _followed(group) if is_whole else None


def _sum_of_larger(group: _Group) -> Plan | None:
    for one, other in ((group.right, group.left), (group.left, group.right)):
        is_summed = one.count(group.summed) == group.devices and not other.places
        if is_summed and one.elements > group.out.elements:
            return one.places, one.places, {}
    return None


# some devices -------------------------------------------------------------------------------------


def _inside(
    group: _Group, held: Axes, parts: tuple[Places, ...], factors: tuple[Collection[int], ...]
) -> Plan:
    """The plan in each of the groups along `held` axes.

    `parts` are the axes of lhs, rhs and result there, `factors` those of which a group has a part.
    """
    tensors = group.left, group.right, group.out
    left, right, out = (t.inside(p, f) for t, p, f in zip(tensors, parts, factors, strict=True))
    return _planned(_Group(left, right, out, group.rest(held)))


def _by_batch(group: _Group, stays: bool) -> Plan | None:
    left, right, out, batch = group.left, group.right, group.out, group.batch
    parts = out.count(batch)
    if parts == 1 or parts not in (left.count(batch), right.count(batch)):
        return None
    if all(left.count([f]) == right.count([f]) for f in batch):
        is_left = left.part_bits > right.part_bits
        stay, move = (left, right) if is_left else (right, left)
        if not stays or {f: stay.places.get(f) for f in batch} == {
            f: move.places.get(f) for f in batch
        }:
            return _in_batches(group, stay, {f: a for f, a in stay.places.items() if f in batch})
    found = []
    for operand, other, alone in ((left, right, group.alone), (right, left, group.swapped.alone)):
        places = _at_batches(group, operand, other, alone)
        if places is None or (stays and operand.places and places != operand.places):
            return None
        found.append(operand.moved(places))
    moved = replace(group, left=found[0], right=found[1])
    return _in_batches(moved, out, {f: a for f, a in out.places.items() if f in batch})


def _in_batches(group: _Group, reference: Part, held: Places) -> Plan:
    """Every tensor is divided along its batch as `held` says, as the reference is."""
    axes = tuple(a for places in held.values() for a in places)
    tensors = group.left, group.right, group.out
    parts = tuple(
        aligned(t, t.at(group.batch), group.axes, reference, axes, t.without(group.batch))
        for t in tensors
    )
    stand = [t.moved({**p, **held}) for t, p in zip(tensors, parts, strict=True)]
    plan = _inside(_Group(stand[0], stand[1], stand[2], group.axes), axes, parts, (held,) * 3)
    left, right, made = ({**held, **places} for places in plan)
    return left, right, made


def _at_batches(group: _Group, operand: Part, other: Part, alone: Collection[int]) -> Places | None:
    """Where an operand is that the result's batches take devices from; None: XLA finds none."""
    held = {f: a for f, a in group.out.places.items() if f in group.batch}
    axes = group.out.at(group.batch)
    if not operand.places:
        return held
    ratio, left = divmod(count(axes), operand.count(group.batch))
    if left or not ratio:
        return None
    copies = group.copies(operand)
    summed = operand.count(group.summed)
    given: Collection[int] = ()
    if ratio > 1 and (copies == 1 or copies % ratio):
        if ratio == operand.count(alone) and (
            ratio != summed or summed == other.count(group.summed)
        ):
            given = alone
        elif ratio == summed:
            given = group.summed
        else:
            return None
    rest = operand.without((*group.batch, *given))
    own = _own(group, operand, given, ratio if not given else 1)
    return {**aligned(operand, own, group.axes, group.out, axes, rest), **held}


def _own(group: _Group, operand: Part, given: Collection[int], copies: int) -> Axes:
    """The devices of an operand that its new batches are on."""
    own = operand.at((*group.batch, *given))
    spare = tuple(a for a in group.axes if a not in axes_of(operand.axes))
    return own + (leading(spare, copies) or ())


def _by_one_operand(group: _Group, stays: bool) -> Plan | None:
    left, right, out = group.left, group.right, group.out
    mine, theirs = group.alone, group.swapped.alone
    both = [(part.count(f), out.count(f)) for part, f in ((left, mine), (right, theirs))]
    may = [given == wanted > 1 for given, wanted in both]
    if any(may):
        is_left = may[0] and (
            not may[1] or both[0][0] * right.part_bits < both[1][0] * left.part_bits
        )
        factors = mine if is_left else theirs
    elif some := [n for n, counts in enumerate(both) if min(counts) > 1]:
        is_left = some[0] == 0
        part, factors = (left, mine) if is_left else (right, theirs)
        factors = tuple(f for f in factors if part.count([f]) == out.count([f]) > 1)
    else:
        return None
    if not factors:
        return None
    if is_left:
        return _with_operand(group, factors, stays)
    return _swapped(_with_operand(group.swapped, factors, stays))


def _with_operand(group: _Group, factors: Collection[int], stays: bool) -> Plan | None:
    """In groups along `factors` of lhs and result."""
    left, right, out = group.left, group.right, group.out
    axes = out.at(factors)
    held = {f: a for f, a in out.places.items() if f in factors}
    rest = aligned(left, left.at(factors), group.axes, out, axes, left.without(factors))
    if stays and left.places != {**rest, **held}:
        return None
    other = _given_up(group, factors)
    if other is None and right.places:
        expected = right.moved(_expected(group))
        other = _given_up(replace(group, right=expected), factors)
    inner = rest, other or {}, out.without(factors)
    moved = replace(group, left=left.moved({**rest, **held}))
    plan = _inside(moved, axes, inner, (factors, (), factors))
    return {**held, **plan[0]}, plan[1], {**held, **plan[2]}


def _expected(group: _Group) -> Places:
    """Where the result and lhs have dimensions of rhs."""
    wanted = _like(group.right, group.out)
    used = {a for axes in wanted.values() for a in axes}
    for f, axes in group.left.places.items():
        if f in group.right.factors and f not in wanted and not used & set(axes):
            wanted[f] = axes
    return wanted


def _given_up(group: _Group, factors: Collection[int]) -> Places | None:
    """What rhs has in groups along `factors` of lhs and result; None: XLA finds no dimensions."""
    left, right, out, axes = group.left, group.right, group.out, group.out.at(factors)
    copies, parts = group.copies(right), count(axes)
    if not right.places:
        return None
    if copies > 1 and copies % parts == 0:
        return _free_copies(group, axes)
    alone, summed = group.swapped.alone, group.summed
    may_sum = right.count(summed) == parts and right.count(alone) == out.count(alone)
    may_alone = right.count(alone) == parts and left.count(summed) == right.count(summed)
    found: Collection[int] | None = matching_factors(right, group.axes, axes)
    if found is None and may_sum and (not may_alone or right.part_bits <= out.part_bits):
        found = summed
    elif found is None and may_alone:
        found = alone
    if found is None:
        return None
    return aligned(right, right.at(found), group.axes, out, axes, right.without(found))


def _free_copies(group: _Group, axes: Axes) -> Places:
    """Where rhs is so that devices along `axes` have copies of it."""
    right = group.right
    spare = tuple(a for a in group.axes if a not in axes_of(right.axes))
    if set(axes) <= set(spare):
        return right.places
    for f, held in reversed(right.places.items()):
        if count(held) % count(axes) == 0 and set(axes) <= set(held):
            return {**right.places, f: spare}
    own = leading(spare, count(axes)) or ()
    return aligned(right, own, group.axes, group.out, axes, right.places)


def _by_sum(group: _Group, stays: bool) -> Plan | None:
    left, right, summed = group.left, group.right, group.summed
    if left.count(summed) == 1 or right.count(summed) == 1:
        return None
    found = None
    if left.count(summed) == right.count(summed):
        found = _summed_over(group, summed, stays)
    alike = tuple(f for f in summed if left.count([f]) == right.count([f]) > 1)
    return found or (_summed_over(group, alike, stays) if alike else None)


def _summed_over(group: _Group, factors: Collection[int], stays: bool) -> Plan | None:
    left, right = group.left, group.right
    is_left = left.part_bits > right.part_bits
    stay, move = (left, right) if is_left else (right, left)
    axes = stay.at(factors)
    held = {f: a for f, a in stay.places.items() if f in factors}
    rest = aligned(move, move.at(factors), group.axes, stay, axes, move.without(factors))
    if stays and move.places != {**rest, **held}:
        return None
    kept = stay.without(factors)
    left_places, right_places = (kept, rest) if is_left else (rest, kept)
    lhs, rhs = left.moved({**left_places, **held}), right.moved({**right_places, **held})
    out, cut = _of_sum(replace(group, left=lhs, right=rhs), factors, axes)
    inner = left_places, right_places, out
    plan = _inside(replace(group, left=lhs, right=rhs), axes, inner, (factors, factors, cut))
    return {**held, **plan[0]}, {**held, **plan[1]}, plan[2]


def _of_sum(group: _Group, factors: Collection[int], axes: Axes) -> tuple[Places, Collection[int]]:
    """Axes of the result in groups that add up along `axes`, and the factors that it is cut along."""
    out, parts = group.out, count(axes)

    def has_copies(part: Part) -> bool:
        copies = group.copies(part)
        return bool(part.places) and copies > 1 and copies % parts == 0

    if out.places and not has_copies(out):
        out = _operands_part(group, factors)
    if has_copies(out):
        spare = tuple(a for a in group.axes if a not in axes_of(out.axes))
        own = leading(spare, parts) or ()
        return aligned(out, own, group.axes, group.left, axes, out.places), ()
    found = matching_factors(out, group.axes, axes)
    if found is None and out.places:
        kinds = group.alone, group.swapped.alone, group.batch
        found = next((frozenset(k) for k in kinds if out.count(k) == parts), None)
    if found is None:
        return {}, ()
    own = out.at(found)
    return aligned(out, own, group.axes, group.left, axes, out.without(found)), found


def _operands_part(group: _Group, factors: Collection[int]) -> Part:
    """The result as the one operand that is divided otherwise, too, divides it, if that is coarser."""
    divided = [p for p in (group.left, group.right) if p.without(factors)]
    if len(divided) != 1:
        return group.out
    places = {f: a for f, a in divided[0].places.items() if f in group.out.factors}
    mine = group.out.places
    is_coarser = all(mine.get(f, ())[: len(a)] == a for f, a in places.items())
    return group.out.moved(places) if is_coarser else group.out
