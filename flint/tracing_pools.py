"""From a prefill and a decode step to the workload of two pools."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from flint.errors import FlintError, nearest
from flint.ir.mesh import Mesh
from flint.ir.workload import Workload
from flint.steps.captured import Captured
from flint.steps.lowering import Lowering
from flint.steps.pools import CacheName, CapturedPools, Disaggregated
from flint.steps.step import Step, TorchStep
from flint.steps.trip_counts import TripCounts

#: What nobody asked for.
_AUTO: Final = Lowering()


def trace_pools(
    pools: Disaggregated,
    mesh: object,
    *,
    name: str = "",
    source: str = "",
    trip_counts: Mapping[str, int] | None = None,
    lowering: Lowering = _AUTO,
) -> Workload:
    """Capture both steps for the whole mesh and compose them to one workload of two classes.

    `name` is for one without a name; `trip_counts` are for loops of both steps. Raises FlintError
    FL240, FL245 and what frontend and partitioner raise.
    """
    from flint.passes.partition.worker import the_worker
    from flint.passes.pools.compose import compose_pools

    the_worker().prestart()  # it imports MLIR while the frontend traces
    captured = capture_pools(
        _lowered_for(pools, lowering) if lowering.compiler else pools,
        Mesh.parse(mesh),
        name=name,
        source=source,
        trip_counts=trip_counts,
    )
    if lowering.compiler:
        from flint.passes.compilers.positions.position_compiler import PositionCompiler

        compiler = PositionCompiler(lowering, captured.axis)
        workload = compiler.signed(compose_pools(captured, compiler.pool))
    else:
        from flint.passes.pools.ports import partition_pool

        by = functools.partial(partition_pool, axis=captured.axis)
        workload = compose_pools(captured, by)
    for step in (captured.prefill, captured.decode):
        TripCounts.of(step.trip_counts).require_taken()
    return workload


def _lowered_for(pools: Disaggregated, lowering: Lowering) -> Disaggregated:
    """The pools with both steps for the platform of a compiler."""
    from flint.passes.compilers.target import find_target

    platform = find_target(lowering.family, lowering.chip).platform
    prefill, decode = (replace(s, platform=platform) for s in (pools.prefill, pools.decode))
    return replace(pools, prefill=prefill, decode=decode)


def capture_pools(
    pools: Disaggregated,
    mesh: Mesh,
    *,
    name: str = "",
    source: str = "",
    trip_counts: Mapping[str, int] | None = None,
) -> CapturedPools:
    """Capture both steps. Raises FlintError FL240 and what the frontends raise."""
    prefill_positions, decode_positions = pools.positions(mesh)
    caches = cache_names(pools)
    counts = TripCounts.of(trip_counts)
    prefill = _capture(pools.prefill, "prefill", mesh, source, counts)
    decode = _capture(pools.decode, "decode", mesh, source, counts)
    return CapturedPools(
        mesh,
        prefill,
        decode,
        pools.axis,
        prefill_positions,
        decode_positions,
        caches,
        pools.name or name or f"{prefill.name} and {decode.name}",
        source,
        (*prefill.warnings, *decode.warnings),
    )


def cache_names(pools: Disaggregated) -> tuple[CacheName, ...]:
    """The entries of `caches`, each with its dimensions. Raises FlintError FL240."""
    if not pools.caches:
        raise FlintError(
            "FL240",
            "the prefill pool sends nothing to the decode pool",
            help="name the caches: Disaggregated(caches={\"result['*']\": \"cache['*']\"})",
        )
    return tuple(
        CacheName(
            result,
            argument,
            _of(pools.batch_dimension, result, 0, pools),
            _of(pools.length_dimension, result, None, pools),
        )
        for result, argument in pools.caches.items()
    )


def _of(given: Any, key: str, default: int | None, pools: Disaggregated) -> Any:
    """The dimension for one key of `caches`: of all, or of that key."""
    if not isinstance(given, Mapping):
        return given
    unknown = [name for name in given if name not in pools.caches]
    if unknown:
        raise FlintError(
            "FL240",
            f"a dimension is given for '{unknown[0]}', which is not a key of "
            f"caches{nearest(unknown[0], list(pools.caches))}",
            help=f"the keys are {', '.join(pools.caches)}",
        )
    return given.get(key, default)


def _capture(
    step: Step | TorchStep, what: str, mesh: Mesh, source: str, trip_counts: TripCounts
) -> Captured:
    step = replace(step, name=step.name or what)
    if isinstance(step, TorchStep):
        from flint.frontends.torch_export import capture_torch

        return capture_torch(step, mesh, source)
    from flint.frontends.jax_step.program import capture_jax

    counts = TripCounts(step.trip_counts, over=trip_counts)
    return capture_jax(replace(step, trip_counts=counts), mesh, source)
