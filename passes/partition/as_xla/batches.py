"""Dimensions of a lookup's table that its indices go through in step: batches.

`h[jnp.arange(B), n]` looks up one row of each batch. StableHLO can say so (`operand_batching_dims`,
which `vmap` writes), but JAX writes an iota as one column of the indices. XLA's partitioner knows
both for what they are (`GetGatherScatterBatchParallelDims` in xla/hlo/utils/hlo_sharding_util.cc),
without letting shardings propagate through the second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flint.passes.mlir import defining_operation, shape_of
from flint.passes.partition.as_xla.lines import IndexLine, line_of
from flint.passes.partition.as_xla.placed import factors_of

_RULE = "sdy.sharding_rule"


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


def implied_batches(op: Any, numbers: Dimensions) -> dict[int, int]:
    """The table's dimensions that an iota of their size goes through, and of which dimension."""
    table, indices = (shape_of(v) for v in op.operands[:2])
    found: dict[int, int] = {}
    for dim, line in zip(numbers.index_map, columns(op.operands[1], numbers), strict=True):
        if line is None or not line.is_iota or line.dimension == numbers.vector_dim:
            continue
        if line.dimension in found.values():
            return {}
        if numbers.window[dim] == 1 and line.dimension not in numbers.explicit.values():
            if table[dim] != indices[line.dimension]:
                return {}
            found[dim] = line.dimension
    return found


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


# rules --------------------------------------------------------------------------------------------


def batched_rules(op: Any) -> tuple[Any, Any]:
    """The sharding rules of a lookup as XLA takes it: with its batches, and without.

    What an iota goes through is one factor of table and indices. Shardy asks for dimensions whole
    that a scatter writes one element of; every device can write those that it has.
    """
    rule, numbers = op.attributes[_RULE], Dimensions.of(op)
    batches = implied_batches(op, numbers)
    written = [d for d in numbers.index_map if numbers.window[d] == 1]
    writes = written and op.name == "stablehlo.scatter"
    alone = _other_rule(rule, {}, written) if writes else rule
    return _other_rule(rule, batches, written) if batches else alone, alone


def _other_rule(attribute: Any, batches: Mapping[int, int], written: Sequence[int]) -> Any:
    from jaxlib.mlir.dialects import sdy

    rule = sdy.OpShardingRuleAttr(attribute)
    table, indices = (factors_of(m) for m in list(rule.operand_mappings)[:2])
    same = {table[d]: indices[i] for d, i in batches.items()}
    left = [f for f in range(len(rule.factor_sizes)) if f not in same]
    number = {f: left.index(same.get(f, f)) for f in range(len(rule.factor_sizes))}
    free = {table[d] for d in written} | set(same.values())

    def mapped(mappings: Any) -> list[Any]:
        return [
            sdy.TensorMappingAttr.get([sdy.DimMappingAttr.get([number[f]]) for f in factors_of(m)])
            for m in mappings
        ]

    def kept(factors: Any, without: set[int]) -> list[int]:
        return sorted({number[f] for f in factors if f not in without})

    return sdy.OpShardingRuleAttr.get(
        [rule.factor_sizes[f] for f in left],
        mapped(rule.operand_mappings),
        mapped(rule.result_mappings),
        kept(rule.reduction_factors, {*same, *same.values()}),
        kept(rule.need_replication_factors, free | set(same)),
        kept(rule.permutation_factors, set()),
        kept(rule.blocked_propagation_factors, set()),
        rule.is_custom,
    )
