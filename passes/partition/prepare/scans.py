"""Running sums as windows: what JAX writes for CUDA since 0.12 in the form of older versions.

`jnp.cumsum` is `chlo.scan` there, for which Shardy has no rule: every sharding of its operand would
be gathered. A scan that combines its input with what it carries by one operation, such as addition,
is a `stablehlo.reduce_window` over all that came before, which is partitioned and priced.
"""

from __future__ import annotations

from typing import Any

from flint.passes.mlir import operations_named, shape_of


def scans_as_windows(module: Any) -> None:
    """Rewrite such scans of a module, in place; others stay, and are unpriced."""
    for op in operations_named(module, "chlo.scan"):
        combines, start = _combination(op), _start(op)
        if combines is not None and start is not None:
            _rewrite(op, combines, start)


def _combination(op: Any) -> str | None:
    """The operation by which one input and one carried value become both results.

    It has to be associative, as the scan says it is: a difference is no window.
    """
    from jaxlib.mlir import ir

    associative = "is_associative" in op.attributes and op.attributes["is_associative"]
    if not associative or not ir.BoolAttr(associative).value:
        return None
    block = op.regions[0].blocks[0]
    operations = list(block.operations)
    if len(op.operands) != 2 or len(operations) != 2 or list(op.results[1].uses):
        return None
    combination, returned = (o.operation for o in operations)
    read, given = set(combination.operands), list(returned.operands)
    both = {combination.results[0]} if len(combination.results) == 1 else set()
    if read != set(block.arguments) or len(given) != 2 or set(given) != both:
        return None
    return str(combination.name)


def _start(op: Any) -> Any:
    """The scalar that the carried value begins as, None if it is not the same everywhere."""
    from jaxlib.mlir import ir

    value = op.operands[1]
    while ir.RankedTensorType(value.type).rank:
        if isinstance(value.owner, ir.Block):
            return None
        made_by = value.owner.operation
        if made_by.name != "stablehlo.broadcast_in_dim":
            return None
        value = made_by.operands[0]
    return value


def _rewrite(op: Any, combines: str, start: Any) -> None:
    from jaxlib.mlir import ir

    operand, result = op.operands[0], op.results[0]
    shape = shape_of(operand)
    dimension = int(ir.IntegerAttr(op.attributes["dimension"]).value)
    window = [1] * len(shape)
    window[dimension] = shape[dimension]
    padding = [[0, 0] for _ in shape]
    from_end = bool(ir.BoolAttr(op.attributes["is_reverse"]).value)
    padding[dimension][from_end] = shape[dimension] - 1
    with ir.InsertionPoint(op), op.location:
        made = ir.Operation.create(
            "stablehlo.reduce_window",
            results=[result.type],
            operands=[operand, start],
            attributes={
                "window_dimensions": ir.DenseI64ArrayAttr.get(window),
                "window_strides": ir.DenseI64ArrayAttr.get([1] * len(shape)),
                "padding": _pairs(padding),
            },
            regions=1,
        )
        block = made.regions[0].blocks.append(start.type, start.type)
        with ir.InsertionPoint(block):
            combined = ir.Operation.create(
                combines, results=[start.type], operands=list(block.arguments)
            )
            ir.Operation.create("stablehlo.return", operands=[combined.result])
    result.replace_all_uses_with(made.result)
    op.erase()


def _pairs(values: list[list[int]]) -> Any:
    import numpy as np
    from jaxlib.mlir import ir

    return ir.DenseIntElementsAttr.get(np.array(values, dtype=np.int64))
