"""Collectives of the Shardy and StableHLO dialects: kind, members, payload.

The payload is the bytes of the rank's *input*, for every kind.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flint.ir.mesh import AxisRef, Group, Mesh, Route
from flint.ir.op_class import OpClass
from flint.ir.program import Collective
from flint.passes.axes import groups_to_axes, pairs_to_route
from flint.passes.extract.tensors import Operation, Sharding, axis_refs
from flint.passes.mlir import defining_operation

SHARDY = {
    "sdy.all_gather": (Collective.ALL_GATHER, "gathering_axes"),
    "sdy.all_reduce": (Collective.ALL_REDUCE, "reduction_axes"),
    "sdy.reduce_scatter": (Collective.REDUCE_SCATTER, "reduce_scatter_axes"),
    "sdy.all_to_all": (Collective.ALL_TO_ALL, "params"),
}
STABLEHLO = {
    "stablehlo.all_gather": Collective.ALL_GATHER,
    "stablehlo.all_reduce": Collective.ALL_REDUCE,
    "stablehlo.reduce_scatter": Collective.REDUCE_SCATTER,
    "stablehlo.all_to_all": Collective.ALL_TO_ALL,
    "stablehlo.collective_broadcast": Collective.BROADCAST,
    "stablehlo.collective_permute": Collective.PERMUTE,
    "ragged_all_to_all": Collective.ALL_TO_ALL,
}


@dataclass(frozen=True, slots=True)
class Communication:
    """One collective of one rank. A group of one, or a route to oneself, means no work."""

    collective: Collective
    opcode: str
    comm_bytes: int
    group: Group | None = None
    route: Route | None = None
    op: OpClass = OpClass.MOVE  #: what it reduces with

    def is_needed(self, mesh: Mesh) -> bool:
        """Whether any byte leaves a device."""
        if self.comm_bytes == 0:
            return False
        if self.route is not None:
            return bool(self.route.axes or self.route.pairs)
        return self.group is not None and (
            bool(self.group.ranks) or mesh.group_size(self.group.axes) > 1
        )


def communication_of(operation: Operation, mesh: Mesh) -> Communication | None:
    """The collective that an operation is, or None."""
    if operation.name in SHARDY:
        return _shardy(operation, mesh)
    if operation.name == "sdy.collective_permute":
        return _shardy_permute(operation, mesh)
    name = operation.name
    if name == "stablehlo.custom_call":
        name = operation.op.attributes["call_target_name"].value
    if name not in STABLEHLO:
        return None
    return _stablehlo(operation, name, mesh)


def slice_group(operation: Operation, mesh: Mesh) -> Group | None:
    """The axes over which `sdy.all_slice` keeps one part; None if it cuts several dimensions.

    Of a sum that is cut so, XLA's compilers make no reduce-scatter.
    """
    attribute = operation.op.attributes["slicing_axes"]
    if sum('"' in text for text in str(attribute).split("}, {")) > 1:
        return None
    return Group(mesh.canonical(_present(attribute, mesh)))


def _present(attribute: Any, mesh: Mesh) -> list[AxisRef]:
    return [a for a in axis_refs(attribute) if a.name in mesh.names]


def _shardy(o: Operation, mesh: Mesh) -> Communication:
    kind, attribute = SHARDY[o.name]
    axes = mesh.canonical(_present(o.op.attributes[attribute], mesh))
    if kind is Collective.ALL_REDUCE and _joins_several_results(o.op):
        return _gather_of_partials(o, axes)
    if kind is Collective.ALL_GATHER and _is_mostly_padding(o, axes, mesh):
        whole = o.results[0].num_bytes
        add = OpClass.ADD
        return Communication(Collective.ALL_REDUCE, o.name, whole, group=Group(axes), op=add)
    op, suffix = _reduction(o.op) if kind in REDUCING else (OpClass.MOVE, "")
    opcode = o.name + suffix if kind is Collective.ALL_REDUCE else o.name
    return Communication(kind, opcode, o.operands[0].num_bytes, group=Group(axes), op=op)


def _is_mostly_padding(o: Operation, axes: tuple[AxisRef, ...], mesh: Mesh) -> bool:
    """Whether a gathered dimension has at most half as many elements as shards.

    XLA's partitioner (`ReplicatePartial`) then adds up what devices put into their places of the
    whole.
    """
    parts = mesh.group_size(axes)
    gathered = [
        size
        for size, before, after in zip(
            o.results[0].global_shape, o.operands[0].sharding, o.results[0].sharding, strict=True
        )
        if before != after
    ]
    return len(gathered) == 1 and 0 < 2 * gathered[0] <= parts


def _joins_several_results(op: Any) -> bool:
    """Whether this reduces one result of a reduction with several (argmax: value and index)."""
    producer = defining_operation(op.operands[0])
    return (
        producer is not None and producer.name == "stablehlo.reduce" and len(producer.results) > 1
    )


def parts_before(op: Any) -> list[Any]:
    """All-reduced results of the same reduction that come before: argmax needs the maximum too."""
    producer = op.operands[0].owner.operation
    found = []
    for result in producer.results:
        if result == op.operands[0]:
            break
        users = (use.owner.operation for use in result.uses)
        found += [u.results[0] for u in users if u.name == op.name]
    return found


def _gather_of_partials(o: Operation, axes: tuple[AxisRef, ...]) -> Communication:
    """One all-reduce cannot see the other results: each device gets the partial ones of all.

    Reducing them again costs little. XLA's partitioner does the same (`HandleReduce`).
    """
    payload = o.operands[0].num_bytes
    return Communication(Collective.ALL_GATHER, "implied.all_gather", payload, group=Group(axes))


#: What reduces, by an operation of the body, and how a name for people ends.
_REDUCTIONS = {
    "stablehlo.maximum": (OpClass.MAXIMUM, "[max]"),
    "stablehlo.minimum": (OpClass.MINIMUM, "[min]"),
    "stablehlo.multiply": (OpClass.MULTIPLY, "[prod]"),
    "stablehlo.and": (OpClass.ARITHMETIC, "[and]"),
    "stablehlo.or": (OpClass.ARITHMETIC, "[or]"),
    "stablehlo.compare": (OpClass.COMPARE, "[select]"),
}
REDUCING = (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER)


def _reduction(op: Any) -> tuple[OpClass, str]:
    """How a collective after a reduction reduces: after a maximum it must not be a sum."""
    producer = defining_operation(op.operands[0])
    if producer is None or not len(producer.regions):
        return OpClass.ADD, ""
    blocks = producer.regions[0].blocks
    return _reduction_of([inner.operation.name for inner in blocks[0]] if len(blocks) else [])


def _reduction_of(names: list[str]) -> tuple[OpClass, str]:
    found = (how for name, how in _REDUCTIONS.items() if name in names)
    return next(found, (OpClass.ADD, ""))


def _shardy_permute(o: Operation, mesh: Mesh) -> Communication:
    pairs = permutation_pairs(o.operands[0].sharding, o.results[0].sharding, mesh)
    return Communication(
        Collective.PERMUTE, o.name, o.operands[0].num_bytes, route=pairs_to_route(pairs, mesh)
    )


def permutation_pairs(source: Sharding, target: Sharding, mesh: Mesh) -> NDArray[np.int64]:
    """(sender, receiver) ranks that turn one sharding into another of the same local shape.

    Every device gets the shard that `target` says from a device that holds it under `source`;
    the axes that do not shard are matched in mesh order.
    """
    ranks = np.arange(mesh.size, dtype=np.int64)
    used = [a for axes in source for a in axes]
    wanted = [a for axes in target for a in axes]
    holder = np.empty(mesh.size, dtype=np.int64)
    holder[_position(used, mesh)] = ranks
    return np.stack([holder[_position(wanted, mesh)], ranks], axis=1)


def shard_holders(axes: Sequence[AxisRef], mesh: Mesh) -> NDArray[np.int64]:
    """Row s: the ranks that hold shard s of a dimension sharded over `axes`, in matching order."""
    holder = np.empty(mesh.size, dtype=np.int64)
    holder[_position(axes, mesh)] = np.arange(mesh.size, dtype=np.int64)
    return holder.reshape(mesh.group_size(axes), -1)


def _position(axes: Sequence[AxisRef], mesh: Mesh) -> NDArray[np.int64]:
    """For each rank, its shard number over `axes`, then its place among the ranks with that shard."""
    shard = np.zeros(mesh.size, dtype=np.int64)
    for axis in axes:
        shard = shard * mesh.axis_size(axis) + _coordinate(axis, mesh)
    count = math.prod(mesh.axis_size(a) for a in axes)
    order = np.argsort(shard, kind="stable")
    place = np.empty(mesh.size, dtype=np.int64)
    copies = mesh.size // count
    place[order] = np.tile(np.arange(copies, dtype=np.int64), count)
    return shard * copies + place


def _coordinate(axis: AxisRef, mesh: Mesh) -> NDArray[np.int64]:
    whole = mesh.axis_size(axis.name)
    at = mesh.names.index(axis.name)
    minor = math.prod(mesh.sizes[at + 1 :])
    along = np.arange(mesh.size, dtype=np.int64) // minor % whole
    if axis.size is None:
        return along
    return along // (whole // (axis.pre_size * axis.size)) % axis.size


def _stablehlo(o: Operation, name: str, mesh: Mesh) -> Communication:
    kind = STABLEHLO[name]
    opcode = o.name if name == o.name else f"custom_call.{name}"
    operands = o.operands[:1] if name == "ragged_all_to_all" else o.operands
    payload = sum(t.num_bytes for t in operands)
    if kind is Collective.PERMUTE:
        pairs = _integers(o.op.attributes["source_target_pairs"]).reshape(-1, 2)
        return Communication(kind, opcode, payload, route=pairs_to_route(pairs, mesh))
    op, groups = OpClass.MOVE, _replica_groups(o.op, mesh)
    if kind in REDUCING:
        op, suffix = _reduction_of([i.operation.name for i in o.op.regions[0].blocks[0]])
        opcode += suffix if kind is Collective.ALL_REDUCE else ""
    return Communication(kind, opcode, payload, group=groups, op=op)


def _replica_groups(op: Any, mesh: Mesh) -> Group:
    attribute = op.attributes.get("replica_groups", None)
    if attribute is None:
        attribute = _in_backend_config(op)
    if attribute is None:
        return groups_to_axes([], mesh)
    if "mesh_axes" in str(attribute)[:200]:
        return Group(mesh.canonical(_present(attribute, mesh)))
    table = _integers(attribute)
    return (
        groups_to_axes([[r for r in row if r >= 0] for row in table.tolist()], mesh)
        if (table.size and (table < 0).any())
        else groups_to_axes(table, mesh)
    )


def _in_backend_config(op: Any) -> Any:
    """`replica_groups` of a custom call (ragged_all_to_all), which is in its configuration."""
    from jaxlib.mlir import ir

    config = op.attributes.get("backend_config", None)
    if not isinstance(config, ir.DictAttr) or "replica_groups" not in config:
        return None
    return config["replica_groups"]


def _integers(attribute: Any) -> NDArray[np.int64]:
    from jaxlib.mlir import ir

    return np.array(ir.DenseIntElementsAttr(attribute), dtype=np.int64)
