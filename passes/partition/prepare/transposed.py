"""Transposed products become products of exchanged operands, as XLA's compilers write them first.

`(a @ b).T` is `b.T @ a.T`, and a product says of each operand which dimension it sums. What is written
so is partitioned so: the shards of the transposed value are those of the product itself.
"""

from __future__ import annotations

from typing import Any

from flint.passes.mlir import defining_operation, operations_named


def exchange_operands(module: Any) -> None:
    """Rewrite transposes of products that nothing else reads, in place."""
    from jaxlib.mlir import ir

    for op in operations_named(module, "stablehlo.transpose"):
        product = defining_operation(op.operands[0])
        if product is None or product.name != "stablehlo.dot_general" or not _read_once(product):
            continue
        order = list(ir.DenseI64ArrayAttr(op.attributes["permutation"]))
        if order != _exchanged(product):
            continue
        with ir.InsertionPoint(op), product.location:
            made = _product(product, op.results[0].type)
        op.results[0].replace_all_uses_with(made)
        op.erase()
        product.erase()


def _read_once(product: Any) -> bool:
    return "sdy.sharding" not in product.attributes and len(list(product.results[0].uses)) == 1


def _exchanged(product: Any) -> list[int]:
    """The order of a product's dimensions if its operands change places."""
    from jaxlib.mlir.dialects import stablehlo

    numbers = stablehlo.DotDimensionNumbers(product.attributes["dot_dimension_numbers"])
    batch = len(numbers.lhs_batching_dimensions)
    lhs_rank, rhs_rank = (len(v.type.shape) for v in product.operands)
    summed = len(numbers.lhs_contracting_dimensions)
    free, other = lhs_rank - batch - summed, rhs_rank - batch - summed
    left = range(batch, batch + free)
    right = range(batch + free, batch + free + other)
    return [*range(batch), *right, *left]


def _product(product: Any, result_type: Any) -> Any:
    """`product` with its operands the other way around."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    numbers = stablehlo.DotDimensionNumbers(product.attributes["dot_dimension_numbers"])
    attributes = {name: product.attributes[name] for name in product.attributes}
    attributes["dot_dimension_numbers"] = stablehlo.DotDimensionNumbers.get(
        numbers.rhs_batching_dimensions,
        numbers.lhs_batching_dimensions,
        numbers.rhs_contracting_dimensions,
        numbers.lhs_contracting_dimensions,
    )
    precision = attributes.get("precision_config")
    if precision is not None:
        attributes["precision_config"] = ir.ArrayAttr.get(list(ir.ArrayAttr(precision))[::-1])
    operands = list(product.operands)[::-1]
    made = ir.Operation.create(
        product.name, results=[result_type], operands=operands, attributes=attributes
    )
    return made.results[0]
