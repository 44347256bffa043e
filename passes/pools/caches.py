"""Which results of the prefill step become which arguments of the decode step, and in what sizes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flint.errors import FlintError, nearest
from flint.ir.mesh import Mesh
from flint.passes.pools.ports import TensorPort
from flint.passes.pools.transfer import CacheLayout, Exchange, Pools
from flint.steps.pools import CacheName


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
