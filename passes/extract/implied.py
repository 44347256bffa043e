"""Communication that an operation needs and that Shardy does not spell out.

Shardy leaves a dimension sharded through operations that shift or slide over it ("permutation"
factors), and does nothing around an operation that has no sharding rule. What XLA's partitioner
emits there is added here: exchanges with neighbors, or gathers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from flint.ir.mesh import AxisRef, Group, Mesh, Route
from flint.ir.op_class import OpClass
from flint.ir.program import Collective
from flint.passes.axes import pairs_to_route
from flint.passes.extract.collectives import shard_holders
from flint.passes.extract.consistency import RULE
from flint.passes.extract.halo import Hop, hops, messages, rotation
from flint.passes.extract.op_classes import TOP_K, key_of
from flint.passes.extract.tensors import Operation, Tensor, show
from flint.passes.extract.windows import REACHES, Reach, feeds_only_rotations, rotation_of
from flint.passes.mlir import defining_operation, is_attention_backward, is_heads_first, target_of
from flint.passes.work.host_copies import CALLBACK_TARGET, ON_SHARDS


@dataclass(frozen=True, slots=True)
class Implied:
    """One collective on operand number `operand`, before the operation itself.

    Of `implied_on_results`: on result number `operand`, after it.
    """

    collective: Collective
    opcode: str
    operand: int
    comm_bytes: int
    result_bytes: int
    cause: str
    group: Group | None = None
    route: Route | None = None
    op: OpClass = OpClass.MOVE  #: what it reduces with


def may_imply(o: Operation) -> bool:
    """Whether `implied_communication` has to be asked, for all operations like `o`."""
    if not any(any(t.sharding) for t in o.operands) or o.name.startswith("sdy."):
        return False
    if o.name == "stablehlo.custom_call" and target_of(o.op) == CALLBACK_TARGET + ON_SHARDS:
        return False
    return o.name in _SHIFTS or RULE not in o.op.attributes


def implied_communication(o: Operation, mesh: Mesh) -> list[Implied]:
    """Collectives that `o` needs on its operands because of how they are sharded."""
    if not may_imply(o):
        return []
    if RULE not in o.op.attributes:
        return _gather_all(o, mesh)
    if o.name == "stablehlo.reverse":
        return list(_mirror(o, mesh))
    if o.name == "stablehlo.dynamic_update_slice":
        return _gather_for_update(o, mesh)
    if o.name == "stablehlo.slice" and feeds_only_rotations(o.op):
        return []
    if o.name == "stablehlo.concatenate" and rotation_of(o.op) is not None:
        return _rotate(o, mesh)
    return list(_exchange(o, mesh))


#: Operations that shift or slide, or write a part: a rule does not say all that they need.
_SHIFTS = frozenset({*REACHES, "stablehlo.reverse", "stablehlo.dynamic_update_slice"})


def implied_on_results(o: Operation, mesh: Mesh) -> list[Implied]:
    """Collectives that complete results of `o`, each after those before it."""
    if o.name == "stablehlo.reduce":
        return _gather_of_partials(o, mesh)
    if key_of(o.op) in TOP_K:
        return _gather_of_found(o, mesh)
    if o.name != "stablehlo.custom_call":
        return []
    if not is_attention_backward(o.op.attributes["call_target_name"].value):
        return []
    return _shared_gradients(o, mesh)


def _shared_gradients(o: Operation, mesh: Mesh) -> list[Implied]:
    """Sums of the gradients of keys and values that queries on several devices share.

    Each of those devices has a part of them. Shardy cannot say so: the same factor is kept in the
    gradient of the queries.
    """
    heads = 1 if is_heads_first(o.op) else 2
    queries, keys = (o.operands[n].sharding[heads] for n in (0, 1))
    group = Group(mesh.canonical(_minor(queries, mesh.group_size(keys), mesh)))
    if group.size(mesh) == 1:
        return []
    cause = (
        f"parts of the gradients of keys and values that queries of {show(o.operands[0].sharding)} "
        f"share, keys {show(o.operands[1].sharding)}"
    )
    return [
        _after(o, number, Collective.ALL_REDUCE, "implied.all_reduce", group, cause)
        for number in (1, 2)
    ]


def _gather_of_partials(o: Operation, mesh: Mesh) -> list[Implied]:
    """A reduction of several values at once (argmax) over a sharded dimension.

    Shardy of jaxlib 0.12 leaves its results partial; the one of 0.10 puts an all-reduce after each,
    which `communication_of` takes for the same gathers. Reducing what is gathered costs little.
    """
    if len(o.results) < 2 or any(_is_completed(result) for result in o.op.results):
        return []
    reduced = [int(d) for d in o.op.attributes["dimensions"]]
    group = Group(mesh.canonical(a for d in reduced for a in o.operands[0].sharding[d]))
    if group.size(mesh) == 1:
        return []
    cause = f"partial results of {o.name} of {show(o.operands[0].sharding)}"
    return [
        _after(o, number, Collective.ALL_GATHER, "implied.all_gather", group, cause)
        for number in range(len(o.results))
    ]


def _gather_of_found(o: Operation, mesh: Mesh) -> list[Implied]:
    """What devices found as the largest few of their parts, with its place where that is asked for.

    To search what is gathered once more costs little.
    """
    group = Group(mesh.canonical(o.operands[0].sharding[-1]))
    if group.size(mesh) == 1:
        return []
    cause = f"the largest of each part of {show(o.operands[0].sharding)}"
    last = max((n for n, result in enumerate(o.op.results) if list(result.uses)), default=0)
    return [
        _after(o, number, Collective.ALL_GATHER, "implied.all_gather", group, cause)
        for number in range(last + 1)
    ]


def _is_completed(result: Any) -> bool:
    names = {use.owner.operation.name for use in result.uses}
    return bool(names & {"sdy.all_reduce", "sdy.reduce_scatter"})


def _after(
    o: Operation, number: int, collective: Collective, opcode: str, group: Group, cause: str
) -> Implied:
    num_bytes = o.results[number].num_bytes
    op = OpClass.ADD if collective is Collective.ALL_REDUCE else OpClass.MOVE
    return Implied(collective, opcode, number, num_bytes, num_bytes, cause, group=group, op=op)


def _minor(axes: tuple[AxisRef, ...], major: int, mesh: Mesh) -> list[AxisRef]:
    """`axes`, major to minor, without their first `major` positions."""
    found = []
    for axis in axes:
        size = mesh.axis_size(axis)
        skipped = math.gcd(major, size)
        major //= skipped
        if skipped < size:
            found.append(AxisRef(axis.name, axis.pre_size * skipped, size // skipped))
    return found


def _exchange(o: Operation, mesh: Mesh) -> Iterator[Implied]:
    """Halos of every sharded dimension; a later dimension also sends what an earlier received."""
    extents = [list(t.shape) for t in o.operands]
    for reach in REACHES[o.name](o):
        tensor = o.operands[reach.operand]
        axes = tensor.sharding[reach.dimension]
        if mesh.group_size(axes) == 1 or not tensor.global_shape[reach.dimension]:
            continue
        extent = extents[reach.operand]
        found = _hops(reach, tensor, axes, mesh)
        if found is None:
            yield _gather(o, reach.operand, reach.dimension, extent, mesh)
            extent[reach.dimension] = tensor.global_shape[reach.dimension]
            continue
        for hop in found:
            yield _permute(o, reach.operand, reach.dimension, hop, extent, mesh)
        low, high = reach.ranges(mesh)
        extent[reach.dimension] = int((high - low).max())


def _hops(reach: Reach, tensor: Tensor, axes: tuple[AxisRef, ...], mesh: Mesh) -> list[Hop] | None:
    """How the dimension's shards reach their readers; None when readers are sharded otherwise."""
    if reach.readers != axes:
        return None
    low, high = reach.ranges(mesh)
    shard, size = tensor.shape[reach.dimension], tensor.global_shape[reach.dimension]
    if reach.exactly:
        return messages(low[: reach.count], high[: reach.count], shard, size)
    # XLA sends into padding as well, except where there are fewer elements than shards.
    return hops(low, high, shard, size, reach.count if reach.length == 1 else None)


