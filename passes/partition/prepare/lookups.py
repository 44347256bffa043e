"""Dimension numbers of gathers and scatters, and what the columns of their indices hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flint.passes.mlir import defining_operation, shape_of
from flint.passes.partition.prepare.index_lines import IndexLine, line_of


@dataclass(frozen=True)
class Dimensions:
    """Dimension numbers of a gather or scatter.

    `window` is how many elements of each dimension of the table one index takes; `index_map` the
    table's dimension that each column of the indices is for; `explicit` maps the table's batch
    dimensions to those of the indices.
    """

    window: tuple[int, ...]
    index_map: tuple[int, ...]
    vector_dim: int
    explicit: Mapping[int, int]

    @classmethod
    def of(cls, op: Any) -> Dimensions:
        """Those of an operation."""
        return _of_scatter(op) if op.name == "stablehlo.scatter" else _of_gather(op)


def _of_gather(op: Any) -> Dimensions:
    from jaxlib.mlir.dialects import stablehlo

    numbers = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    return Dimensions(
        tuple(int(size) for size in op.attributes["slice_sizes"]),
        tuple(numbers.start_index_map),
        numbers.index_vector_dim,
        dict(zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)),
    )


def _of_scatter(op: Any) -> Dimensions:
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    numbers = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    updates = shape_of(op.operands[2])
    left = [updates[d] for d in numbers.update_window_dims]
    single = {*numbers.inserted_window_dims, *numbers.input_batching_dims}
    rank = ir.RankedTensorType(op.operands[0].type).rank
    return Dimensions(
        tuple(1 if d in single else left.pop(0) for d in range(rank)),
        tuple(numbers.scattered_dims_to_operand_dims),
        numbers.index_vector_dim,
        dict(zip(numbers.input_batching_dims, numbers.scatter_indices_batching_dims, strict=True)),
    )


def columns(indices: Any, numbers: Dimensions) -> Sequence[IndexLine | None]:
    """What each column of the indices holds."""
    maker = defining_operation(indices)
    if (
        maker is not None
        and maker.name == "stablehlo.concatenate"
        and int(maker.attributes["dimension"].value) == numbers.vector_dim
    ):
        widths = [shape_of(v)[numbers.vector_dim] for v in maker.operands]
        return [
            line
            for value, width in zip(maker.operands, widths, strict=True)
            for line in [line_of(value)] * width
        ]
    return [line_of(indices)] * len(numbers.index_map)
