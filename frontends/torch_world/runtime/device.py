"""The virtual accelerator: what PyTorch asks of a device's module, answered without a device.

It is registered as the `flint` device (PyTorch's PrivateUse1 slot). Nothing executes on it; its
streams and events note the order that the program asks for, which the recorder reads.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self, TypeAlias

import torch

NAME = "flint"
#: What a program that asks is told: an 80 GiB accelerator.
MEMORY_BYTES = 80 * 2**30
#: What programs name a device by.
Device: TypeAlias = torch.device | str | int | None


class DeviceTimeline:
    """Streams of the device, which one is current, and the order between them.

    Events of the recording are numbers; `next_event` is that of the next one.
    """

    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self.next_event = 0
        self.current = Stream(self)
        self.default = self.current

    def take_waits(self) -> tuple[int, ...]:
        """The events that the next one waits for; it becomes the last of the current stream."""
        stream = self.current
        waits = tuple(sorted(stream.pending.values())) if stream.pending else ()
        stream.pending.clear()
        stream.last = self.next_event
        self.next_event += 1
        return waits

    def restart(self) -> None:
        """Forget events so far: a recording starts."""
        self.next_event = 0
        for stream in self.streams:
            stream.last = -1
            stream.pending.clear()
            stream.generation += 1


class Stream:
    """A queue of work: what `torch.cuda.Stream` is to a program.

    `last` is the last event on it (-1: none), `pending` the last event of each other stream that
    the next one on this has to wait for.
    """

    def __init__(self, timeline: DeviceTimeline, device: Device = None, priority: int = 0) -> None:
        self.timeline = timeline
        self.stream_id = len(timeline.streams)
        self.priority = priority
        self.last = -1
        self.generation = 0
        self.pending: dict[int, int] = {}
        timeline.streams.append(self)

    @property
    def device(self) -> torch.device:
        return torch.device(NAME, 0)

    @property
    def device_index(self) -> int:
        return 0

    @property
    def cuda_stream(self) -> int:
        return self.stream_id

    @property
    def name(self) -> str:
        """`compute` or `stream 2`."""
        return "compute" if self.stream_id == 0 else f"stream {self.stream_id}"

    def wait_stream(self, other: Stream) -> None:
        """What comes next waits for everything that is on the other stream now."""
        self._wait(other.marks())

    def wait_event(self, event: StreamEvent) -> None:
        """What comes next waits for what was on the event's stream when it was recorded."""
        if event.recorded_on is not None and event.generation == event.recorded_on.generation:
            self._wait(event.marks)

    def record_event(self, event: StreamEvent | None = None) -> StreamEvent:
        """Mark the end of the stream."""
        event = event or StreamEvent(self.timeline)
        event.record(self)
        return event

    def synchronize(self) -> None:
        """The host waits; it takes no time here."""

    def query(self) -> bool:
        """Everything is always over."""
        return True

    def marks(self) -> dict[int, int]:
        """The last event of each stream that is over when this stream is."""
        found = dict(self.pending)
        if self.last >= 0:
            found[self.stream_id] = self.last
        return found

    def wait_for(self, event: int, stream: int) -> None:
        """What comes next waits for one event of the recording."""
        self._wait({stream: event})

    def _wait(self, marks: dict[int, int]) -> None:
        for stream, event in marks.items():
            if stream != self.stream_id and event > self.pending.get(stream, -1):
                self.pending[stream] = event

    def __enter__(self) -> Self:
        self._outer = self.timeline.current
        self.timeline.current = self
        return self

    def __exit__(self, *unused: object) -> None:
        self.timeline.current = self._outer


class StreamEvent:
    """A point on a stream: what `torch.cuda.Event` is to a program."""

    def __init__(self, timeline: DeviceTimeline) -> None:
        self.timeline = timeline
        self.marks: dict[int, int] = {}
        self.recorded_on: Stream | None = None
        self.generation = -1

    def record(self, stream: Stream | None = None) -> StreamEvent:
        """Mark the end of the stream, the current one by default."""
        stream = stream or self.timeline.current
        self.marks, self.recorded_on = stream.marks(), stream
        self.generation = stream.generation
        return self

    def wait(self, stream: Stream | None = None) -> None:
        """Make a stream wait for this."""
        (stream or self.timeline.current).wait_event(self)

    def synchronize(self) -> None:
        """The host waits; it takes no time here."""

    def query(self) -> bool:
        """Everything is always over."""
        return True

    def elapsed_time(self, end: StreamEvent) -> float:
        """Milliseconds to another event: one, so that a rate can be computed from it."""
        return 1.0