def _mirror(o: Operation, mesh: Mesh) -> Iterator[Implied]:
    """`reverse` swaps whole shards p and n - 1 - p; padding first moves from the end to the start."""
    tensor = o.operands[0]
    for dimension in (int(d) for d in o.op.attributes["dimensions"]):
        count = mesh.group_size(tensor.sharding[dimension])
        if count == 1:
            continue
        shard = tensor.shape[dimension]
        padding = shard * count - tensor.global_shape[dimension]
        first = np.arange(count, dtype=np.int64) * shard - padding
        shifts = hops(first, first + shard, shard, tensor.global_shape[dimension])
        if shifts is None:
            yield _gather(o, 0, dimension, list(tensor.shape), mesh)
            continue
        others = [p for p in range(count) if 2 * p != count - 1]
        swap = Hop(shard, pairs=tuple((p, count - 1 - p) for p in others))
        for hop in (*shifts, swap):
            yield _permute(o, 0, dimension, hop, list(tensor.shape), mesh)


def _rotate(o: Operation, mesh: Mesh) -> list[Implied]:
    """`roll`: its two slices and the concatenation together are one shift around the ring."""
    found = rotation_of(o.op)
    assert found is not None, "checked by the caller"
    _, dimension, amount = found
    result = o.results[0]
    axes = result.sharding[dimension]
    count = mesh.group_size(axes)
    if count == 1 or any(t.sharding[dimension] != axes for t in o.operands):
        return []
    shard, size = result.shape[dimension], result.global_shape[dimension]
    found_hops = rotation(amount, shard, count)
    if padding := shard * count - size:  # what comes around the end also crosses the padding
        found_hops = [*rotation(amount + padding, shard, count), *found_hops]
    # The slices are views of one value: the largest of them stands for it.
    operand = max(range(2), key=lambda n: o.operands[n].num_elements)
    return [_permute(o, operand, dimension, h, list(result.shape), mesh) for h in found_hops]


