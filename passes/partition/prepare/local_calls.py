"""Kernels that are calls, as XLA's partitioner takes them: on the part of each device.

XLA knows nothing of a custom call that nobody registered a partitioner for: it gathers the operands,
and every device computes all of it. Shardy's propagation knows better, by the rules of `rules.py`.
So where these let a call be split, it becomes a `sdy.manual_computation` over the axes that they
give it, with a call of local shapes inside, and sums of results of which each device has a part.
Random numbers that a frontend calls local are drawn by hand in the same way.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flint.passes.mlir import (
    FRONTEND_ATTRIBUTES,
    LOCAL_DRAW,
    is_attention_backward,
    key_of,
    make_context,
    operations_named,
    shape_of,
    target_of,
    write_bytecode,
)
from flint.passes.partition.prepare.inline import inline_calls
from flint.passes.partition.prepare.rules import (
    FACTORED,
    KNOWN_CALLS,
    RULE,
    RULES,
    factors_of,
    rule_of,
)
from flint.passes.work.host_copies import CALLBACK_TARGET, MOVES

_CALL, _TAG, _SHARDING = "stablehlo.custom_call", "flint.call", "sdy.sharding"
_DRAW = "stablehlo.rng"
#: For each operand or result the factors of each dimension.
_Factors = list[list[list[int]]]
#: Calls of which Flint has a rule and XLA has none.
_OURS = {f"custom_call:{name}" for name in (*MOVES.values(), *FACTORED)}


def with_local_calls(bytecode: bytes, devices: int) -> bytes:
    """A StableHLO module whose calls of kernels see what each of `devices` holds.

    To be called where MLIR may be loaded. Raises FlintError FL402 as Shardy's propagation does.
    """
    is_asked = b"sdy" in bytecode and (
        b"custom_call" in bytecode or LOCAL_DRAW.encode() in bytecode
    )
    if devices == 1 or not is_asked and CALLBACK_TARGET.encode() not in bytecode:
        return bytecode
    from jaxlib.mlir import ir

    with make_context():
        module = ir.Module.parse(bytecode)
        if not _to_split(module) and not any(
            target_of(op) == CALLBACK_TARGET for op in operations_named(module, _CALL)
        ):
            return bytecode
        inline_calls(module)
        calls = operations_named(module, _CALL)
        _make_whole([op for op in calls if target_of(op) == CALLBACK_TARGET], module, devices)
        splits = _splits(module)
        if splits is None:
            inline_calls(module, keep=False)
            splits = _splits(module) or {}
        meshes = _mesh_sizes(module)
        for number, op in enumerate(_to_split(module)):
            if number in splits:
                split = splits[number]
                _make_local(op, split, tuple(meshes[split.mesh]) if op.name == _DRAW else ())
            elif op.name == _DRAW:
                _make_whole([op], module, devices)
        return write_bytecode(module)


def _to_split(module: Any) -> list[Any]:
    calls = [op for op in operations_named(module, _CALL) if _can_split(op)]
    return calls + [op for op in operations_named(module, _DRAW) if _is_local_draw(op)]


def _is_local_draw(op: Any) -> bool:
    said = op.attributes.get(FRONTEND_ATTRIBUTES, ())
    return LOCAL_DRAW in said and not manual_axes(op)


def _can_split(op: Any) -> bool:
    """Whether a rule lets devices share the work of a call that XLA cannot split."""
    key = key_of(op)
    is_known = key in KNOWN_CALLS or (key in RULES and key not in _OURS)
    if is_known or not len(op.operands) or not len(op.results):
        return False
    rule = _rule(op)
    return rule is not None and len(rule.need_replication_factors) < len(rule.factor_sizes)


def _rule(op: Any) -> Any:
    from jaxlib.mlir.dialects import sdy

    found = op.attributes[RULE] if RULE in op.attributes else rule_of(op)
    return None if found is None else sdy.OpShardingRuleAttr(found)


@dataclass(frozen=True, slots=True)
class _Split:
    """How a call is split: a mesh by name, and for each factor of its rule the axes that share it.

    `sums` has the groups of devices that add up a result, by its number.
    """

    mesh: str
    axes: Mapping[int, tuple[str, ...]]
    ways: Mapping[int, int]
    sums: Mapping[int, NDArray[np.int64]]


def _splits(module: Any) -> dict[int, _Split] | None:
    """By number, how propagation splits each call that it splits; None if copies of a function differ in it."""
    from jaxlib.mlir import ir

    from flint.passes.partition.shardy_pipeline import propagated_module

    tagged = _to_split(module)
    if not tagged:
        return {}
    for number, op in enumerate(tagged):
        op.attributes[_TAG] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), number)
    bytecode = write_bytecode(module)
    for op in tagged:
        del op.attributes[_TAG]
    found: dict[int, _Split] = {}
    with make_context():
        propagated = propagated_module(bytecode)
        meshes = _mesh_sizes(propagated)
        for op in (*operations_named(propagated, _CALL), *operations_named(propagated, _DRAW)):
            if _TAG not in op.attributes:
                continue
            is_placed = _SHARDING in op.attributes
            split = _split_of(op, meshes) if is_placed else _Split("", {}, {}, {})
            if found.setdefault(int(op.attributes[_TAG].value), split).axes != split.axes:
                return None
    return {number: split for number, split in found.items() if split.axes}


def _mesh_sizes(module: Any) -> dict[str, dict[str, int]]:
    """Sizes of the axes of each mesh, by its name."""
    from jaxlib.mlir.dialects import sdy

    found: dict[str, dict[str, int]] = {}
    for op in operations_named(module, "sdy.mesh"):
        axes = map(sdy.MeshAxisAttr, sdy.MeshAttr(op.attributes["mesh"]).axes)
        found[op.attributes["sym_name"].value] = {axis.name: axis.size for axis in axes}
    return found


def _split_of(op: Any, meshes: Mapping[str, Mapping[str, int]]) -> _Split:
    """From the shardings of a call's results, and of what it sums: whole axes that divide both."""
    from jaxlib.mlir.dialects import sdy

    if op.name == _DRAW:
        return _split_of_draw(op, meshes)
    rule = sdy.OpShardingRuleAttr(op.attributes[RULE])
    sizes = list(rule.factor_sizes)
    operands = [factors_of(m) for m in rule.operand_mappings]
    results = [factors_of(m) for m in rule.result_mappings]
    read = {f for dimensions in operands for factors in dimensions for f in factors}
    shared = read.difference(
        rule.need_replication_factors
    )  # what a call alone makes, it makes whole
    mesh, axes, ways = "", dict[int, tuple[str, ...]](), dict[int, int]()
    placed = [(sharding_of(v), m, shared) for v, m in zip(op.results, results, strict=True)]
    summed = shared.intersection(rule.reduction_factors)
    placed += [(sharding_of(v), m, summed) for v, m in zip(op.operands, operands, strict=True)]
    for found, mapping, allowed in placed:
        if found is None:
            continue
        mesh = mesh or found.mesh_or_ref.value
        for factors, dimension in zip(mapping, found.dimension_shardings, strict=True):
            left = [f for f in factors if f in allowed and f not in axes]
            for name in _whole_axes(dimension):
                size = meshes[mesh][name]
                while left and sizes[left[0]] // ways.get(left[0], 1) % size:
                    left.pop(0)
                if left and all(name not in taken for taken in axes.values()):
                    axes[left[0]] = (*axes.get(left[0], ()), name)
                    ways[left[0]] = ways.get(left[0], 1) * size
    return _Split(mesh, axes, ways, _sums(op, rule, axes, meshes.get(mesh, {})))


