"""Broadcasts as XLA writes them.

Propagation visits reshapes before broadcasts, so that how a broadcast is written decides which of two
shardings a value gets where the program does not say. XLA writes one that only adds dimensions of
size 1 as a reshape, and one that stretches dimensions of size 1 as a reshape that drops them and a
broadcast that puts them back (`XlaBuilder::BroadcastInDim`). So does this.
"""

from __future__ import annotations

import math
from typing import Any

from flint.passes.mlir import operations_named


def split_broadcasts(module: Any) -> None:
    """Rewrite every `stablehlo.broadcast_in_dim` of a module, in place."""
    from jaxlib.mlir import ir

    found: dict[tuple[Any, ...], _Split | None] = {}
    for op in operations_named(module, "stablehlo.broadcast_in_dim"):
        key = (op.operands[0].type, op.results[0].type, op.attributes[_DIMENSIONS])
        if key not in found:
            with ir.Location.unknown():
                found[key] = _split_of(*key)
        split = found[key]
        if split is not None:
            _rewrite(op, *split)


#: What a broadcast reshapes its operand to, and the dimensions of the broadcast that is left.
_Split = tuple[Any, Any | None]
_DIMENSIONS = "broadcast_dimensions"


def _split_of(operand: Any, result: Any, dimensions: Any) -> _Split | None:
    """How XLA writes a broadcast between two types; None: as it is."""
    from jaxlib.mlir import ir

    given = ir.RankedTensorType(operand)
    before, after = tuple(given.shape), tuple(ir.RankedTensorType(result).shape)
    dims = [int(d) for d in dimensions]
    if dims != sorted(dims) or not before:
        return None
    if math.prod(before) == math.prod(after):
        return ir.RankedTensorType.get(after, given.element_type), None
    kept = [i for i, d in enumerate(dims) if before[i] == after[d]]
    if len(kept) == len(before):
        return None
    dropped = ir.RankedTensorType.get([before[i] for i in kept], given.element_type)
    return dropped, ir.DenseI64ArrayAttr.get([dims[i] for i in kept])


def _rewrite(op: Any, reshaped: Any, dimensions: Any | None) -> None:
    from jaxlib.mlir import ir

    result = op.results[0]
    with ir.InsertionPoint(op), op.location:
        made = ir.Operation.create(
            "stablehlo.reshape", results=[reshaped], operands=[op.operands[0]]
        ).result
        if dimensions is not None:
            made = ir.Operation.create(
                op.name,
                results=[result.type],
                operands=[made],
                attributes={_DIMENSIONS: dimensions},
            ).result
    result.replace_all_uses_with(made)
    op.erase()
