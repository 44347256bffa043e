"""Events of a Kineto file, by category, into a ProfileBuilder."""

from __future__ import annotations

import marshal
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from flint.errors import FlintError, Malformed
from flint.tools.measure.profiles.builder import ProfileBuilder
from flint.tools.measure.profiles.kineto.calls import is_synchronous_copy, kind_of_call
from flint.tools.measure.profiles.kineto.collectives import Comms
from flint.tools.measure.profiles.kineto.fields import (
    first_us,
    integer,
    name_of,
    span_ns,
    thread_of,
    without_paths,
)
from flint.tools.measure.profiles.profile import ActivityKind, CallKind, Signature

# Accelerators beside CUDA's and HIP's: what their events are called, and how they are recorded.


@dataclass(frozen=True, slots=True)
class Accelerator:
    """Categories of Kineto (libkineto's ActivityType), and what names of operators begin with."""

    name: str
    activity: str
    calls: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()


ACCELERATORS = (
    Accelerator("MTIA", "MTIA", ("mtia_runtime",), ("mtia_ccp_events", "mtia_workloadd"), ("mtia::",)),
    Accelerator("Intel XPU", "XPU", ("xpu_runtime", "xpu_driver"), (), ("xpu::", "torch_ipex::", "xccl:")),
    Accelerator("Gaudi", "HPU", (), ("hpu_op",), ("hpu::", "hccl:")),
    Accelerator("Ascend NPU", "PrivateUse1", (), (), ("npu::", "hcom_")),
    Accelerator("a device of PyTorch's PrivateUse1", "PrivateUse1", ("privateuse1_runtime", "privateuse1_driver"), (), ()),
)  # fmt: skip
#: Categories of events, those of older versions and of other accelerators too.
OPERATORS = ("cpu_op", "Operator", "operator")
CALLS = (
    *("cuda_runtime", "cuda_driver", "Runtime", "runtime"),
    *(c for a in ACCELERATORS for c in a.calls),
)
KERNELS = ("kernel", "Kernel", *(c for a in ACCELERATORS for c in a.kernels))
COPIES, FILLS = ("gpu_memcpy", "Memcpy"), ("gpu_memset", "Memset")
_NEUTRAL = (
    "record with activities=[ProfilerActivity.CPU, and that of the device: CUDA (also on ROCm), XPU, "
    "MTIA, HPU or PrivateUse1]"
)
_CUDA = (
    "record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA] (CUDA also on ROCm; XPU, MTIA, "
    "HPU or PrivateUse1 on other accelerators)"
)


def how_to_record(categories: Mapping[str, int], operators: Iterable[str], device: str) -> str:
    """What to do for a profile without kernels, by the accelerator that it seems to be of.

    `device` is the name that the file has for it, "" for none.
    """
    names = tuple(operators)
    for one in ACCELERATORS:
        is_there = any(categories.get(c) for c in one.calls + one.kernels)
        if is_there or any(n.startswith(one.operators) for n in names if one.operators):
            return (
                f"the program seems to run on {one.name}: record with "
                f"activities=[ProfilerActivity.CPU, ProfilerActivity.{one.activity}]"
            )
    has_cuda = any(categories.get(c) for c in ("cuda_runtime", "cuda_driver"))
    known = has_cuda or any(word in device for word in ("NVIDIA", "Tesla", "GeForce", "AMD"))
    return _CUDA if known or not device else _NEUTRAL


# Arguments of operators: each different one is read once.

_MOST_VALUE = 200
_Shape = tuple[int, ...]


class Signatures:
    """Numbers of signatures, by the arguments as the file has them."""

    def __init__(self, builder: ProfileBuilder) -> None:
        self._builder = builder
        self._known: dict[bytes, int] = {}

    def number(self, args: dict[str, Any]) -> int:
        """Number of an operator's signature, -1 if its shapes were not recorded."""
        dims = args.get("Input Dims")
        if dims is None:
            dims = args.get("Input dims")
        types = args.get("Input type")
        if dims is None or types is None:
            return -1
        parts = (dims, types, args.get("Input Strides"), args.get("Concrete Inputs"))
        key = marshal.dumps(parts, 2)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._read(*parts)
        return found

    def _read(self, dims: Any, types: Any, strides: Any, values: Any) -> int:
        try:
            found = Signature(
                shapes=tuple(() if _is_list(d) else _shape(d) for d in _listed(dims)),
                types=tuple(_type(t) for t in _listed(types)),
                strides=tuple(() if _is_list(s) else _shape(s) for s in _listed(strides or [])),
                values=tuple(_value(v) for v in _listed(values or [])),
                lists=_lists(dims),
            )
        except Malformed:
            return -1
        return self._builder.signature(found)


