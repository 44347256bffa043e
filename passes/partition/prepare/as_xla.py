"""Products and broadcasts as XLA's partitioner takes them, where Shardy would choose otherwise.

Products: operands and result may want one mesh axis for different dimensions. The usual case is a
weight sharded over the axis that also shards the batch (FSDP): `x` and the result are split over
"data" by rows, the weight by its contracted dimension. Shardy's explicit reshards keep whichever
tensor is largest where it is, and with few tokens move activations around a weight. XLA's dot
partitioner (`PartitionDot` in xla/service/spmd/dot_handler.cc) does not compare sizes here: where
two of the three tensors agree, the third one is brought in line. This does the same before Shardy
has to choose. See docs/moe-dispatch.md for what it changes.

Broadcasts: Shardy visits reshapes before broadcasts, so that how a broadcast is written decides
which of two shardings a value gets where the program does not say. XLA writes one that only adds
dimensions of size 1 as a reshape, and one that stretches dimensions of size 1 as a reshape that
drops them and a broadcast that puts them back (`XlaBuilder::BroadcastInDim`). So does this.
"""

from __future__ import annotations

import math
from typing import Any

from flint.passes.mlir import operations_named


def resolve_dot_conflicts(module: Any) -> None:
    """Put reshards around every `dot_general` of which one tensor disagrees with the other two."""
    found: dict[tuple[Any, ...], list[set[Any]]] = {}
    for op in operations_named(module, "stablehlo.dot_general"):
        if "sdy.sharding_rule" in op.attributes:
            _resolve(op, op.attributes["sdy.sharding_rule"], found)


def _resolve(op: Any, rule: Any, found: dict[tuple[Any, ...], list[set[Any]]]) -> None:
    """Put reshards around one product. `found` has the odd axes for each rule and shardings."""
    tensors = [*op.operands, op.results[0]]
    if not all(map(_is_annotated_here, tensors)):
        return
    shardings = [_sharding_of(v) for v in tensors]
    key = (rule, *shardings)
    if key not in found:
        found[key] = _odd_axes(rule, shardings)
    odd = found[key]
    for number in (0, 1):
        if odd[number]:
            wanted = _without(shardings[number], odd[number])
            op.operands[number] = _reshard(tensors[number], wanted, op)
    if odd[2]:
        _change_result(op, shardings[2], _without(shardings[2], odd[2]))


def _odd_axes(attribute: Any, shardings: list[Any]) -> list[set[Any]]:
    """For each of lhs, rhs and result of a product with a rule, the axes to take away from it."""
    from jaxlib.mlir.dialects import sdy

    rule = sdy.OpShardingRuleAttr(attribute)
    factors = [_factors(m) for m in (*rule.operand_mappings, *rule.result_mappings)]
    places: dict[Any, dict[int, int]] = {}
    for tensor, (sharding, dims) in enumerate(zip(shardings, factors, strict=True)):
        if sharding is None:
            continue
        for dimension, factor in zip(sharding.dimension_shardings, dims, strict=True):
            for axis in sdy.DimensionShardingAttr(dimension).axes:
                places.setdefault(axis, {})[tensor] = factor
    odd: list[set[Any]] = [set(), set(), set()]
    for axis, place in places.items():
        settled = _settled(place, factors)
        if settled is not None:
            for tensor, factor in place.items():
                if factor != settled:
                    odd[tensor].add(axis)
    return odd


def _settled(place: dict[int, int], factors: list[list[int]]) -> int | None:
    """The factor that an axis splits in every tensor that has it, if others use the axis too."""
    if len(set(place.values())) < 2:
        return None
    for factor in set(place.values()):
        holders = [t for t, dims in enumerate(factors) if factor in dims]
        if len(holders) > 1 and all(place.get(t) == factor for t in holders):
            return factor
    return None


def _factors(mapping: Any) -> list[int]:
    from jaxlib.mlir.dialects import sdy

    dims = sdy.TensorMappingAttr(mapping).dim_mappings
    return [next(iter(sdy.DimMappingAttr(d).factor_indices)) for d in dims]


def _is_annotated_here(value: Any) -> bool:
    """Whether the sharding of a value is found beside what defines it."""
    from jaxlib.mlir import ir

    return not isinstance(value, ir.BlockArgument) or _definer(value).name in (
        "func.func",
        "stablehlo.while",
    )


def _definer(value: Any) -> Any:
    """The operation that has a value as its result, or as an argument of its region."""
    from jaxlib.mlir import ir

    owner = value.owner.owner if isinstance(value, ir.BlockArgument) else value.owner
    return getattr(owner, "operation", owner)


def _sharding_of(value: Any) -> Any:
    """The `#sdy.sharding` of a value, or None: it is whole on every device."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import sdy

    owner = _definer(value)
    if owner.name == "func.func":
        attributes = owner.attributes.get("arg_attrs", None)
        given = attributes[value.arg_number] if attributes is not None else {}
        return sdy.TensorShardingAttr(given["sdy.sharding"]) if "sdy.sharding" in given else None
    if owner.name == "sdy.reshard":
        return sdy.TensorShardingAttr(owner.attributes["sharding"])
    if "sdy.sharding" not in owner.attributes:
        return None
    argument = isinstance(value, ir.BlockArgument)
    number = value.arg_number if argument else ir.OpResult(value).result_number
    every = sdy.TensorShardingPerValueAttr(owner.attributes["sdy.sharding"]).shardings
    return sdy.TensorShardingAttr(every[number])


def _without(sharding: Any, axes: set[Any]) -> Any:
    from jaxlib.mlir.dialects import sdy

    dims = [sdy.DimensionShardingAttr(d) for d in sharding.dimension_shardings]
    kept = [
        sdy.DimensionShardingAttr.get([a for a in d.axes if a not in axes], d.is_closed)
        for d in dims
    ]
    return sdy.TensorShardingAttr.get(sharding.mesh_or_ref, kept)


def _reshard(value: Any, sharding: Any, before: Any) -> Any:
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import sdy

    with ir.InsertionPoint(before), before.location:
        return sdy.ReshardOp(value, sharding).result


def _change_result(op: Any, old: Any, new: Any) -> None:
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import sdy

    op.attributes["sdy.sharding"] = sdy.TensorShardingPerValueAttr.get([new])
    with ir.InsertionPoint.after(op), op.location:
        reshard = sdy.ReshardOp(op.results[0], old)
    op.results[0].replace_all_uses_except(reshard.result, reshard.operation)


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
