"""Copies between the memories of device and host in a recorded step, and which of them count."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from flint.frontends.torch_world.record.recording import Event, HostCopy, Recording


def with_known_sources(recording: Recording) -> Iterator[Event]:
    """The events of a step; copies of its inputs to the device are events without a source.

    What the step itself put on the host (offloaded activations) and weights and states that live
    there are copied over the host's link. A batch is not: loaders copy it while the step before
    runs, so that it is on the device when the step starts.
    """
    filled: set[int] = set()
    for event in recording.events:
        if event.host is HostCopy.TO_HOST:
            filled.update(t.storage for t in event.outputs)
        elif event.host is HostCopy.FROM_HOST and not _lives_there(event, recording, filled):
            event = replace(event, inputs=(), host=HostCopy.NONE)
        yield event


def _lives_there(event: Event, recording: Recording, filled: set[int]) -> bool:
    source = event.inputs[0].storage
    info = recording.storages.get(source)
    return source in filled or (info is not None and info.on_host)
