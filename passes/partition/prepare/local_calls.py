"""Kernels that are calls, as XLA's partitioner takes them: on the part of each device.

XLA knows nothing of a custom call that nobody registered a partitioner for: it gathers the operands,
and every device computes all of it. Shardy's propagation knows better, by the rules of `rules.py`.
So where these let a call be split, it becomes a `sdy.manual_computation` over the axes that they
give it, with a call of local shapes inside.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from flint.passes.extract.op_classes import key_of
from flint.passes.mlir import make_context, operations_named, write_bytecode
from flint.passes.partition.prepare.inline import inline_calls
from flint.passes.partition.prepare.rules import KNOWN_CALLS, RULE, RULES, factors_of, rule_of

_CALL, _TAG, _SHARDING = "stablehlo.custom_call", "flint.call", "sdy.sharding"


def with_local_calls(bytecode: bytes) -> bytes:
    """A StableHLO module whose calls of kernels see what each device holds.

    To be called where MLIR may be loaded. Raises FlintError FL402 as Shardy's propagation does.
    """
    if b"custom_call" not in bytecode or b"sdy" not in bytecode:
        return bytecode
    from jaxlib.mlir import ir

    with make_context():
        module = ir.Module.parse(bytecode)
        if not any(_can_split(op) for op in operations_named(module, _CALL)):
            return bytecode
        inline_calls(module)
        calls = [op for op in operations_named(module, _CALL) if _can_split(op)]
        for number, op in enumerate(calls):
            op.attributes[_TAG] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), number)
        splits = _splits(write_bytecode(module))
        for number, op in enumerate(calls):
            del op.attributes[_TAG]
            if number in splits:
                _make_local(op, splits[number])
        return write_bytecode(module)


def _can_split(op: Any) -> bool:
    """Whether a rule lets devices share the work of a call that XLA cannot split."""
    key = key_of(op)
    if key in RULES or key in KNOWN_CALLS or not len(op.operands) or not len(op.results):
        return False
    rule = _rule(op)
    return rule is not None and len(rule.need_replication_factors) < len(rule.factor_sizes)


def _rule(op: Any) -> Any:
    from jaxlib.mlir.dialects import sdy

    found = op.attributes[RULE] if RULE in op.attributes else rule_of(op)
    return None if found is None else sdy.OpShardingRuleAttr(found)


@dataclass(frozen=True, slots=True)
class _Split:
    """How a call is split: a mesh by name, and for each factor of its rule the axes that share it."""

    mesh: str
    axes: Mapping[int, tuple[str, ...]]
    ways: Mapping[int, int]


def _splits(bytecode: bytes) -> dict[int, _Split]:
    """By tag, how propagation splits each call that it splits; of copies of a function the first."""
    from flint.passes.partition.shardy_pipeline import propagated_module

    with make_context():
        module = propagated_module(bytecode)
        meshes = _mesh_sizes(module)
        found: dict[int, _Split] = {}
        for op in operations_named(module, _CALL):
            if _TAG in op.attributes and _SHARDING in op.attributes:
                found.setdefault(int(op.attributes[_TAG].value), _split_of(op, meshes))
        return {tag: split for tag, split in found.items() if split.axes}


def _mesh_sizes(module: Any) -> dict[str, dict[str, int]]:
    """Sizes of the axes of each mesh, by its name."""
    from jaxlib.mlir.dialects import sdy

    found: dict[str, dict[str, int]] = {}
    for op in operations_named(module, "sdy.mesh"):
        axes = map(sdy.MeshAxisAttr, sdy.MeshAttr(op.attributes["mesh"]).axes)
        found[op.attributes["sym_name"].value] = {axis.name: axis.size for axis in axes}
    return found


def _split_of(op: Any, meshes: Mapping[str, Mapping[str, int]]) -> _Split:
    """From the shardings of a call's results: whole axes that divide what they split."""
    from jaxlib.mlir.dialects import sdy

    rule = sdy.OpShardingRuleAttr(op.attributes[RULE])
    whole, sizes = set(rule.need_replication_factors), list(rule.factor_sizes)
    mesh, axes, ways = "", dict[int, tuple[str, ...]](), dict[int, int]()
    shardings = sdy.TensorShardingPerValueAttr(op.attributes[_SHARDING]).shardings
    for sharding, mapping in zip(shardings, rule.result_mappings, strict=True):
        found = sdy.TensorShardingAttr(sharding)
        mesh = mesh or found.mesh_or_ref.value
        for factors, dimension in zip(factors_of(mapping), found.dimension_shardings, strict=True):
            left = [f for f in factors if f not in whole and f not in axes]
            for name in _whole_axes(dimension):
                size = meshes[mesh][name]
                while left and sizes[left[0]] // ways.get(left[0], 1) % size:
                    left.pop(0)
                if left and all(name not in taken for taken in axes.values()):
                    axes[left[0]] = (*axes.get(left[0], ()), name)
                    ways[left[0]] = ways.get(left[0], 1) * size
    return _Split(mesh, axes, ways)


def _whole_axes(dimension: Any) -> Iterator[str]:
    """The axes of a dimension's sharding, up to the first part of one."""
    from jaxlib.mlir.dialects import sdy

    for axis in map(sdy.AxisRefAttr, sdy.DimensionShardingAttr(dimension).axes):
        if axis.sub_axis_info is not None:
            return
        yield axis.name


def _make_local(op: Any, split: _Split) -> None:
    """Replace a call by a manual computation around one of local shapes."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import sdy

    rule = _rule(op)
    used = sorted({name for names in split.axes.values() for name in names})
    operands = [
        (v.type, factors_of(m)) for v, m in zip(op.operands, rule.operand_mappings, strict=True)
    ]
    results = [
        (v.type, factors_of(m)) for v, m in zip(op.results, rule.result_mappings, strict=True)
    ]
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
            inner = ir.Operation.create(
                op.name,
                results=[_local(*v, split) for v in results],
                operands=list(body.arguments),
                attributes=kept,
            )
            sdy.ReturnOp(list(inner.results))
    for before, after in zip(op.results, manual.results, strict=True):
        before.replace_all_uses_with(after)
    op.erase()


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
