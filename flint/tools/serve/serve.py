"""From a model, a machine and requests to what users of the model would see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from flint.errors import FlintError
from flint.log import stage
from flint.requests.capture import CaptureRequest
from flint.requests.estimate import EstimateRequest
from flint.tools.serve.engine.engines import rules_of
from flint.tools.serve.limits import Limit, limits_of
from flint.tools.serve.replay import Pool, Replay, Router, replay
from flint.tools.serve.request import ServeRequest
from flint.tools.serve.requests.generated import requests_of
from flint.tools.serve.requests.table import Requests
from flint.tools.serve.result import ServeSummary, summarize
from flint.tools.serve.surface.surface import Surface, surface_of


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
    requests = requests_of(asked.requests)
    pools, surfaces, devices = _pools(captured, estimated, asked, requests)
    _require_lengths(requests, asked.longest)
    with stage("replay"):
        found = replay(requests, *pools, router=Router(asked.router))
    return Served(found, surfaces, limits, devices)


def _pools(
    captured: CaptureRequest,
    estimated: EstimateRequest,
    asked: ServeRequest,
    requests: Requests,
) -> tuple[list[Pool], tuple[Surface, ...], int]:
    """The pools, the surface of each, and the devices of all engines together."""
    kinds = [(asked.engine, captured.mesh, estimated.cluster, asked.replicas)]
    if asked.decode_replicas:
        mesh, cluster = (
            asked.decode_mesh or captured.mesh,
            asked.decode_cluster or estimated.cluster,
        )
        kinds.append((asked.decode_engine or asked.engine, mesh, cluster, asked.decode_replicas))
    elif asked.decode_mesh or asked.decode_cluster or asked.decode_engine:
        raise FlintError(
            "FL218", "engines that decode have no number", help="add --decode-replicas N"
        )
    made: dict[object, Surface] = {}
    longest = int((requests.input_tokens + requests.output_tokens).max(initial=1))
    pools, surfaces, devices = [], [], 0
    for engine, mesh, cluster, count in kinds:
        rules, key = rules_of(engine), (mesh, str(cluster))
        if key not in made:
            made[key] = surface_of(captured.but(mesh=mesh), estimated.but(cluster=cluster))
        surface = replace(
            made[key],
            memory_share=_share(asked.memory_share),
            most_new=rules.max_tokens,
            most_sequences=min(rules.max_sequences, len(requests)),
            most_context=asked.longest or longest,
            longest=asked.longest,
            sequence_ns=rules.sequence_ns,
        )
        _ = surface.cache_tokens  # raises where none fits, before anything is replayed
        pools.append(Pool(surface, rules, count))
        surfaces.append(surface)
        devices += count * surface.setting.workload.mesh.size
    return pools, tuple(surfaces), devices


def _share(text: str) -> float:
    number = text.strip().removesuffix("%")
    try:
        found = float(number) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        found = 0.0
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
