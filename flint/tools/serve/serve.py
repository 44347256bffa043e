"""From a model, a machine and requests to what users of the model would see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from flint.cluster.models import Cluster
from flint.errors import FlintError
from flint.ir.workload import Workload
from flint.log import stage
from flint.requests.capture import CaptureRequest
from flint.requests.estimate import EstimateRequest
from flint.text import share_in
from flint.tools.serve.engine.engines import rules_of
from flint.tools.serve.engine.rules import EngineRules
from flint.tools.serve.limits import Limit, limits_of
from flint.tools.serve.replay import Pool, Replay, Router, replay
from flint.tools.serve.request import ServeRequest
from flint.tools.serve.requests.generated import requests_of
from flint.tools.serve.requests.table import Requests
from flint.tools.serve.result import ServeSummary, summarize
from flint.tools.serve.surface.surface import Surface, passes_of, surface_on


@dataclass(frozen=True, eq=False)
class Served:
    """A replay of requests on the engines of a model, and what it rests on."""

    replay: Replay
    surfaces: tuple[Surface, ...]  #: of each pool
    limits: tuple[Limit, ...]
    devices: int

    @cached_property
    def summary(self) -> ServeSummary:
        """Times and rates: what is printed."""
        return summarize(self.replay, self.limits)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was assumed, of requests and of passes, a sentence each."""
        texts = [*self.replay.requests.notes, *(n for s in self.surfaces for n in s.notes)]
        return tuple(dict.fromkeys(texts))


def serve(captured: CaptureRequest, estimated: EstimateRequest, asked: ServeRequest) -> Served:
    """Replay requests on engines of a captured model.

    Raises FlintError FL884 to FL892 for requests, options and limits that cannot be, FL893 to FL895
    for the model, and what capturing and estimating raise.
    """
    limits = limits_of(asked.limits) if asked.limits else ()
    share, kinds = _share(asked.memory_share), _kinds(captured, estimated, asked)
    requests = requests_of(asked.requests)
    _require_lengths(requests, asked.longest)
    surfaces = _surfaces(kinds, captured, estimated)
    tokens = requests.input_tokens + requests.output_tokens
    served = [
        replace(
            surface,
            memory_share=share,
            most_new=kind.rules.max_tokens,
            most_sequences=min(kind.rules.max_sequences, len(requests)),
            most_context=asked.longest or int(tokens.max(initial=1)),
            longest=asked.longest,
            sequence_ns=kind.rules.sequence_ns,
        )
        for surface, kind in zip(surfaces, kinds, strict=True)
    ]
    for surface in served:
        _ = surface.cache_tokens  # raises where none fits, before anything is replayed
    pools = [Pool(s, kind.rules, kind.engines) for s, kind in zip(served, kinds, strict=True)]
    with stage("replay"):
        found = replay(requests, *pools, router=Router(asked.router))
    sizes = (surface.setting.workload.mesh.size for surface in served)
    devices = sum(pool.engines * size for pool, size in zip(pools, sizes, strict=True))
    return Served(found, tuple(served), limits, devices)


def _surfaces(
    kinds: Sequence[_Kind], captured: CaptureRequest, estimated: EstimateRequest
) -> list[Surface]:
    """The surface of each kind: a mesh is captured once, and priced once on each machine."""
    passes, priced = dict[str | None, list[Workload]](), dict[tuple[str | None, str], Surface]()
    for kind in kinds:
        if kind.mesh not in passes:
            passes[kind.mesh] = passes_of(captured.but(mesh=kind.mesh))
        if kind.machine not in priced:
            on = estimated.but(cluster=kind.cluster)
            priced[kind.machine] = surface_on(passes[kind.mesh], on)
    return [priced[kind.machine] for kind in kinds]


@dataclass(frozen=True)
class _Kind:
    """The engines of one pool, as they were asked for."""

    rules: EngineRules
    mesh: str | None
    cluster: str | Path | Cluster | None
    engines: int

    @property
    def machine(self) -> tuple[str | None, str]:
        """What tells surfaces apart."""
        return self.mesh, str(self.cluster)


def _kinds(
    captured: CaptureRequest, estimated: EstimateRequest, asked: ServeRequest
) -> list[_Kind]:
    first = _Kind(rules_of(asked.engine), captured.mesh, estimated.cluster, asked.replicas)
    if asked.decode_replicas:
        rules = rules_of(asked.decode_engine or asked.engine)
        mesh, cluster = asked.decode_mesh or first.mesh, asked.decode_cluster or first.cluster
        return [first, _Kind(rules, mesh, cluster, asked.decode_replicas)]
    if asked.decode_mesh or asked.decode_cluster or asked.decode_engine:
        raise FlintError(
            "FL218", "engines that decode have no number", help="add --decode-replicas N"
        )
    return [first]


def _share(text: str) -> float:
    found = share_in(text)
    if not 0 < found <= 1:
        raise FlintError(
            "FL892", f"--memory-share {text} is no share", help="give 90%, or a number up to 1"
        )
    return found


def _require_lengths(requests: Requests, longest: int | None) -> None:
    tokens = requests.input_tokens + requests.output_tokens
    if longest is not None and (tokens > longest).all():
        raise FlintError(
            "FL888",
            f"all requests are longer than the model takes: {int(tokens.min()):,} tokens or more, "
            f"and --longest {longest:,}",
        )


def requests_rows(served: Served) -> Sequence[Sequence[object]]:
    """A row for each request: tokens, seconds of its events, preemptions, cached tokens and engine."""
    r, t = served.replay.requests, served.replay.times
    seconds = ((x / 1e9).round(6).tolist() for x in (t.queued, t.scheduled, t.first, t.last))
    return list(
        zip(
            r.input_tokens.tolist(), r.output_tokens.tolist(), *seconds,
            t.preemptions.tolist(), t.cached.tolist(), t.replica.tolist(), strict=True,
        )
    )  # fmt: skip


#: The header of `requests_rows`, as logs have it: what is written can be read again.
REQUEST_COLUMNS = (
    "input_tokens", "output_tokens", "queued_s", "scheduled_s", "first_token_s", "last_token_s",
    "preemptions", "cached_tokens", "engine",
)  # fmt: skip
