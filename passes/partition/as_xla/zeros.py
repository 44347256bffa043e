"""Additions of zero, which every compiler drops before it looks at sums."""

from __future__ import annotations

from typing import Any

from flint.passes.mlir import defining_operation, operations_named


def drop_added_zeros(module: Any) -> None:
    """Replace `x + 0` by `x`, in place: Python's `sum` of a list of arrays begins with one."""
    for op in operations_named(module, "stablehlo.add"):
        for number in (0, 1):
            other = op.operands[1 - number]
            if is_zero(op.operands[number]) and other.type == op.results[0].type:
                op.results[0].replace_all_uses_with(other)
                op.erase()
                break


def is_zero(value: Any) -> bool:
    """Whether a value is a constant of zeros, or a broadcast of one."""
    from jaxlib.mlir import ir

    maker = defining_operation(value)
    if maker is not None and maker.name == "stablehlo.broadcast_in_dim":
        maker = defining_operation(maker.operands[0])
    if maker is None or maker.name != "stablehlo.constant":
        return False
    if isinstance(ir.RankedTensorType(maker.results[0].type).element_type, ir.ComplexType):
        return False  # jaxlib does not read them
    held = ir.DenseElementsAttr(maker.attributes["value"])
    return held.is_splat and _number(held.get_splat_value()) == 0


def _number(attribute: Any) -> float:
    from jaxlib.mlir import ir

    if isinstance(attribute, ir.FloatAttr | ir.IntegerAttr | ir.BoolAttr):
        return float(attribute.value)
    return float("nan")
