"""Writes at one place: updates of a slice, as XLA's compilers write them before they partition.

`x.at[0:3].set(u)` is a scatter of one index, and `ScatterExpander` makes it the update of a slice, which
XLA's partitioner knows more of: an update that lies in one shard moves nothing. Its compiler for CPUs
expands all scatters or none, so this is done here, in the same operations: what is simplified later
depends on them.
"""

from __future__ import annotations

import math
from typing import Any, Final

from flint.passes.mlir import operations_named, shape_of

_COMMUTATIVE: Final = frozenset(f"stablehlo.{n}" for n in ("add", "multiply", "minimum", "maximum"))


def expand_single_scatters(module: Any) -> None:
    """Rewrite every scatter of one index, in place."""
    from jaxlib.mlir import ir

    for op in operations_named(module, "stablehlo.scatter"):
        combine = _combination(op.regions[0].blocks[0]) if len(op.results) == 1 else None
        if combine is not None and _has_one_index(op):
            with ir.InsertionPoint(op), op.location:
                op.results[0].replace_all_uses_with(_updated(op, combine))
            op.erase()


def _numbers(op: Any) -> Any:
    from jaxlib.mlir.dialects import stablehlo

    return stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])


def _has_one_index(op: Any) -> bool:
    numbers = _numbers(op)
    sizes = [n for d, n in enumerate(shape_of(op.operands[1])) if d != numbers.index_vector_dim]
    return math.prod(sizes) == 1 and not list(numbers.input_batching_dims)


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


def _updated(op: Any, combine: str) -> Any:
    """The table with the update in its place. An update that would reach outside writes nothing."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    table, _, updates = op.operands
    window = _window(op)
    starts = _starts(op, len(window))
    scalars = [_reshaped(_part(starts, d), ()) for d in range(len(window))]
    new = _reshaped(updates, window)
    old = stablehlo.dynamic_slice(table, scalars, window)
    if combine:
        new = ir.Operation.create(combine, [old.type], [old, new]).result
    inside = _is_inside(starts, [n - w for n, w in zip(shape_of(table), window, strict=True)])
    mask = stablehlo.broadcast_in_dim(_like(inside, window), inside, [])
    return stablehlo.dynamic_update_slice(table, stablehlo.select(mask, new, old), scalars)


def _window(op: Any) -> tuple[int, ...]:
    """How many elements of each dimension of the table the update has."""
    numbers, updates = _numbers(op), shape_of(op.operands[2])
    left = [updates[d] for d in numbers.update_window_dims]
    single = set(numbers.inserted_window_dims)
    return tuple(1 if d in single else left.pop(0) for d in range(len(shape_of(op.operands[0]))))


def _starts(op: Any, rank: int) -> Any:
    """Where the update begins in each dimension of the table, as one vector."""
    from jaxlib.mlir.dialects import stablehlo

    given = list(_numbers(op).scattered_dims_to_operand_dims)
    vector = _reshaped(op.operands[1], (len(given),))
    parts = [
        _part(vector, given.index(d)) if d in given else _filled(vector, (1,), 0)
        for d in range(rank)
    ]
    return stablehlo.concatenate(parts, 0) if rank > 1 else parts[0]


def _is_inside(starts: Any, most: list[int]) -> Any:
    """Whether all starts are between 0 and `most`, as a scalar."""
    import numpy as np
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    kind = ir.RankedTensorType(starts.type)
    width = kind.element_type.width
    held = np.array(most).astype(f"int{width}" if width > 1 else bool)
    last = stablehlo.constant(ir.DenseElementsAttr.get(held, type=kind.element_type))
    above, below = (
        ir.Attribute.parse(f"#stablehlo<comparison_direction {name}>") for name in ("LE", "GE")
    )
    both = stablehlo.and_(
        stablehlo.compare(_filled(starts, shape_of(starts), 0), starts, above),
        stablehlo.compare(last, starts, below),
    )
    true = ir.DenseElementsAttr.get_splat(_like(both, ()), ir.BoolAttr.get(True))
    reduced = stablehlo.ReduceOp([_like(both, ())], [both], [stablehlo.constant(true)], [0])
    block = reduced.regions[0].blocks.append(_like(both, ()), _like(both, ()))
    with ir.InsertionPoint(block):
        stablehlo.return_([stablehlo.and_(*block.arguments)])
    return reduced.results[0]


def _part(vector: Any, number: int) -> Any:
    from jaxlib.mlir.dialects import stablehlo

    return stablehlo.slice(vector, [number], [number + 1], [1])


def _filled(like: Any, shape: tuple[int, ...], number: int) -> Any:
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    kind = _like(like, shape)
    held = ir.IntegerAttr.get(kind.element_type, number)
    return stablehlo.constant(ir.DenseElementsAttr.get_splat(kind, held))


def _reshaped(value: Any, shape: tuple[int, ...]) -> Any:
    from jaxlib.mlir.dialects import stablehlo

    return stablehlo.reshape(_like(value, shape), value)


def _like(value: Any, shape: tuple[int, ...]) -> Any:
    from jaxlib.mlir import ir

    return ir.RankedTensorType.get(list(shape), ir.RankedTensorType(value.type).element_type)
