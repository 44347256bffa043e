"""What `flint serve --json` prints."""

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
