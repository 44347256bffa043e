"""Broadcasts in the form that XLA gives them before it propagates shardings.

Shardy visits reshapes before broadcasts, so that how a broadcast is written decides which of two
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
    for op in operations_named(module, "stablehlo.broadcast_in_dim"):
        _split(op)


def _split(op: Any) -> None:
    from jaxlib.mlir import ir

    operand, result = op.operands[0], op.results[0]
    before = tuple(ir.RankedTensorType(operand.type).shape)
    after = tuple(ir.RankedTensorType(result.type).shape)
    dims = [int(d) for d in op.attributes["broadcast_dimensions"]]
    if dims != sorted(dims) or not before:
        return
    with ir.InsertionPoint(op), op.location:
        if math.prod(before) == math.prod(after):
            replacement = _reshape(operand, after)
        else:
            kept = [i for i, d in enumerate(dims) if before[i] == after[d]]
            if len(kept) == len(before):
                return
            dropped = _reshape(operand, tuple(before[i] for i in kept))
            where = ir.DenseI64ArrayAttr.get([dims[i] for i in kept])
            replacement = ir.Operation.create(
                op.name,
                results=[result.type],
                operands=[dropped],
                attributes={"broadcast_dimensions": where},
            ).result
    result.replace_all_uses_with(replacement)
    op.erase()


def _reshape(value: Any, shape: tuple[int, ...]) -> Any:
    from jaxlib.mlir import ir

    element = ir.RankedTensorType(value.type).element_type
    return ir.Operation.create(
        "stablehlo.reshape", results=[ir.RankedTensorType.get(shape, element)], operands=[value]
    ).result