def _split_of_draw(op: Any, meshes: Mapping[str, Mapping[str, int]]) -> _Split:
    """Random numbers are drawn where their result is: each dimension is a factor of its own."""
    result = op.results[0]
    found, axes, ways = sharding_of(result), dict[int, tuple[str, ...]](), dict[int, int]()
    if found is None:
        return _Split("", {}, {}, {})
    mesh = found.mesh_or_ref.value
    for n, (size, placed) in enumerate(
        zip(shape_of(result), found.dimension_shardings, strict=True)
    ):
        names = tuple(_whole_axes(placed))
        among = math.prod(meshes[mesh][name] for name in names)
        if among > 1 and size % among == 0:
            axes[n], ways[n] = names, among
    return _Split(mesh, axes, ways, {})


def _sums(
    op: Any, rule: Any, axes: Mapping[int, tuple[str, ...]], sizes: Mapping[str, int]
) -> dict[int, NDArray[np.int64]]:
    """Which results a split leaves in parts: by a factor that is summed, or of queries that share keys."""
    summed, numbers = set(rule.reduction_factors), range(len(op.results))
    if is_attention_backward(target_of(op)):
        queries, keys = (
            {f for d in factors_of(m) for f in d} for m in list(rule.operand_mappings)[:2]
        )
        summed, numbers = queries - keys, range(1, 3)
    over = [name for f in sorted(summed) for name in axes.get(f, ())]
    if not over:
        return {}
    names = list(sizes)
    at = [names.index(name) for name in sorted(over, key=names.index)]
    devices = np.arange(math.prod(sizes.values())).reshape(tuple(sizes.values()))
    last = range(len(names) - len(at), len(names))
    groups = np.moveaxis(devices, at, last).reshape(-1, math.prod(sizes[n] for n in over))
    return dict.fromkeys(numbers, groups)


