"""From a model, a machine and requests to what users of the model would see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from flint.cluster.models import Cluster
from flint.cluster.tables import Quantity
from flint.errors import FlintError
from flint.log import stage
from flint.requests.capture import CaptureRequest
from flint.requests.estimate import EstimateRequest
from flint.text import share_in
from flint.tools.serve.engine.engines import rules_of
from flint.tools.serve.engine.rules import EngineRules
from flint.tools.serve.engine.speculative import speculating
from flint.tools.serve.replay import Pool, Replay, Router, replay
from flint.tools.serve.request import ServeRequest
from flint.tools.serve.requests.generated import requests_of
from flint.tools.serve.requests.table import Requests
from flint.tools.serve.result import Limit, ServeSummary, limits_of, summarize, unsteady
from flint.tools.serve.surface.captured import PassCaptures
from flint.tools.serve.surface.surface import Surface, passes_of, surface_on


@dataclass(frozen=True, eq=False)
class Served:
    """A replay of requests on the engines of a model, and what it rests on."""

    replay: Replay
    surfaces: tuple[Surface, ...]  #: of each pool
    limits: tuple[Limit, ...]
    pool_devices: tuple[int, ...]  #: of all engines of each pool
    ends: tuple[ServeSummary, ...] = ()
    """If all passes are as short, and as long, as estimates say they may be four times of five."""

    @property
    def devices(self) -> int:
        """Of all pools."""
        return sum(self.pool_devices)

    def summed(self, of: Callable[[Cluster], Quantity | None]) -> float:
        """A number of each device's cluster, such as its price, over all devices; 0 where a pool has none."""
        found = [of(surface.setting.cluster) for surface in self.surfaces]
        pools = zip(self.pool_devices, found, strict=True)
        return sum(n * each.value for n, each in pools if each) if all(found) else 0.0

    @cached_property
    def summary(self) -> ServeSummary:
        """Times and rates: what is printed."""
        return summarize(self.replay, self.limits)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was assumed, of requests and of passes, a sentence each."""
        texts = [*self.replay.requests.notes, *(n for s in self.surfaces for n in s.notes)]
        return tuple(dict.fromkeys((*texts, *unsteady(self.replay, self.summary))))


def serve(
    captured: CaptureRequest,
    estimated: EstimateRequest,
    asked: ServeRequest,
    known: Surfaces | None = None,
    *,
    sure: bool = True,
) -> Served:
    """Replay requests on engines of a captured model; `known` are surfaces of it from other replays.

    If `sure`, also with all passes at both ends of the intervals of their estimates.

    Raises FlintError FL884 to FL892 for requests, options and limits that cannot be, FL893 to FL895
    for the model, and what capturing and estimating raise.
    """
    limits = limits_of(asked.limits) if asked.limits else ()
    share, kinds = _share(asked.memory_share), _kinds(captured, estimated, asked)
    requests = requests_of(asked.requests)
    _require_lengths(requests, asked.longest)
    known = known or Surfaces(captured)
    surfaces = [known.of(k.mesh, estimated.but(cluster=k.cluster)) for k in kinds]
    tokens = requests.input_tokens + requests.output_tokens
    served = [
        replace(
            surface,
            memory_share=share,
            longest=asked.longest,
            most_new=kind.rules.max_tokens,
            most_sequences=min(kind.rules.max_sequences, len(requests)),
            most_context=asked.longest or int(tokens.max(initial=1)),
            sequence_ns=kind.rules.sequence_ns,
        )
        for surface, kind in zip(surfaces, kinds, strict=True)
    ]
    for surface in served:
        _ = surface.cache_tokens  # raises where none fits, before anything is replayed

    def replayed(power: int) -> Replay:
        pools = [
            Pool(*speculating(s.longer(s.factor**power), kind.rules), kind.engines)
            for s, kind in zip(served, kinds, strict=True)
        ]
        return replay(requests, *pools, router=Router(asked.router))

    with stage("replay"):
        found = replayed(0)
        ends = tuple(summarize(replayed(power), limits) for power in (-1, 1)) if sure else ()
    pools = zip(kinds, served, strict=True)
    devices = tuple(kind.engines * surface.setting.workload.mesh.size for kind, surface in pools)
    return Served(found, tuple(served), limits, devices, ends)


@dataclass
class Surfaces:
    """Surfaces of a model: a mesh is captured once, and priced once on each machine."""

    captured: CaptureRequest
    _passes: dict[str | None, PassCaptures] = field(default_factory=dict, init=False)
    _priced: dict[tuple[str | None, str], Surface] = field(default_factory=dict, init=False)

    def of(self, mesh: str | None, estimated: EstimateRequest) -> Surface:
        """The surface of the model on a mesh, priced so. Raises what `surface_of` does."""
        key = mesh, repr(sorted(estimated.given().items()))
        if key not in self._priced:
            if mesh not in self._passes:
                self._passes[mesh] = passes_of(self.captured.but(mesh=mesh))
            self._priced[key] = surface_on(self._passes[mesh], estimated)
        return self._priced[key]


@dataclass(frozen=True)
class _Kind:
    """The engines of one pool, as they were asked for."""

    rules: EngineRules
    mesh: str | None
    cluster: str | Path | Cluster | None
    engines: int


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
        least = f"{int(tokens.min()):,} tokens or more, and --longest {longest:,}"
        raise FlintError("FL888", f"all requests are longer than the model takes: {least}")


def requests_rows(served: Served) -> Sequence[Sequence[object]]:
    """A row for each request: tokens, seconds of its events, preemptions, cached tokens and engine."""
    r, t = served.replay.requests, served.replay.times
    seconds = ((x / 1e9).round(6).tolist() for x in (t.queued, t.scheduled, t.first, t.last))
    return list(
        zip(
            r.input_tokens.tolist(),
            r.output_tokens.tolist(),
            *seconds,
            t.preemptions.tolist(),
            t.cached.tolist(),
            t.replica.tolist(),
            strict=True,
        )
    )


#: The header of `requests_rows`, as logs have it: what is written can be read again.
REQUEST_COLUMNS = (
    "input_tokens",
    "output_tokens",
    "queued_s",
    "scheduled_s",
    "first_token_s",
    "last_token_s",
    "preemptions",
    "cached_tokens",
    "engine",
)
