"""The memory that a recorded step finds: what becomes its arguments."""

from __future__ import annotations

import math

from flint.frontends.torch_world.program.operands import (
    base_storage,
    does_nothing,
    is_view,
    read,
    results,
)
from flint.frontends.torch_world.record.recording import Recording, TensorInfo

#: Roles of memory that a step may overwrite for the next one.
DONATED_ROLES = ("parameter", "buffer", "optimizer")


def found_memory(recording: Recording) -> dict[int, TensorInfo]:
    """Memory that the step finds, by storage, in order of first use, untouched memory last.

    That with a role, and what an event reads and none before it wrote. A gradient or input counts
    only if it is read: between steps a gradient may be gone. Memory without a name that rows are
    put into was allocated for them, or is older than the step.
    """
    found: dict[int, TensorInfo] = {}
    known: set[int] = set()
    seen: dict[int, TensorInfo] = {}  # an expanded view is larger than its memory
    for event in recording.events:
        if does_nothing(event) or is_view(event):
            seen.update((t.storage, t) for t in event.inputs if t.storage not in seen)
            continue
        base = base_storage(event)
        for tensor in read(event):
            if tensor.storage == base and base not in recording.storages:
                continue
            if tensor.storage not in known:
                known.add(tensor.storage)
                first = seen.get(tensor.storage, tensor)
                found[tensor.storage] = _as_found(first, recording)
        for tensor in results(event):
            if tensor.storage not in known and tensor.storage in recording.storages:
                _add_persistent(tensor.storage, recording, found)
            elif tensor.storage not in known and tensor.storage in event.writes:
                _add_older(tensor, recording, found)
            known.add(tensor.storage)
    for storage in recording.storages:
        if storage not in known and storage not in recording.leaving:
            _add_persistent(storage, recording, found)
    for storage, num_bytes in recording.older.items():
        if storage not in known | found.keys():  # and nothing in the step uses it
            found[storage] = TensorInfo(storage, (num_bytes,), "ui8", num_bytes)
    return found


def leaving_together(recording: Recording) -> list[tuple[list[int], int]]:
    """Storages that are there before the step and go unused at the same time, with their bytes."""
    freed, ends = dict(recording.freed), dict[int, list[int]]()
    for storage in recording.leaving:
        ends.setdefault(freed[storage], []).append(storage)
    return [(group, sum(map(recording.leaving.__getitem__, group))) for group in ends.values()]


def replaced(recording: Recording) -> set[int]:
    """Storages that are there before the step, and that it lets go of on its way for good.

    Other memory has their place then: parameters that are made anew, running averages.
    """
    events = recording.events
    used = {t.storage: n for n, e in enumerate(events) for t in (*e.inputs, *e.outputs)}
    gone = {s for s, at in recording.freed if used.get(s, at) < at < len(events)}
    others = {s for s, info in recording.storages.items() if info.role not in DONATED_ROLES}
    return gone - others - recording.older.keys()


def _add_persistent(storage: int, recording: Recording, found: dict[int, TensorInfo]) -> None:
    info = recording.storages[storage]
    if info.role in DONATED_ROLES:
        found[storage] = TensorInfo(storage, info.shape, info.dtype, info.num_bytes)


def _as_found(tensor: TensorInfo, recording: Recording) -> TensorInfo:
    info = recording.storages.get(tensor.storage)
    if info is None:
        return tensor
    return TensorInfo(tensor.storage, info.shape, info.dtype, info.num_bytes)


def _add_older(part: TensorInfo, recording: Recording, found: dict[int, TensorInfo]) -> None:
    """The memory that a tensor is in or all of, if it outlives the step."""
    num_bytes = recording.older.get(part.storage, 0)
    if num_bytes and part.num_bytes:
        elements = num_bytes * math.prod(part.shape) // part.num_bytes
        found[part.storage] = TensorInfo(part.storage, (elements,), part.dtype, num_bytes)
