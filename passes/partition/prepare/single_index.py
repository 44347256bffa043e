"""Lookups and writes at one place: slices, as XLA's compilers write them before they partition.

`x.at[0:3].set(u)` is a scatter of one index. XLA expands gathers and scatters that have one
(`GatherExpander`, `ScatterExpander`) to a slice or an update of a slice, which its partitioner knows
more of: an update that lies in one shard moves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from flint.passes.mlir import operations_named, shape_of
from flint.passes.partition.prepare.index_lines import line_of
from flint.passes.partition.prepare.lookups import Dimensions, columns

#: Where a slice begins in each dimension: a number, or a scalar of the program.
Starts = Sequence["int | Any"]


def expand_single_indices(module: Any) -> None:
    """Rewrite gathers and scatters of one index, and slices at known places, in place."""
    from jaxlib.mlir import ir

    for op in operations_named(module, "stablehlo.dynamic_slice"):
        with ir.InsertionPoint(op), op.location:
            made = _fixed(op)
        if made is not None:
            op.results[0].replace_all_uses_with(made)
            op.erase()
    for name, rewrite in (("stablehlo.gather", _gather), ("stablehlo.scatter", _scatter)):
        for op in operations_named(module, name):
            if not _has_one_index(op):
                continue
            with ir.InsertionPoint(op), op.location:
                made = rewrite(op, Dimensions.of(op))
            if made is not None:
                op.results[0].replace_all_uses_with(made)
                op.erase()


def _fixed(op: Any) -> Any | None:
    """The slice that one at a place known before it runs is; None for others."""
    places = [line_of(v) for v in list(op.operands)[1:]]
    value, sizes = op.operands[0], shape_of(op.results[0])
    found = []
    for place, whole, size in zip(places, shape_of(value), sizes, strict=True):
        if whole == size:
            found.append(0)
        elif place is None or place.step:
            return None
        else:
            found.append(min(max(int(place.start), 0), whole - size))
    return _slice(value, found, sizes)


def _has_one_index(op: Any) -> bool:
    if len(op.results) != 1:
        return False
    numbers = Dimensions.of(op)
    sizes = [size for d, size in enumerate(shape_of(op.operands[1])) if d != numbers.vector_dim]
    return math.prod(sizes) == 1 and bool(numbers.index_map) and not numbers.explicit


def _gather(op: Any, numbers: Dimensions) -> Any:
    """A slice, which begins early enough to end in the table."""
    table = op.operands[0]
    starts = _starts(op, numbers)
    most = [size - w for size, w in zip(shape_of(table), numbers.window, strict=True)]
    known = [
        min(max(s, 0), m) if isinstance(s, int) else s for s, m in zip(starts, most, strict=True)
    ]
    return _reshaped(_slice(table, known, numbers.window), op.results[0].type)


def _scatter(op: Any, numbers: Dimensions) -> Any | None:
    """An update of a slice. One that would reach outside writes nothing."""
    combine = _combination(op.regions[0].blocks[0])
    if combine is None:
        return None
    table, starts = op.operands[0], _starts(op, numbers)
    most = [size - w for size, w in zip(shape_of(table), numbers.window, strict=True)]
    if any(isinstance(s, int) and not 0 <= s <= m for s, m in zip(starts, most, strict=True)):
        return None
    new = _reshaped(op.operands[2], _like(table, numbers.window))
    inside = _are_inside(starts, most)
    if inside is None and _stays_unknown(starts, most):
        inside = _some_truth()
    if combine or inside is not None:
        old = _slice(table, starts, numbers.window)
        new = _made(combine, [old, new], old.type) if combine else new
        if inside is not None:
            mask = _broadcast(inside, numbers.window)
            new = _made("stablehlo.select", [mask, new, old], old.type)
    scalars = [_scalar(s, op.operands[1]) for s in starts]
    return _made("stablehlo.dynamic_update_slice", [table, new, *scalars], table.type)


def _combination(block: Any) -> str | None:
    """The operation that combines old and new, "" if the new replaces the old, None if unknown."""
    operations = [o.operation for o in block.operations]
    old, new = block.arguments
    returned = list(operations[-1].operands)
    if returned == [new]:
        return ""
    if len(operations) != 2 or len(operations[0].operands) != 2:
        return None
    is_both = list(operations[0].operands) in ([old, new], [new, old])
    is_plain = operations[0].name in _COMMUTATIVE and returned == list(operations[0].results)
    return str(operations[0].name) if is_both and is_plain else None


_COMMUTATIVE = frozenset(f"stablehlo.{n}" for n in ("add", "multiply", "minimum", "maximum"))


def _starts(op: Any, numbers: Dimensions) -> Starts:
    """Where the slice begins, numbers where they are known."""
    indices = op.operands[1]
    found: list[int | Any] = [0] * len(numbers.window)
    for number, (dim, line) in enumerate(
        zip(numbers.index_map, columns(indices, numbers), strict=True)
    ):
        if line is not None and not line.step:
            found[dim] = int(line.start)
        else:
            found[dim] = _column(indices, number, numbers.vector_dim)
    return found


def _column(indices: Any, number: int, vector_dim: int) -> Any:
    """One number of the only index, as a scalar."""
    shape = shape_of(indices)
    begin = [number if d == vector_dim else 0 for d in range(len(shape))]
    one = _slice(indices, begin, [1] * len(shape)) if shape else indices
    return _reshaped(one, _like(indices, []))


def _are_inside(starts: Starts, most: Sequence[int]) -> Any | None:
    """Whether a slice lies in the table: a truth of the program, or None where it is known to."""
    found = None
    for start, end in zip(starts, most, strict=True):
        if isinstance(start, int):
            continue
        for direction, bound in (("GE", 0), ("LE", end)):
            value = _compared(direction, start, bound)
            found = value if found is None else _made("stablehlo.and", [found, value], value.type)
    return found


def _stays_unknown(starts: Starts, most: Sequence[int]) -> bool:
    """Whether XLA fails to see that numbers that it knows lie in the table.

    It writes a constant that increases evenly from zero as a multiple of an iota, which it does not
    fold any more.
    """

    def is_iota(numbers: Sequence[int]) -> bool:
        return all(n == d * numbers[1] for d, n in enumerate(numbers))

    return len(most) > 1 and any(n[1] > 0 and is_iota(n) for n in (list(starts), list(most)))


def _some_truth() -> Any:
    """A truth that nothing folds."""
    from jaxlib.mlir import ir

    number = ir.IntegerType.get_signless(32)
    iota = _made(
        "stablehlo.iota",
        [],
        ir.RankedTensorType.get([1], number),
        {"iota_dimension": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 0)},
    )
    return _compared("GE", _reshaped(iota, ir.RankedTensorType.get([], number)), 0)


def _compared(direction: str, value: Any, bound: int) -> Any:
    from jaxlib.mlir import ir

    truth = ir.RankedTensorType.get([], ir.IntegerType.get_signless(1))
    attribute = ir.Attribute.parse(f"#stablehlo<comparison_direction {direction}>")
    operands = [value, _scalar(bound, value)]
    return _made("stablehlo.compare", operands, truth, {"comparison_direction": attribute})


# operations ---------------------------------------------------------------------------------------


def _slice(value: Any, starts: Starts, sizes: Sequence[int]) -> Any:
    from jaxlib.mlir import ir

    if all(isinstance(s, int) for s in starts):
        places = {
            "start_indices": ir.DenseI64ArrayAttr.get(list(starts)),
            "limit_indices": ir.DenseI64ArrayAttr.get(
                [s + n for s, n in zip(starts, sizes, strict=True)]
            ),
            "strides": ir.DenseI64ArrayAttr.get([1] * len(sizes)),
        }
        return _made("stablehlo.slice", [value], _like(value, sizes), places)
    like = next(s for s in starts if not isinstance(s, int))
    return _made(
        "stablehlo.dynamic_slice",
        [value, *(_scalar(s, like) for s in starts)],
        _like(value, sizes),
        {"slice_sizes": ir.DenseI64ArrayAttr.get(list(sizes))},
    )


def _scalar(start: int | Any, like: Any) -> Any:
    """A scalar of the type of another value's elements."""
    from jaxlib.mlir import ir

    if not isinstance(start, int):
        return start
    kind = _like(like, [])
    held = ir.DenseElementsAttr.get_splat(kind, ir.IntegerAttr.get(kind.element_type, start))
    return _made("stablehlo.constant", [], kind, {"value": held})


def _reshaped(value: Any, kind: Any) -> Any:
    return value if value.type == kind else _made("stablehlo.reshape", [value], kind)


def _broadcast(scalar: Any, shape: Sequence[int]) -> Any:
    from jaxlib.mlir import ir

    dimensions = {"broadcast_dimensions": ir.DenseI64ArrayAttr.get([])}
    return _made("stablehlo.broadcast_in_dim", [scalar], _like(scalar, shape), dimensions)


def _made(name: str, operands: list[Any], kind: Any, attributes: Any = None) -> Any:
    from jaxlib.mlir import ir

    return ir.Operation.create(
        name, results=[kind], operands=operands, attributes=attributes or {}
    ).result


def _like(value: Any, shape: Sequence[int]) -> Any:
    from jaxlib.mlir import ir

    return ir.RankedTensorType.get(list(shape), ir.RankedTensorType(value.type).element_type)
