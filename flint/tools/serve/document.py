"""What `flint serve --json` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from flint.tools.serve.result import ServeSummary

if TYPE_CHECKING:
    from flint.tools.serve.serve import Served
    from flint.tools.serve.surface.surface import Surface


class ServeDocument(TypedDict):
    schema: str
    program: str
    devices: int
    requests: str
    engines: list[EngineDocument]
    summary: ServeSummary
    notes: list[str]


class EngineDocument(TypedDict):
    """What one engine of a pool is: its devices and the memory of each, in bytes."""

    cluster: str
    devices: int
    stack: str
    kernels: str
    cache_tokens: int
    cache_bytes_per_token: float
    weight_bytes: int
    pass_bytes_per_token: float
    runtime_bytes: int
    capacity_bytes: int


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
        "pass_bytes_per_token": round(memory.pass_bytes, 3),
        "runtime_bytes": memory.runtime_bytes,
        "capacity_bytes": memory.capacity_bytes,
    }
