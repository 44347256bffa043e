"""Recordings for tests, written by hand: what a frontend process would have seen."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from flint.frontends.torch_world.record.recording import (
    Comm,
    CommKind,
    DeviceMeshInfo,
    Event,
    GroupInfo,
    Recording,
    StorageInfo,
    TensorInfo,
)
from flint.ir.program import Collective

ITEM_BYTES = {"f32": 4, "bf16": 2, "i64": 8, "i1": 1}


def tensor(storage: int, *shape: int, dtype: str = "f32") -> TensorInfo:
    """A dense local tensor."""
    return TensorInfo(storage, shape, dtype, math.prod(shape) * ITEM_BYTES[dtype])


def part(storage: int, first: int, *shape: int) -> TensorInfo:
    """Part of a float32 storage, from its element `first` on."""
    whole = tensor(storage, *shape)
    return replace(whole, extent=(4 * first, 4 * first + whole.num_bytes))


def event(op: str, inputs: Any = (), outputs: Any = (), **fields: Any) -> Event:
    """An event; an overload is added to names without one."""
    full = op if op.count(".") > 1 else f"{op}.default"
    return Event(full, tuple(inputs), tuple(outputs), **fields)


def update(op: str, inputs: Any, **fields: Any) -> Event:
    """An event that writes its first input and returns it."""
    first = inputs[0]
    return event(op, inputs, [first], writes=(first.storage,), **fields)


def collective(kind: Collective, group: str, num_bytes: int, **fields: Any) -> Comm:
    """The network side of a collective."""
    return Comm(CommKind.COLLECTIVE, kind, group, num_bytes, **fields)


def stored(role: str, name: str, of: TensorInfo, **fields: Any) -> StorageInfo:
    """Memory with a role."""
    return StorageInfo(of.num_bytes, role, name, of.shape, of.dtype, **fields)


def recording(*events: Event, **fields: Any) -> Recording:
    """Rank 0 of four, with groups `tp` (0, 1) and `dp` (0, 2) of a 2x2 mesh."""
    base: dict[str, Any] = {
        "rank": 0,
        "world_size": 4,
        "streams": ("compute",),
        "storages": {},
        "meshes": (DeviceMeshInfo(("dp", "tp"), (2, 2), (0, 1, 2, 3)),),
        "groups": {
            "tp": GroupInfo("mesh_tp", (0, 1)),
            "dp": GroupInfo("mesh_dp", (0, 2)),
            "world": GroupInfo("default_pg", (0, 1, 2, 3)),
            "self": GroupInfo("", (0,)),
        },
    }
    return Recording(events=tuple(events), **{**base, **fields})
