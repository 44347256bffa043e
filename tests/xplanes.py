"""Small XSpaces and Chrome traces of XLA, written for tests."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from flint.tools.measure.profiles.xplane.reader import plane_class

Stats = Mapping[str, int | float | str | bytes]
_NONE: Stats = MappingProxyType({})
_NO_PROGRAMS: Mapping[str, bytes] = MappingProxyType({})


class Happened(NamedTuple):
    """An event: times in microseconds; `common` stats are of all events of the name."""

    name: str
    start_us: float
    duration_us: float
    stats: Stats = _NONE
    common: Stats = _NONE
    display: str = ""


class Recorded(NamedTuple):
    """A plane: lines by name."""

    name: str
    lines: Mapping[str, Sequence[Happened]]
    stats: Stats = _NONE
    programs: Mapping[str, bytes] = _NO_PROGRAMS


def xspace(*planes: Recorded, timestamp_ns: int = 0) -> bytes:
    """The bytes of an XSpace."""
    found = b""
    for plane in planes:
        data = _plane(plane, timestamp_ns).SerializeToString()
        found += b"\x0a" + _varint(len(data)) + data
    return found + b"\x22\x04host"  # hostnames, which nobody needs


def chrome(path: Path, *planes: Recorded) -> Path:
    """The same as Chrome JSON, packed."""
    events: list[dict[str, Any]] = []
    for pid, plane in enumerate(planes):
        events.append(_named("process_name", plane.name, pid=pid))
        for tid, (line, happened) in enumerate(plane.lines.items()):
            events.append(_named("thread_name", line, pid=pid, tid=tid))
            for e in happened:
                stats = {**e.common, **e.stats, "long_name": e.name}
                events.append(
                    {
                        "ph": "X", "pid": pid, "tid": tid, "name": e.display or e.name,
                        "ts": e.start_us, "dur": e.duration_us,
                        "args": {k: str(v) for k, v in stats.items()},
                    }
                )  # fmt: skip
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    return path


def _named(what: str, name: str, **where: int) -> dict[str, Any]:
    return {"ph": "M", "name": what, "args": {"name": name}, **where}


class _Tables:
    """Ids of names in a plane."""

    def __init__(self, plane: Any) -> None:
        self.plane = plane
        self.stats: dict[str, int] = {}
        self.events: dict[tuple[str, str, tuple[tuple[str, Any], ...]], int] = {}

    def fill(self, target: Any, stats: Stats) -> None:
        for name, value in stats.items():
            if name not in self.stats:
                self.stats[name] = len(self.stats) + 1
                entry = self.plane.stat_metadata.add(key=self.stats[name])
                entry.value.id, entry.value.name = self.stats[name], name.encode()
            stat = target.add(metadata_id=self.stats[name])
            if isinstance(value, str):
                stat.str_value = value.encode()
            elif isinstance(value, bytes):
                stat.bytes_value = value
            elif isinstance(value, float):
                stat.double_value = value
            else:
                stat.int64_value = value

    def event(self, name: str, display: str, common: Stats) -> int:
        key = (name, display, tuple(common.items()))
        if key not in self.events:
            self.events[key] = len(self.events) + 1
            entry = self.plane.event_metadata.add(key=self.events[key])
            entry.value.id, entry.value.name = self.events[key], name.encode()
            entry.value.display_name = display.encode()
            self.fill(entry.value.stats, common)
        return self.events[key]


def _plane(recorded: Recorded, timestamp_ns: int) -> Any:
    plane = plane_class()(name=recorded.name.encode())
    tables = _Tables(plane)
    for number, (name, events) in enumerate(recorded.lines.items()):
        line = plane.lines.add(id=number, name=name.encode(), timestamp_ns=timestamp_ns)
        for e in events:
            made = line.events.add(
                metadata_id=tables.event(e.name, e.display, e.common),
                offset_ps=round(e.start_us * 1e6),
                duration_ps=round(e.duration_us * 1e6),
            )
            tables.fill(made.stats, e.stats)
    tables.fill(plane.stats, recorded.stats)
    for name, proto in recorded.programs.items():
        tables.event(name, "", {"Hlo Proto": proto})
    return plane


def _varint(value: int) -> bytes:
    found = b""
    while value > 0x7F:
        found += bytes([value & 0x7F | 0x80])
        value >>= 7
    return found + bytes([value])


def _launch(name: str, start: float, correlation: int, **stats: str) -> Happened:
    return Happened(name, start, 2, {"correlation_id": correlation, **stats})


def gpu_planes() -> tuple[Recorded, Recorded]:
    """A GPU with two streams, and the host that launched what ran there."""
    gpu = Recorded(
        "/device:GPU:0",
        {
            "Stream #7(Kernel)": [
                Happened("gemm", 10, 5, {"correlation_id": 1, "hlo_op": "dot.3"}),
                Happened("split_k", 15, 1, {"correlation_id": 2, "hlo_op": "dot.3"}),
                Happened("ncclDevKernel_AllReduce", 20, 9, {"correlation_id": 4, "hlo_op": "all-reduce-start.1"}),
            ],
            "Stream #9(MemcpyH2D)": [
                Happened("MemcpyH2D", 30, 4, {"correlation_id": 3, "memcpy_details": "kind_src:pageable kind_dst:device size:4096 dest:0 async:1"}),
                Happened("graphed", 40, 1, {"correlation_id": 9}),
                Happened("graphed", 41, 1, {"correlation_id": 9}),
            ],
            "Launch Stats": [Happened("not a kernel", 0, 99)],
        },
        {"device_vendor": "Nvidia", "compute_cap_major": 9, "compute_cap_minor": 0, "core_count": 132},
    )  # fmt: skip
    host = Recorded(
        "/host:CPU",
        {
            "thread/1": [
                _launch("cuLaunchKernel", 1, 1, hlo_op="dot.3"),
                _launch("cuLaunchKernel", 4, 2, hlo_op="dot.3"),
                _launch("cuLaunchKernelEx", 6, 4, hlo_op="all-reduce-start.1"),
                _launch("cuMemcpyHtoDAsync_v2", 8, 3),
                _launch("cuGraphLaunch", 11, 9),
                _launch("cuStreamSynchronize", 13, 12),
                Happened("$user.py:3 /home/me/secret", 0, 99),
                Happened("train", 0, 60, {"step_num": 4}),
                Happened("a", 0, 1, {"allocator_name": "GPU_0_bfc", "peak_bytes_in_use": 77}),
            ],
            "thread/2": [_launch("cuLaunchKernel", 1, 1000)],
        },
    )
    return gpu, host


def tpu_plane() -> Recorded:
    """A TPU with a loop, an asynchronous gather and two runs of a module."""

    def op(
        name: str, category: str, start: float, duration: float, text: str = "", **common: int
    ) -> Happened:
        return Happened(
            text or f"%{name} = f32[8]",
            start,
            duration,
            {},
            {"hlo_category": category, **common},
            name,
        )

    return Recorded(
        "/device:TPU:3",
        {
            "Steps": [Happened("7", 0, 100)],
            "XLA Modules": [Happened("jit_step(5)", 0, 50), Happened("jit_step(5)", 60, 40)],
            "XLA Ops": [
                op("while.1", "while", 0, 40),
                op("fusion.1", "convolution fusion", 0, 20, flops=1000, model_flops=900, bytes_accessed=64),
                op("fusion.1", "convolution fusion", 20, 20, flops=1000, model_flops=900, bytes_accessed=64),
                op("all-gather-start.2", "async-start", 60, 1),
                op("copy.3", "data formatting", 61, 4),
                op("all-gather-done.9", "async-done", 65, 15, "%all-gather-done.9 = bf16[8] all-gather-done(bf16[2]{0} %all-gather-start.2)"),
                op("all-reduce.4", "all-reduce", 80, 10),
            ],
            "Async XLA Ops": [op("all-gather-start.2", "all-gather", 60, 18), op("copy-start.8", "copy-start", 62, 2)],
        },
        {"device_type_string": "TPU v5p"},
    )  # fmt: skip