def _whole_axes(dimension: Any) -> Iterator[str]:
    """The axes of a dimension's sharding, up to the first part of one."""
    from jaxlib.mlir.dialects import sdy

    for axis in map(sdy.AxisRefAttr, sdy.DimensionShardingAttr(dimension).axes):
        if axis.sub_axis_info is not None:
            return
        yield axis.name


def _make_whole(calls: Sequence[Any], module: Any, devices: int) -> None:
    """Let every device hold all that these calls see: by hand, over all axes that are not so yet.

    So the host is called for all devices at once: XLA takes no effect without a sharding.
    """
    from jaxlib.mlir import ir

    text = f'sdy.mesh @flint_devices = <["devices"={devices}]>'
    for op in calls:
        meshes = _mesh_sizes(module).items()
        whole = next((m for m in meshes if math.prod(m[1].values()) == devices), None)
        if whole is None:
            with module.context:
                module.body.append(ir.Module.parse(text).body.operations[0].operation.clone())
            whole = "flint_devices", {"devices": devices}
        left = whole[1].keys() - manual_axes(op)
        if left:
            _make_local(op, _Split(whole[0], {}, {}, {}), tuple(left))


def _factors(op: Any) -> tuple[_Factors, _Factors]:
    """Of the operands and the results of a call, by its rule; none without one."""
    if op.name == _DRAW:
        return _whole(op.operands), [[[n] for n in range(len(shape_of(op.results[0])))]]
    rule = _rule(op)
    if rule is None:
        return _whole(op.operands), _whole(op.results)
    return list(map(factors_of, rule.operand_mappings)), list(map(factors_of, rule.result_mappings))


def _whole(values: Any) -> _Factors:
    return [[[]] * len(shape_of(value)) for value in values]