def _listed(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise Malformed("it is not a list")
    return value


def _is_list(dims: Any) -> bool:
    return isinstance(dims, list) and bool(dims) and isinstance(dims[0], list)


def _shape(dims: Any) -> _Shape:
    found = tuple(_listed(dims))
    if any(type(d) is not int or not -(1 << 62) < d < 1 << 62 for d in found):
        raise Malformed("a dimension is not a number")
    return found


def _type(value: Any) -> str:
    if isinstance(value, list):  # of a list of tensors
        value = value[0] if value else ""
    if not isinstance(value, str):
        raise Malformed("a type is not a text")
    return value


def _value(value: Any) -> str:
    text = "" if value is None else value if isinstance(value, str) else str(value)
    return without_paths(text[:_MOST_VALUE])


def _lists(dims: Any) -> tuple[tuple[_Shape, ...], ...]:
    if not any(_is_list(d) for d in dims):
        return ()
    return tuple(tuple(_shape(s) for s in d) if _is_list(d) else () for d in dims)


_Event = dict[str, Any]
_NO_ARGS: dict[str, Any] = {}
#: Streams of further devices, and those whose numbers are no small ones, are numbered from here.
_OTHER_STREAMS = 1 << 20
_MOST_CATEGORIES = 64
_COPIES = ("Memcpy", "Copy")
_FILLS = ("Memset", "FillBuffer")


class Events:
    """Takes events one by one. `seen` counts categories, `misunderstood` what was omitted."""

    def __init__(self, builder: ProfileBuilder) -> None:
        self._builder = builder
        self._signatures = Signatures(builder)
        self.comms = Comms(builder)
        self._streams: dict[tuple[int, int], int] = {}
        self._kinds: dict[str, tuple[CallKind, bool]] = {}
        self.first_us = math.nan  #: until there is an event
        self.devices: Counter[int] = Counter()
        self.seen: Counter[str] = Counter()
        self.misunderstood = 0
        self.unfinished = 0
        self.complete = 0
        self._by_category: dict[str, Callable[[_Event, dict[str, Any]], None]] = {
            **dict.fromkeys(OPERATORS, self._operator),
            **dict.fromkeys(CALLS, self._call),
            **dict.fromkeys(KERNELS, self._kernel),
            **dict.fromkeys(COPIES, partial(self._activity, ActivityKind.COPY)),
            **dict.fromkeys(FILLS, partial(self._activity, ActivityKind.FILL)),
            "cuda_sync": self._sync,
            "user_annotation": self._host_mark,
            "gpu_user_annotation": self._device_mark,
            "python_function": self._module,
        }

    @property
    def device(self) -> int:
        """The device that ran most of all, -1 for none."""
        return self.devices.most_common(1)[0][0] if self.devices else -1

    def add(self, event: object) -> None:
        """One element of the file's events. Raises FlintError FL805, FL806."""
        try:
            self._add(event)
        except Malformed:
            self.misunderstood += 1

    def _add(self, event: object) -> None:
        if not isinstance(event, dict) or "ph" not in event:
            raise Malformed("it is not an event")
        phase = event["ph"]
        if phase == "X":
            self.complete += 1
            category = event.get("cat", "")
            if not isinstance(category, str):
                raise Malformed("its category is not a text")
            take = self._by_category.get(category)
            if take is None:
                self._unknown(category)
                return
            self.seen[category] += 1
            if math.isnan(self.first_us):
                self.first_us = first_us(event)
            take(event, _args(event))
        elif phase == "i" and event.get("name") == "[memory]":
            self._memory(_args(event))

    def _unknown(self, category: str) -> None:
        if len(self.seen) < _MOST_CATEGORIES:
            self.seen[category[:60]] += 1

    def _operator(self, event: _Event, args: dict[str, Any]) -> None:
        if args.get("finished") is False:
            self.unfinished += 1
            return
        name = name_of(event)
        self._builder.add_operator(
            name,
            *span_ns(event, self.first_us),
            thread_of(event),
            external=_external(args),
            signature=self._signatures.number(args),
            sequence=integer(args.get("Sequence number")),
            is_backward=integer(args.get("Fwd thread id"), 0) > 0
            or name.startswith("autograd::engine::evaluate_function"),
            comm=self.comms.number(args) if "Collective name" in args else -1,
            record=integer(args.get("Record function id")),
        )

    def _call(self, event: _Event, args: dict[str, Any]) -> None:
        name = name_of(event)
        known = self._kinds.get(name)
        if known is None:
            known = self._kinds[name] = kind_of_call(name), is_synchronous_copy(name)
        correlation = integer(args.get("correlation"))
        self._builder.add_call(
            known[0],
            name,
            *span_ns(event, self.first_us),
            thread_of(event),
            correlation=correlation,
            external=_external(args),
            waits_for=correlation if known[1] else -1,
        )

    def _kernel(self, event: _Event, args: dict[str, Any]) -> None:
        name = name_of(event)
        kind = ActivityKind.KERNEL
        if name.startswith(_COPIES):  # ROCm's older ones have no category of their own
            kind = ActivityKind.COPY
        elif name.startswith(_FILLS):
            kind = ActivityKind.FILL
        self._activity(kind, event, args)

    def _activity(self, kind: ActivityKind, event: _Event, args: dict[str, Any]) -> None:
        device = integer(args.get("device", event.get("pid")))
        self._builder.add_activity(
            kind,
            name_of(event),
            *span_ns(event, self.first_us),
            self._stream(device, integer(args.get("stream", event.get("tid")))),
            num_bytes=max(0, integer(args.get("bytes"), 0)),
            correlation=integer(args.get("correlation")),
            external=_external(args),
            comm=self.comms.number(args) if "Collective name" in args else -1,
        )
        self.devices[device] += 1

    def _sync(self, event: _Event, args: dict[str, Any]) -> None:
        device = integer(args.get("device", event.get("pid")))
        self._builder.add_sync(
            integer(args.get("correlation")),
            stream=self._stream(device, integer(args.get("stream"))),
            waited_stream=self._stream(device, integer(args.get("wait_on_stream"))),
            record=integer(args.get("wait_on_cuda_event_record_corr_id")),
        )

    def _host_mark(self, event: _Event, args: dict[str, Any]) -> None:
        comm = self.comms.of_annotation(name_of(event), args)
        if comm >= 0:
            self._annotated_collective(event, args, comm)
            return
        self._mark(event, thread_of(event), on_device=False)

    def _module(self, event: _Event, args: dict[str, Any]) -> None:
        """Calls of modules (`with_stack=True`) are annotations; other functions of Python are not."""
        if name_of(event).startswith("nn.Module: "):
            self._mark(event, thread_of(event), on_device=False)

    def _annotated_collective(self, event: _Event, args: dict[str, Any], comm: int) -> None:
        """What NCCL was asked for, as an operator: kernels inside it have its sizes."""
        span, thread = span_ns(event, self.first_us), thread_of(event)
        self._builder.add_operator(
            name_of(event), *span, thread, external=_external(args), comm=comm
        )

    def _device_mark(self, event: _Event, args: dict[str, Any]) -> None:
        self._mark(event, ("device", *thread_of(event)), on_device=True)

    def _mark(self, event: _Event, thread: object, *, on_device: bool) -> None:
        name, span = without_paths(name_of(event)), span_ns(event, self.first_us)
        self._builder.add_mark(name, *span, thread, on_device=on_device)

    def _memory(self, args: dict[str, Any]) -> None:
        if integer(args.get("Device Type"), 0) > 0:
            held = integer(args.get("Total Allocated"), 0)
            self._builder.peak_bytes = max(self._builder.peak_bytes, held)

    def _stream(self, device: int, stream: int) -> int:
        """A number for a stream: its own, if it is of the first device."""
        key = (device, stream)
        found = self._streams.get(key)
        if found is None:
            first = next(iter(self._streams), key)[0]
            own = device == first and stream < _OTHER_STREAMS
            found = stream if own or stream < 0 else _OTHER_STREAMS + len(self._streams)
            self._streams[key] = found
        return found


def _args(event: _Event) -> dict[str, Any]:
    found = event.get("args") or _NO_ARGS
    if not isinstance(found, dict):
        raise Malformed("its arguments are not an object")
    return found


def _external(args: dict[str, Any]) -> int:
    found = args.get("External id")
    return integer(args.get("external id") if found is None else found)


def no_pytorch(path: object, events: Events) -> FlintError:
    """The FlintError FL802 for a trace of another tool."""
    kinds = ", ".join(f"'{name}' ({count:,})" for name, count in events.seen.most_common(5))
    return FlintError(
        "FL802",
        f"{path} is a Chrome trace, but not one of PyTorch's profiler: categories of its "
        f"{events.complete:,} events are {kinds or 'not there'}",
        help="Flint needs operators ('cpu_op') and kernels ('kernel', or those of another "
        "accelerator), as torch.profiler's export_chrome_trace writes them",
    )
