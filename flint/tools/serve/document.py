"""What `flint serve --json` prints, and the schedule of its steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from typing_extensions import TypedDict

from flint.tools.serve.result import ServeSummary

if TYPE_CHECKING:
    from flint.tools.serve.serve import Served
    from flint.tools.serve.surface.surface import Surface


class EngineDocument(TypedDict):
    """What one engine of a pool is. Bytes are those of one device."""

    cluster: str  #: Name of its machines.
    devices: int  #: How many it has.
    stack: str  #: Whose software runs.
    kernels: str  #: Profile of its kernels.
    cache_tokens: int  #: Tokens that fit into its cache.
    cache_bytes_per_token: float  #: Of one token in the cache.
    weight_bytes: int  #: Of the model's weights.
    largest_pass_bytes: int  #: Activations of the largest pass.
    runtime_bytes: int  #: What the software keeps.
    capacity_bytes: int  #: Memory of a device.


class ServeDocument(TypedDict):
    """What `flint serve --json` prints."""

    schema: Literal["flint.serve/1"]  #: Kind and version of this document.
    program: str  #: Name of the captured model.
    devices: int  #: Of all engines.
    requests: str  #: As they were asked for.
    engines: list[EngineDocument]  #: One, or that which prefills and that which decodes.
    summary: ServeSummary  #: Times, rates, and what each pool did.
    ends: list[ServeSummary]
    """The same if all passes are as short, and as long, as estimates say they may be four times of five."""
    notes: list[str]  #: What was assumed.


class KindDocument(TypedDict):
    """One kind of step: the step of the run that its trace is of."""

    name: str  #: What the step computes, and the power of two that its tokens are at most.
    folder: str  #: Where its traces are.
    steps: int  #: How many steps of the run are of this kind.
    decodes: int  #: Sequences that decode.
    decode_context: int  #: Tokens that their caches hold together.
    prompts: list[list[int]]  #: Of each prompt its new tokens, and those in the cache before.
    compute_ns: int  #: Of the kernels of a rank: what the nodes of a trace take together, to 1 us.
    communication_ns: int  #: Of its collectives by Flint's models; a simulator has its own.
    engine_ns: int  #: Of the host and for each sequence: before the step, in no trace.


class PoolDocument(TypedDict):
    """Engines of one kind, and their steps."""

    name: str  #: engine, or prefill and decode.
    cluster: str  #: Name of its machines.
    mesh: str  #: Devices of an engine.
    engines: int  #: How many.
    busy_ns: int  #: Of all steps of the run.
    kinds_ns: int  #: The same if each step takes what the trace of its kind does.
    mean_deviation: float  #: Of a step's time from that of its kind, as a share of the mean step.
    kinds: list[KindDocument]  #: By what they compute, then by size.


class StepDocument(TypedDict):
    """One step of one engine."""

    pool: str  #: Name of the pool.
    engine: int  #: Number of the engine in its pool.
    start_ns: int  #: Since the beginning of the replay.
    duration_ns: int  #: To the start of what follows at once, the host's time included.
    kind: str  #: Name of the kind.
    batch: int  #: Sequences.
    new_tokens: int  #: Of all sequences.
    context: int  #: Tokens of all sequences in the cache before.
    prompts: list[list[int]]  #: Of each: request, new tokens, those in the cache before.
    decodes: list[int]  #: Numbers of requests that decode.


class RequestDocument(TypedDict):
    """One request; its number is its place in the list."""

    arrival_ns: int | None  #: Since the beginning of the replay.
    input_tokens: int  #: Of its prompt.
    output_tokens: int  #: Of its answer.


class ServedScheduleDocument(TypedDict):
    """What `flint serve --export chakra:DIR` writes beside traces: when which step ran, and for whom."""

    schema: Literal["flint.serve-schedule/1"]  #: Kind and version of this document.
    program: str  #: Name of the captured model.
    load: str  #: Requests as they were asked for.
    pools: list[PoolDocument]  #: One, or that which prefills and that which decodes.
    requests: list[RequestDocument]  #: In the order of their numbers.
    steps: list[StepDocument]  #: Of an engine in order; engines one after another.


def serve_document(served: Served) -> ServeDocument:
    """The document `flint.serve/1`."""
    workload = served.surfaces[0].setting.workload
    return {
        "schema": "flint.serve/1",
        "program": str(workload.metadata.get("name") or "program"),
        "devices": served.devices,
        "requests": served.replay.requests.source,
        "engines": [_engine(surface) for surface in served.surfaces],
        "summary": served.summary,
        "ends": list(served.ends),
        "notes": list(served.notes),
    }


def _engine(surface: Surface) -> EngineDocument:
    setting, memory = surface.setting, surface.memory
    return {
        "cluster": setting.cluster.name,
        "devices": setting.workload.mesh.size,
        "stack": setting.stack.name,
        "kernels": setting.profile,
        "cache_tokens": surface.cache_tokens,
        "cache_bytes_per_token": round(memory.token_bytes, 3),
        "weight_bytes": memory.weight_bytes,
        "largest_pass_bytes": surface.largest_pass_bytes,
        "runtime_bytes": memory.runtime_bytes,
        "capacity_bytes": memory.capacity_bytes,
    }
