"""Which calls of a measurement and of a capture are the same, by order, class and shape.

Calls are aligned by tokens that become coarser: what an operator is with its shape, type and FLOPs,
then without its type and FLOPs, then its kind and size, its name, and at last what it is alone. Out of
order only calls of one size are paired. Pairs of other sizes are told apart from those that are the
same. What is left on
both sides between two pairs is one operation that the two write differently (a norm as one operator
or as eight, a fused kernel) if their largest results have about one size and neither multiplies more
than the other.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from flint.tools.change.diff.align import Pair, align
from flint.tools.measure.comparison.units import ExecutedCall

#: Sizes of results, and FLOPs of products, of two forms of one operation differ by less.
_ALIKE = 2.0
#: Calls on one side that may be another form of what the other side has.
_MOST_IN_FORM = 64
#: FLOPs of equal products, and bytes of equal messages, differ by less: biases, paddings.
_SAME = 0.02
_PRODUCTS = ("gemm", "convolution", "attention", "attention_backward")


@dataclass(frozen=True)
class PairedForm:
    """Calls of both sides that do one thing in two ways."""

    measured: tuple[int, ...]
    captured: tuple[int, ...]


@dataclass(frozen=True)
class Pairing:
    """Numbers of units: pairs, other forms of one operation, and what only one side has.

    `resized` are pairs by order and class alone: their results, FLOPs or bytes are of other sizes.
    """

    pairs: tuple[Pair, ...]
    resized: tuple[Pair, ...]
    forms: tuple[PairedForm, ...]
    only_measured: tuple[int, ...]
    only_captured: tuple[int, ...]


def pair(measured: Sequence[ExecutedCall], captured: Sequence[ExecutedCall]) -> Pairing:
    """Match two steps."""
    levels = _levels(measured, captured)
    found = align(levels)
    in_order = {*_rising(found)}
    pairs = [
        (i, j)
        for i, j in found
        if (i, j) in in_order or measured[i].elements == captured[j].elements
    ]
    forms, alone = _forms(measured, captured, pairs)
    same = tuple((i, j) for i, j in pairs if is_same(measured[i], captured[j]))
    resized = tuple(sorted({*pairs} - {*same}))
    return Pairing(same, resized, tuple(forms), *alone)


def is_same(measured: ExecutedCall, captured: ExecutedCall) -> bool:
    """Whether two calls of one class have one size; of what has no known size, one name."""
    if measured.kind == "other":
        return measured.opcode == captured.opcode
    if measured.communicates:
        return _close(measured.bytes, captured.bytes)
    if measured.elements != captured.elements:
        return False
    return measured.kind not in _PRODUCTS or _close(measured.flops, captured.flops)


def _close(a: int, b: int) -> bool:
    return abs(a - b) <= _SAME * max(a, b)


def _levels(
    measured: Sequence[ExecutedCall], captured: Sequence[ExecutedCall]
) -> list[tuple[list[Hashable], list[Hashable]]]:
    """Tokens of both sides, the finest first. Scopes count where both sides have any."""
    scoped = all(any(u.scope for u in side) for side in (measured, captured))
    phased = all(any(u.phase for u in side) for side in (measured, captured))

    def tokens(units: Sequence[ExecutedCall]) -> list[list[Hashable]]:
        exact: list[Hashable] = [
            (u.kind, u.op, _shape(u), u.dtype, u.flops, u.bytes if u.communicates else 0)
            for u in units
        ]
        phases: list[Hashable] = [(t, u.phase) for t, u in zip(exact, units, strict=True)]
        scopes: list[Hashable] = [(t, u.scope) for t, u in zip(phases, units, strict=True)]
        sized: list[Hashable] = [(u.kind, u.op, u.elements) for u in units]
        kinds: list[Hashable] = [(u.kind, u.elements) for u in units]
        classes: list[Hashable] = [(u.kind, u.op) for u in units]
        names: list[Hashable] = [(u.opcode, u.communicates) for u in units]
        finest = [scopes] * scoped + [phases] * phased
        return [*finest, exact, sized, kinds, names, classes]

    return list(zip(tokens(measured), tokens(captured), strict=True))


def _shape(unit: ExecutedCall) -> tuple[int, ...]:
    """Without dimensions of one, and with the outer ones of a product as one: forms of a view."""
    shape = tuple(s for s in unit.shape if s != 1)
    if unit.kind == "gemm" and len(shape) > 1:
        return unit.elements // shape[-1], shape[-1]
    return shape


def _forms(
    measured: Sequence[ExecutedCall], captured: Sequence[ExecutedCall], pairs: Sequence[Pair]
) -> tuple[list[PairedForm], tuple[tuple[int, ...], tuple[int, ...]]]:
    """What lies on both sides between two pairs, if it may be the same; and all else."""
    taken = {i for i, _ in pairs}, {j for _, j in pairs}
    found: list[PairedForm] = []
    for i, j in _gaps(len(measured), len(captured), pairs):
        mine = tuple(n for n in i if n not in taken[0])
        theirs = tuple(n for n in j if n not in taken[1])
        if _alike([measured[n] for n in mine], [captured[n] for n in theirs]):
            found.append(PairedForm(mine, theirs))
    for form in found:
        taken[0].update(form.measured)
        taken[1].update(form.captured)
    left = tuple(n for n in range(len(measured)) if n not in taken[0])
    right = tuple(n for n in range(len(captured)) if n not in taken[1])
    return found, (left, right)


def _gaps(first: int, second: int, pairs: Sequence[Pair]) -> list[tuple[range, range]]:
    """Ranges of both sides between pairs that are in one order on both."""
    found: list[tuple[range, range]] = []
    i = j = 0
    for a, b in [*_rising(pairs), (first, second)]:
        if a > i and b > j:
            found.append((range(i, a), range(j, b)))
        i, j = a + 1, b + 1
    return found


def _rising(pairs: Sequence[Pair]) -> list[Pair]:
    """Without those that were moved: what comes after a later one is out of order."""
    least = [0] * len(pairs)
    low = 1 << 62
    for at in range(len(pairs) - 1, -1, -1):
        least[at] = low
        low = min(low, pairs[at][1])
    kept: list[Pair] = []
    for at, (a, b) in enumerate(pairs):
        if b < least[at] and (not kept or b > kept[-1][1]):
            kept.append((a, b))
    return kept


def _alike(measured: Sequence[ExecutedCall], captured: Sequence[ExecutedCall]) -> bool:
    if not measured or not captured or max(len(measured), len(captured)) > _MOST_IN_FORM:
        return False
    if any(u.communicates for u in (*measured, *captured)):
        return False
    sizes = [max(u.elements for u in side) for side in (measured, captured)]
    products = [sum(u.flops for u in s if u.kind in _PRODUCTS) for s in (measured, captured)]
    return _near(*sizes) and _near(*products)


def _near(a: int, b: int) -> bool:
    return a == b or (min(a, b) > 0 and max(a, b) <= _ALIKE * min(a, b))
