"""The virtual accelerator: what PyTorch asks of a device's module, answered without a device.

PyTorch's C++ knows it as the `flint` device (the PrivateUse1 slot), as a build without CUDA has no
other. Whatever the program sees is called `cuda` (`shown`). Nothing executes on it; its streams and
events note the order that the program asks for, which the recorder reads.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any, Self, TypeAlias

import torch

from flint.frontends.torch_private import DeviceGuard, private_device_type

#: What C++ calls the device, and what programs are told.
NAME, SHOWN = "flint", "cuda"
_DEVICE = torch.device  # itself: what takes its place never says NAME
#: What programs name a device by.
Device: TypeAlias = torch.device | str | int | None


def is_virtual(device: torch.device) -> bool:
    """Whether a device is the virtual one, under either name."""
    return device.type in (SHOWN, NAME)


def virtual_device() -> torch.device:
    """The device as C++ knows it."""
    return _DEVICE(NAME, 0)


class DeviceTimeline:
    """Streams of the device, which one is current, and the order between them.

    Events of the recording are numbers; `next_event` is that of the next one. Collectives and messages
    run on streams that the program does not see: each is a mark of its own, under `~event`. `under_way`
    are those since the host last waited for the device, `held` the marks that it has waited for.
    """

    def __init__(self, index: int = 0) -> None:
        self.shown = torch.device(SHOWN, index)  #: what the program calls the device
        self.streams: list[Stream] = []
        self.under_way: list[int] = []
        self.held: dict[int, int] = {}
        self.next_event = 0
        self.current = Stream(self)
        self.default = self.current

    def take_waits(self) -> tuple[int, ...]:
        """The events that the next one waits for; it becomes the last of the current stream."""
        stream = self.current
        waits = tuple(sorted(set(stream.pending.values()))) if stream.pending else ()
        stream.pending.clear()
        stream.last = self.next_event
        self.next_event += 1
        return waits

    def synchronize(self) -> None:
        """The host waits for all streams: what is launched from now on comes after what they hold."""
        marks = {~event: event for event in self.under_way}
        marks.update((s.stream_id, s.last) for s in self.streams if s.last >= 0)
        self.under_way.clear()
        self.hold(marks)

    def hold(self, marks: Mapping[int, int]) -> None:
        """The host has waited for `marks`: the next events of all streams come after them."""
        self.held.update(marks)
        for stream in self.streams:
            stream.wait_for(marks)

    def restart(self) -> None:
        self.next_event = 0
        self.under_way.clear()
        self.held.clear()
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
        self.pending = dict(timeline.held)
        timeline.streams.append(self)

    @property
    def device(self) -> torch.device:
        return self.timeline.shown

    @property
    def device_index(self) -> int:
        return int(self.timeline.shown.index)

    @property
    def cuda_stream(self) -> int:
        return self.stream_id

    @property
    def name(self) -> str:
        return "compute" if self.stream_id == 0 else f"stream {self.stream_id}"

    def wait_stream(self, other: Stream) -> None:
        """What comes next waits for everything that is on the other stream now."""
        self.wait_for(other.marks())

    def wait_event(self, event: StreamEvent) -> None:
        """What comes next waits for what was on the event's stream when it was recorded."""
        if event.recorded_on is not None and event.generation == event.recorded_on.generation:
            self.wait_for(event.marks)

    def record_event(self, event: StreamEvent | None = None) -> StreamEvent:
        event = event or StreamEvent(self.timeline)
        event.record(self)
        return event

    def synchronize(self) -> None:
        """The host waits for what is on the stream now."""
        self.timeline.hold(self.marks())

    def query(self) -> bool:
        """Everything is always over."""
        return True

    def is_capturing(self) -> bool:
        return False

    def marks(self) -> dict[int, int]:
        """The last event of each stream that is over when this stream is."""
        found = dict(self.pending)
        if self.last >= 0:
            found[self.stream_id] = self.last
        return found

    def wait_for(self, marks: Mapping[int, int]) -> None:
        """What comes next waits for events of other streams."""
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
        stream = stream or self.timeline.current
        self.marks, self.recorded_on = stream.marks(), stream
        self.generation = stream.generation
        return self

    def wait(self, stream: Stream | None = None) -> None:
        (stream or self.timeline.current).wait_event(self)

    def synchronize(self) -> None:
        """The host waits for what was on the stream when this was recorded."""
        if self.recorded_on is not None and self.generation == self.recorded_on.generation:
            self.timeline.hold(self.marks)

    def query(self) -> bool:
        """Everything is always over."""
        return True

    def elapsed_time(self, end: StreamEvent) -> float:
        """Milliseconds to another event: one, so that a rate can be computed from it."""
        return 1.0


# What C++ asks the virtual device for while an operator of the backward pass ends with an exception.
#
# The autograd engine leaves a stream of the device before it takes the exception over, and asks the
# device's guard, which is Python, for its type. Python calls nothing while an exception is on its
# way: the call would end the process, or take the exception's place.

Lost = tuple[Any, Any, Any]
# `PyErr_Fetch` takes the exception that is on its way from the interpreter: type, value, traceback.
_PARTS = tuple(ctypes.py_object() for _ in range(3))
_KIND, _VALUE, _TRACEBACK = map(ctypes.byref, _PARTS)
_take = ctypes.pythonapi.PyErr_Fetch
_take.restype = None


class LostExceptions:
    """Exceptions that were on their way when C++ asked the guard; the first is the one that counts."""

    def __init__(self) -> None:
        self._lost: list[Lost] = []

    def guard(self) -> Any:
        """A guard for the device. It has no attributes: finding `type_` among some would fail."""
        lost, device_type = self._lost, private_device_type()

        class Guard(DeviceGuard):
            def type_(self) -> Any:
                _take(_KIND, _VALUE, _TRACEBACK)  # before anything else is called
                if _PARTS[0]:
                    lost.append((_PARTS[0].value, _PARTS[1].value, _PARTS[2].value))
                return device_type

        return Guard()

    def first(self) -> BaseException | None:
        """The first exception since this was asked last."""
        if not self._lost:
            return None
        kind, value, traceback = self._lost[0]
        self._lost.clear()
        made: BaseException = value if isinstance(value, kind) else kind(value)
        return made.with_traceback(traceback)