def _make_local(op: Any, split: _Split, names: Sequence[str] = ()) -> None:
    """Replace a call by a manual computation around one of local shapes, over `names` too."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import sdy, stablehlo

    reads, makes = _factors(op)
    used = sorted({*names, *(name for given in split.axes.values() for name in given)})
    operands = [(v.type, m) for v, m in zip(op.operands, reads, strict=True)]
    results = [(v.type, m) for v, m in zip(op.results, makes, strict=True)]
    with op.context, op.location, ir.InsertionPoint(op):
        manual = sdy.ManualComputationOp(
            [kind for kind, _ in results],
            list(op.operands),
            _shardings(operands, split),
            _shardings(results, split),
            sdy.ManualAxesAttr.get([ir.StringAttr.get(name) for name in used]),
        )
        body = manual.body.blocks.append(*(_local(*v, split) for v in operands))
        with ir.InsertionPoint(body):
            dropped = (RULE, _SHARDING, _TAG)
            kept = {n: op.attributes[n] for n in op.attributes if n not in dropped}
            made = [_local(*v, split) for v in results]
            given = list(body.arguments)
            if op.name == _DRAW:  # its last operand is its shape
                given[-1] = stablehlo.constant(ir.DenseElementsAttr.get(np.array(made[0].shape)))
            inner = ir.Operation.create(
                op.name,
                results=made,
                operands=given,
                attributes=kept,
            )
            sdy.ReturnOp([_summed(r, split.sums.get(n)) for n, r in enumerate(inner.results)])
    for before, after in zip(op.results, manual.results, strict=True):
        before.replace_all_uses_with(after)
    op.erase()


def _summed(value: Any, groups: NDArray[np.int64] | None) -> Any:
    """What the devices of a group have, added up; the value itself without one."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    if groups is None:
        return value
    scalar = ir.RankedTensorType.get([], ir.RankedTensorType(value.type).element_type)
    everyone = {"channel_handle": stablehlo.ChannelHandle.get(1, 1), "use_global_device_ids": True}
    made = stablehlo.AllReduceOp(
        [value.type], [value], ir.DenseElementsAttr.get(groups), **everyone
    )
    block = made.regions[0].blocks.append(scalar, scalar)
    with ir.InsertionPoint(block):
        stablehlo.return_([stablehlo.add(*block.arguments)])
    return made.results[0]


def _shardings(values: list[tuple[Any, list[list[int]]]], split: _Split) -> Any:
    from jaxlib.mlir.dialects import sdy

    def dimension(factors: list[int]) -> Any:
        names = [name for f in factors for name in split.axes.get(f, ())]
        return sdy.DimensionShardingAttr.get([sdy.AxisRefAttr.get(n) for n in names], True)

    return sdy.TensorShardingPerValueAttr.get(
        [sdy.TensorShardingAttr.get(split.mesh, [dimension(f) for f in dims]) for _, dims in values]
    )


def _local(kind: Any, dimensions: list[list[int]], split: _Split) -> Any:
    from jaxlib.mlir import ir

    whole = ir.RankedTensorType(kind)
    shape = [
        size // math.prod(split.ways.get(f, 1) for f in factors)
        for size, factors in zip(whole.shape, dimensions, strict=True)
    ]
    return ir.RankedTensorType.get(shape, whole.element_type, whole.encoding)


def sharding_of(value: Any) -> Any:
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
    if "out_sharding" in owner.attributes:  # of Shardy's collectives
        return sdy.TensorShardingAttr(owner.attributes["out_sharding"])
    if "sdy.sharding" not in owner.attributes:
        return None
    argument = isinstance(value, ir.BlockArgument)
    number = value.arg_number if argument else ir.OpResult(value).result_number
    every = sdy.TensorShardingPerValueAttr(owner.attributes["sdy.sharding"]).shardings
    return sdy.TensorShardingAttr(every[number])


def _definer(value: Any) -> Any:
    """The operation that has a value as its result, or as an argument of its region."""
    from jaxlib.mlir import ir

    owner = value.owner.owner if isinstance(value, ir.BlockArgument) else value.owner
    return getattr(owner, "operation", owner)


def manual_axes(op: Any) -> frozenset[str]:
    """Names of the axes that the `shard_map` around an operation divides by itself."""
    found: set[str] = set()
    parent = op.parent
    while parent is not None:
        if parent.name == "sdy.manual_computation":
            found.update(re.findall(r'"([^"]*)"', str(parent.attributes["manual_axes"])))
        parent = parent.parent
    return frozenset(found)
