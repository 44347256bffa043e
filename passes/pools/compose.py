"""Both steps and what goes between them become one workload of two rank classes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from flint.errors import FlintError, nearest
from flint.ir.columns import in_order_of_use
from flint.ir.edit import Editor
from flint.ir.mesh import Mesh
from flint.ir.program import Flag, Kind, Program, Row
from flint.ir.rank_class import RankClass
from flint.ir.workload import Workload
from flint.passes.pools.ports import (
    MadeResult,
    PoolStep,
    TensorPort,
    partition_pool,
    where_made,
    where_read,
)
from flint.passes.pools.transfer import CacheLayout, CacheMessage, Exchange, Pools, messages
from flint.passes.rewrites.reduce_scatter import FormReduceScatter
from flint.passes.tensors import show
from flint.steps.captured import Captured
from flint.steps.pools import CacheName, CapturedPools

# Which results of the prefill step become which arguments of the decode step, and in what sizes.


@dataclass(frozen=True)
class CachePair:
    """A result, the argument that it fills, and which of their dimensions may differ."""

    result: TensorPort
    argument: TensorPort
    batch_dimension: int
    length_dimension: int | None

    @property
    def may_be_stacked(self) -> bool:
        """Whether dimension 0 can be that of layers, each of them sent on its own."""
        dims = (self.batch_dimension, self.length_dimension)
        shardings = (self.result.tensor.sharding, self.argument.tensor.sharding)
        return 0 not in dims and not any(s[:1] != ((),) for s in shardings)

    def num_bytes(self, num_elements: int) -> int:
        """Bytes of so many elements of the cache."""
        tensor = self.result.tensor
        bits = tensor.num_bytes * 8 // max(tensor.num_elements, 1)
        return -(-num_elements * bits // 8)


def pair_caches(
    entries: Iterable[CacheName], results: Sequence[TensorPort], arguments: Sequence[TensorPort]
) -> list[CachePair]:
    """The n-th result that fits a glob with the n-th argument that fits the other.

    Raises FlintError FL240 where nothing fits, numbers differ, or an argument is filled twice.
    """
    found: list[CachePair] = []
    filled: set[int] = set()
    for entry in entries:
        given = _fitting(entry.result, results, "result of the prefill step")
        taken = _fitting(entry.argument, arguments, "argument of the decode step")
        if len(given) != len(taken):
            raise FlintError(
                "FL240",
                f"{len(given)} results of the prefill step match '{entry.result}', but "
                f"{len(taken)} arguments of the decode step match '{entry.argument}'",
                help=f"results {_listed(given)}; arguments {_listed(taken)}",
            )
        for result, argument in zip(given, taken, strict=True):
            if argument.row in filled:
                raise FlintError("FL240", f"two caches fill argument {argument.name}")
            filled.add(argument.row)
            found.append(CachePair(result, argument, entry.batch_dimension, entry.length_dimension))
    return found


def _fitting(glob: str, ports: Sequence[TensorPort], what: str) -> list[TensorPort]:
    pattern = re.compile(".*".join(map(re.escape, glob.split("*"))))
    found = [port for port in ports if pattern.fullmatch(port.name)]
    if not found:
        names = [port.name for port in ports]
        raise FlintError(
            "FL240",
            f"there is no {what} named '{glob}'{nearest(glob, names)}",
            help=f"the names are {_listed(ports)}",
        )
    return found


def _listed(ports: Sequence[TensorPort]) -> str:
    names = [port.name for port in ports]
    return ", ".join(names if len(names) <= 12 else [*names[:12], f"and {len(names) - 12} more"])


def exchange_of(cache: CachePair, mesh: Mesh, pools: Pools) -> Exchange:
    """How what one prefill position has for one decode position goes there.

    Its requests are those of the result, dealt out evenly over the positions that it serves.
    Raises FlintError FL245 if types differ or sizes do not fit.
    """
    send, receive = cache.result.tensor, cache.argument.tensor
    given = Exchange(
        mesh,
        CacheLayout(send.global_shape, send.sharding),
        CacheLayout(receive.global_shape, receive.sharding),
        (cache.result.name, cache.argument.name),
    )
    if send.dtype != receive.dtype:
        raise given.refused(f"one is {send.dtype}, the other {receive.dtype}", "cast it in a step")
    batch = cache.batch_dimension
    _check_sizes(given, cache)
    requests, places = send.global_shape[batch], receive.global_shape[batch]
    shards = mesh.group_size(send.sharding[batch])
    if requests % (shards * pools.fan_out):
        raise given.refused(
            f"{requests} requests on {shards} shards cannot be divided evenly among the "
            f"{pools.fan_out} decode positions that one prefill position serves",
            f"make the prefill batch a multiple of {shards * pools.fan_out}",
        )
    dealt = requests // pools.fan_out
    if dealt * pools.fan_in > places:
        raise given.refused(
            f"a decode position has only {places} places for {dealt * pools.fan_in} requests",
            "make the decode batch larger, or the prefill batch smaller",
        )
    return Exchange(
        mesh,
        CacheLayout(_with(send.global_shape, batch, dealt), send.sharding),
        CacheLayout(_with(receive.global_shape, batch, dealt), receive.sharding),
        given.names,
    )


def _check_sizes(exchange: Exchange, cache: CachePair) -> None:
    send, receive = exchange.sender.shape, exchange.receiver.shape
    if len(send) != len(receive):
        raise exchange.refused(f"one has {len(send)} dimensions, the other {len(receive)}")
    for dimension in (cache.batch_dimension, cache.length_dimension):
        if dimension is not None and not 0 <= dimension < len(send):
            raise exchange.refused(
                f"it has no dimension {dimension}",
                "give batch_dimension and length_dimension for each key of caches",
            )
    for number, (ours, theirs) in enumerate(zip(send, receive, strict=True)):
        if number == cache.batch_dimension or ours == theirs:
            continue
        if number != cache.length_dimension or ours > theirs:
            raise exchange.refused(
                f"dimension {number} is {ours} in one and {theirs} in the other",
                "only batch_dimension may differ, and along length_dimension decode may be longer",
            )


def _with(shape: tuple[int, ...], dimension: int, size: int) -> tuple[int, ...]:
    return (*shape[:dimension], size, *shape[dimension + 1 :])


def of_one_layer(exchange: Exchange) -> Exchange:
    """The exchange of one layer of a stack: without the first dimension, which is not sharded."""
    layouts = [
        CacheLayout(layout.shape[1:], layout.sharding[1:])
        for layout in (exchange.sender, exchange.receiver)
    ]
    return Exchange(exchange.mesh, layouts[0], layouts[1], exchange.names)


#: Makes the program of one device of a step.
Partition = Callable[[Captured], PoolStep]


def compose_pools(captured: CapturedPools, given: Partition | None = None) -> Workload:
    """Partition both steps and send each cache from the one to the other.

    A cache that the prefill step stacks in a loop is sent a layer at a time, each as soon as it is
    there; the decode step waits for each layer where it reads it, if it reads a layer at a time.
    Raises FlintError FL240 (a step is sharded over the pools' axis, names that do not fit), FL245
    (a cache that cannot be resharded), and what the partitioner raises.
    """
    partition = given or partial(partition_pool, axis=captured.axis)
    prefill, decode = partition(captured.prefill), partition(captured.decode)
    pools = Pools(captured.axis, captured.prefill_positions, captured.decode_positions)
    pairs = pair_caches(captured.caches, prefill.results, decode.arguments)
    programs = _connected(prefill, decode, pairs, captured.mesh, pools)
    classes = (
        RankClass("prefill", 0, {captured.axis: captured.prefill_positions}),
        RankClass("decode", 1, {captured.axis: captured.decode_positions}),
    )
    return Workload(captured.mesh, programs, classes, _metadata(captured, pairs))


def _connected(
    prefill: PoolStep, decode: PoolStep, caches: list[CachePair], mesh: Mesh, pools: Pools
) -> tuple[Program, Program]:
    """Both programs with the rows that send and receive, one channel for each pair of rows."""
    sends, receives = Editor(prefill.program), Editor(decode.program)
    channel = _first_channel(prefill.program, decode.program)
    for cache in caches:
        made = where_made(prefill.program, cache.result, stacked=cache.may_be_stacked)
        exchange = exchange_of(cache, mesh, pools)
        sent = messages(of_one_layer(exchange) if made.layers else exchange, pools)
        _send(sends, cache, made, sent, channel)
        _receive(receives, cache, made.layers, sent, channel)
        channel += len(sent)
    edited = (FormReduceScatter().apply(edit.build().program) for edit in (sends, receives))
    built = map(in_order_of_use, edited)
    return next(built), next(built)


def _first_channel(*programs: Program) -> int:
    return 1 + max(int(p.channel.max(initial=-1)) for p in programs)


def _send(
    edit: Editor, cache: CachePair, made: MadeResult, sent: list[CacheMessage], channel: int
) -> None:
    near, place = edit.program.row(made.row), made.place
    for i, message in enumerate(sent):
        columns = _row(Kind.SEND, cache, message, channel + i, near)
        edit.add(place.before, place.region, [made.row], **columns)


def _receive(
    edit: Editor, cache: CachePair, layers: int, sent: list[CacheMessage], channel: int
) -> None:
    """What is received is written into places of the argument; it waits for nothing else."""
    argument = cache.argument.row
    place, by_layer = where_read(edit.program, cache.argument, layers)
    near, region = edit.program.row(place.readers[0]), place.region
    if not by_layer and layers:
        region = edit.loop(region, layers, f"receive {cache.argument.name}")
    received = []
    for i, message in enumerate(sent):
        columns = _row(Kind.RECV, cache, message, channel + i, near)
        received.append(edit.add(place.before, region, [argument], alias=argument, **columns))
    for reader in place.readers:
        edit.change(reader, deps=[*edit.reads(reader), *received])


def _row(
    kind: Kind, cache: CachePair, message: CacheMessage, channel: int, near: Row
) -> dict[str, Any]:
    """Columns of a row that sends or receives; `near` says where in the source that is."""
    send, receive = cache.result, cache.argument
    num_bytes = cache.num_bytes(message.num_elements)
    sends = kind is Kind.SEND
    return {
        "opcode": f"pool.{kind.name.lower()}",
        "kind": kind,
        "dtype": send.tensor.dtype,
        "shape": message.shape,
        "result_bytes": 0 if sends else num_bytes,
        "operand_bytes": num_bytes if sends else 0,
        "comm_bytes": num_bytes,
        "route": message.route,
        "channel": channel,
        "name": send.name if sends else receive.name,
        "scope": near.scope,
        "location": near.location,
        "phase": near.phase,
        "cause": f"{send.name} {show(send.tensor.sharding)} -> "
        f"{receive.name} {show(receive.tensor.sharding)}",
        "flags": 0 if sends else Flag.IN_PLACE,
    }


def _metadata(captured: CapturedPools, caches: list[CachePair]) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "producer": "flint",
        "name": captured.name,
        "source": captured.source,
        "partitioner": "xla",
        "pools": {
            "axis": captured.axis,
            "prefill": list(captured.prefill_positions),
            "decode": list(captured.decode_positions),
            "caches": {c.result.name: c.argument.name for c in caches},
        },
    }
    if captured.warnings:
        metadata["warnings"] = list(dict.fromkeys(captured.warnings))
    return metadata