def _gather_for_update(o: Operation, mesh: Mesh) -> list[Implied]:
    """An update of one element or of everything is masked in place; any other is done gathered.

    Unless it is known that it lies in one shard.
    """
    operand, update = o.operands[0], o.operands[1]
    return [
        _gather(o, 0, d, list(operand.shape), mesh)
        for d, axes in enumerate(operand.sharding)
        if mesh.group_size(axes) > 1
        and 1 < update.global_shape[d] < operand.global_shape[d]
        and not _is_in_one_shard(o, d)
    ]


def _is_in_one_shard(o: Operation, dimension: int) -> bool:
    """Whether an update begins at a constant and ends before the next shard does."""
    from jaxlib.mlir import ir

    maker = defining_operation(o.op.operands[2 + dimension])
    if maker is None or maker.name not in ("stablehlo.constant", "sdy.constant"):
        return False
    start = int(ir.DenseIntElementsAttr(maker.attributes["value"])[0])
    shard, size = o.operands[0].shape[dimension], o.operands[1].global_shape[dimension]
    return start // shard == (start + size - 1) // shard


def _gather_all(o: Operation, mesh: Mesh) -> list[Implied]:
    """Without a rule nothing is known about an operation: it sees its operands whole."""
    found = []
    for number, tensor in enumerate(o.operands):
        axes = mesh.canonical(a for dims in tensor.sharding for a in dims)
        if axes:
            whole = math.prod(tensor.global_shape)
            found.append(
                Implied(
                    Collective.ALL_GATHER,
                    "implied.all_gather",
                    number,
                    tensor.num_bytes,
                    _bytes(tensor, whole),
                    f"{show(tensor.sharding)} -> {show(((),) * len(tensor.shape))} "
                    f"for {o.name}, which has no sharding rule",
                    group=Group(axes),
                )
            )
    return found


def _gather(o: Operation, operand: int, dimension: int, extent: list[int], mesh: Mesh) -> Implied:
    tensor = o.operands[operand]
    axes = mesh.canonical(tensor.sharding[dimension])
    elements = math.prod(extent)
    target = (*tensor.sharding[:dimension], (), *tensor.sharding[dimension + 1 :])
    others = elements // max(extent[dimension], 1)
    return Implied(
        Collective.ALL_GATHER,
        "implied.all_gather",
        operand,
        _bytes(tensor, elements),
        _bytes(tensor, others * tensor.global_shape[dimension]),
        f"{show(tensor.sharding)} -> {show(target)} {_reason(o, dimension)}",
        group=Group(axes),
    )


def _permute(
    o: Operation, operand: int, dimension: int, hop: Hop, extent: list[int], mesh: Mesh
) -> Implied:
    tensor = o.operands[operand]
    others = math.prod(extent[:dimension] + extent[dimension + 1 :])
    sent = _bytes(tensor, others * hop.extent)
    return Implied(
        Collective.PERMUTE,
        "implied.collective_permute",
        operand,
        sent,
        sent,
        f"{hop.extent} of {extent[dimension]} elements of dimension {dimension} of "
        f"{show(tensor.sharding)} {_reason(o, dimension)}",
        route=_route(hop, tensor.sharding[dimension], mesh),
    )


def _reason(o: Operation, dimension: int) -> str:
    return f"for {o.name}, which reads across shards of dimension {dimension}"


def _bytes(tensor: Tensor, elements: int) -> int:
    return -(-elements * tensor.num_bytes // max(tensor.num_elements, 1))


def _route(hop: Hop, axes: tuple[AxisRef, ...], mesh: Mesh) -> Route:
    """Shard numbers to devices: along `axes` if they are in mesh order, else by pairs of ranks."""
    order = {name: i for i, name in enumerate(mesh.names)}
    if list(axes) == sorted(axes, key=lambda a: (order[a.name], a.pre_size)):
        canonical = mesh.canonical(axes)
        if not hop.pairs:
            return Route(axes=canonical, offset=hop.offset, wrap=hop.wrap)
        return Route(axes=canonical, pairs=hop.pairs)
    holders = shard_holders(axes, mesh)
    return pairs_to_route(
        np.concatenate(
            [np.stack([holders[s], holders[t]], axis=1) for s, t in _shard_pairs(hop, len(holders))]
        ),
        mesh,
    )


def _shard_pairs(hop: Hop, count: int) -> list[tuple[int, int]]:
    if hop.pairs:
        return list(hop.pairs)
    targets = [(p, p + hop.offset) for p in range(count)]
    return [(p, t % count) for p, t in targets if hop.wrap or 0 <= t < count]