class DeviceProperties:
    """What `get_device_properties` returns."""

    name = "flint virtual accelerator"
    major, minor = 9, 0
    total_memory = MEMORY_BYTES
    multi_processor_count = 132
    warp_size = 32
    is_integrated = False
    gcnArchName = ""
    uuid = "0"
    L2_cache_size = 50 * 2**20


class _StatsOfNothing(dict[str, int]):
    """Memory statistics: every number that is asked for is 0."""

    def __missing__(self, key: str) -> int:
        return 0


def make_device_module(timeline: DeviceTimeline, count: int = 1) -> types.ModuleType:
    """The module `torch.flint`, over a timeline."""
    module = types.ModuleType(f"torch.{NAME}")
    contents = {
        **_constants(),
        "device_count": _always(count),
        **_stream_functions(timeline),
        **_random_functions(),
    }
    for name, value in contents.items():
        setattr(module, name, value)
    return module


def _constants() -> dict[str, Any]:
    """Functions that answer the same whatever happens."""
    device_index, yes, no = _always(0), _always(True), _always(False)
    nothing = _always(None)
    return {
        **dict.fromkeys(("current_device", "device_of", "_get_device"), device_index),
        **dict.fromkeys(("is_available", "is_initialized", "is_bf16_supported"), yes),
        **dict.fromkeys(("_is_in_bad_fork", "_is_compiled", "is_current_stream_capturing"), no),
        **dict.fromkeys(
            ("set_device", "synchronize", "empty_cache", "init", "_lazy_init"), nothing
        ),
        **dict.fromkeys(("reset_peak_memory_stats", "ipc_collect"), nothing),
        **dict.fromkeys(("reset_max_memory_allocated", "reset_accumulated_memory_stats"), nothing),
        **dict.fromkeys(("set_per_process_memory_fraction", "_sleep"), nothing),
        **dict.fromkeys(
            ("memory_allocated", "max_memory_allocated", "memory_reserved"), device_index
        ),
        **dict.fromkeys(("max_memory_reserved", "memory_cached", "utilization"), device_index),
        "memory_stats": lambda *_, **__: _StatsOfNothing(),
        "memory_summary": _always(""),
        "mem_get_info": _always((MEMORY_BYTES, MEMORY_BYTES)),
        "get_device_properties": lambda *_, **__: DeviceProperties(),
        "get_device_name": _always(DeviceProperties.name),
        "get_device_capability": _always((9, 0)),
        "get_amp_supported_dtype": _always([torch.bfloat16, torch.float16, torch.float32]),
        "device": _DeviceContext,
    }


def _always(value: object) -> Callable[..., object]:
    def answer(*args: object, **kwargs: object) -> object:
        return value

    return answer


class _DeviceContext:
    """`with torch.cuda.device(k):`: there is one device, so it changes nothing."""

    def __init__(self, device: Device = None) -> None:
        self.idx = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        return None


def _stream_functions(timeline: DeviceTimeline) -> dict[str, Any]:
    class BoundStream(Stream):
        def __new__(cls, *args: object, **kwargs: object) -> Self:
            return object.__new__(cls)

        def __init__(self, device: Device = None, priority: int = 0, **unused: object) -> None:
            super().__init__(timeline, device, priority)

    class BoundEvent(StreamEvent):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(timeline)

    @contextmanager
    def stream(entered: Stream | None) -> Iterator[None]:
        if entered is None:
            yield
            return
        with entered:
            yield

    def set_stream(entered: Stream) -> None:
        timeline.current = entered

    BoundStream.__name__ = "Stream"
    BoundEvent.__name__ = "Event"
    return {
        "Stream": BoundStream,
        "Event": BoundEvent,
        "stream": stream,
        "StreamContext": stream,
        "set_stream": set_stream,
        "current_stream": lambda *_, **__: timeline.current,
        "default_stream": lambda *_, **__: timeline.default,
    }


def _random_functions() -> dict[str, Any]:
    """The random state: 16 bytes (seed and offset), as DTensor expects it."""
    seed, nothing = _always(0), _always(None)
    state: dict[str, Any] = {}

    def get_rng_state(device: Device = None) -> torch.Tensor:
        return state.get("set", torch.zeros(16, dtype=torch.uint8))

    def set_rng_state(new_state: torch.Tensor, device: Device = None) -> None:
        state["set"] = new_state

    return {
        "get_rng_state": get_rng_state,
        "set_rng_state": set_rng_state,
        "get_rng_state_all": lambda: [get_rng_state()],
        "set_rng_state_all": nothing,
        "initial_seed": seed,
        **dict.fromkeys(("manual_seed", "manual_seed_all", "seed", "seed_all"), nothing),
        "default_generators": (),
    }
