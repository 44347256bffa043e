"""`*.xplane.pb` as profiles: one for each device, with the launches that the host made for it."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

from flint.errors import FlintError
from flint.tools.measure.profiles.builder import ProfileBuilder
from flint.tools.measure.profiles.profile import Profile
from flint.tools.measure.profiles.source import whole_profile
from flint.tools.measure.profiles.xplane import messages
from flint.tools.measure.profiles.xplane.gpu import GpuReader
from flint.tools.measure.profiles.xplane.host import NEEDED, Host, host_of
from flint.tools.measure.profiles.xplane.modules import Programs
from flint.tools.measure.profiles.xplane.planes import (
    Plane,
    PlaneEvent,
    PlaneNames,
    Value,
    decoded,
    text,
    whole,
)
from flint.tools.measure.profiles.xplane.tpu import TpuReader

# Steps of XLA's profiles: annotations with a number, else runs of the program that takes longest.

_STEPS, _MODULES = "Steps", "XLA Modules"
_THREAD = "steps"
#: A program that runs but twice may be a warm-up and the rest.
_LEAST_RUNS = 3


def add_steps(builder: ProfileBuilder, plane: Plane, host: Host) -> None:
    """Marks `step#N`: the device's own, the host's, or runs of a program, the first that there are."""
    own = [e for line in plane.lines if line.name == _STEPS for e in line.events]
    if own:
        for place, step in enumerate(sorted(own, key=lambda e: e.start_ns)):
            digits = step.name.removeprefix("step").strip("# ")
            _add(builder, digits if digits.isdecimal() else str(place), step.start_ns, step.end_ns)
    elif host.steps:
        for thread, step in host.steps:
            builder.add_mark(
                f"step#{step.number('step_num', 0)}", step.start_ns, step.duration_ns, thread,
                on_device=False,
            )  # fmt: skip
    else:
        starts = _runs(plane)
        if starts:
            builder.warnings.append(
                "no annotation says what a step is: runs of one program are steps"
            )
        for number, (start, end) in enumerate(pairwise([*starts, float("inf")])):
            _add(builder, str(number), start, min(end, 1e18))


def _add(builder: ProfileBuilder, number: str, start_ns: float, end_ns: float) -> None:
    builder.add_mark(f"step#{number}", start_ns, end_ns - start_ns, _THREAD, on_device=True)


def _runs(plane: Plane) -> list[float]:
    """When each run of the program that takes longest begins on the device; [] for few runs."""
    modules = [e for line in plane.lines if line.name == _MODULES for e in line.events]
    if modules:
        longest = _longest((e.name, e) for e in modules)
        starts = [e.start_ns for e in modules if e.name == longest]
    else:
        starts = _runs_of_kernels(plane)
    return sorted(starts) if len(starts) >= _LEAST_RUNS else []


def _runs_of_kernels(plane: Plane) -> list[float]:
    """Where programs are told by their kernels alone: by the first of those that no loop repeats.

    Kernels get lost in recordings, so that those of one run are not equally many.
    """
    kernels = [e for line in plane.lines for e in line.events if e.word("hlo_op")]
    longest = _longest((e.word("hlo_module"), e) for e in kernels)
    found: dict[str, list[float]] = defaultdict(list)
    for event in kernels:
        if event.word("hlo_module") == longest:
            found[f"{event.word('hlo_op')} {event.name}"].append(event.start_ns)
    most = 1.5 * min(map(len, found.values()), default=0)
    return min((starts for starts in found.values() if len(starts) <= most), key=min, default=[])


def _longest(named: Iterable[tuple[str, PlaneEvent]]) -> str:
    total: Counter[str] = Counter()
    for name, event in named:
        total[name] += round(event.duration_ns)
    return max(sorted(total), key=total.__getitem__, default="")


#: An XSpace is one protobuf message, which has at most 2 GiB.
MOST_BYTES = 1 << 31
_DEVICE = re.compile(r"^/device:(TPU|GPU):(\d{1,6})$")
_METADATA, _HOST, _TASK = "/host:metadata", "/host:CPU", "Task Environment"
#: Below this a time is from the start of the profile, not of 1970 (a day in 1980).
_WALL_CLOCK_NS = 3.2e17


def recognizes(head: bytes) -> bool:
    """Whether a file begins as an XSpace."""
    return messages.is_start(head)


def read(path: Path) -> tuple[Profile, ...]:
    """Profiles of the devices of an XSpace, in order of their numbers.

    Raises FlintError FL824 (damaged), FL825 (nothing of a device), FL801, FL803, FL806.
    """
    programs, others, failed, zero_ns = Programs(), [], 0, 0
    for plane in messages.planes(whole_profile(path, MOST_BYTES), str(path)):
        if plane.name == _METADATA.encode():
            failed += programs.add(PlaneNames(plane))
        elif _is_read(plane.name.decode("utf-8", "replace")):
            zero_ns = zero_ns or _wall_clock(plane)
            needed = NEEDED if plane.name == _HOST.encode() else frozenset()
            others.append(decoded(plane, zero_ns, needed))
    warnings = [f"{failed} programs of the profile cannot be read, so their shapes are unknown"]
    begun = max((whole(p.stats.get("profile_start_time"), 0) for p in others), default=0)
    return profiles_of(
        others, programs, str(path), "xplane", zero_ns or begun, warnings if failed else []
    )


def profiles_of(
    planes: list[Plane],
    programs: Programs,
    source: str,
    form: str,
    origin_ns: int,
    warnings: list[str],
) -> tuple[Profile, ...]:
    """Profiles of decoded planes. Raises FlintError FL825 where nothing ran on a device."""
    host = host_of([p for p in planes if p.name == _HOST])
    found = [(int(m[2]), m[1], p) for p in planes if (m := _DEVICE.match(p.name))]
    profiles = []
    for number, kind, plane in sorted(found, key=lambda f: (f[1], f[0])):
        builder = _builder(form, kind, number, plane, host)
        builder.warnings.extend(warnings)
        if _fill(builder, kind, number, plane, programs, host):
            profiles.append(builder.build(origin_ns))
    if not profiles:
        has = ", ".join(sorted({p.name for p in planes})[:8]) or "no planes"
        raise FlintError(
            "FL825",
            f"{source} has nothing that ran on a device: {has}",
            help="profile on a GPU or TPU; XLA's work on a CPU is not recorded as a device",
        )
    return tuple(profiles)


def _fill(
    builder: ProfileBuilder, kind: str, number: int, plane: Plane, programs: Programs, host: Host
) -> int:
    add_steps(builder, plane, host)
    if kind == "TPU":
        return TpuReader(builder, number, programs).read(plane)
    return GpuReader(builder, number, programs).read(plane, host)


def _builder(form: str, kind: str, number: int, plane: Plane, host: Host) -> ProfileBuilder:
    stats = plane.stats
    builder = ProfileBuilder(
        form,
        device=device_name(kind, stats),
        device_memory_bytes=max(0, whole(stats.get("memory_size"), 0)),
        processors=max(0, whole(stats.get("core_count"), 0)),
        peak_bytes=host.peak_bytes.get(number, 0),
    )
    if plane.left_out:
        builder.warnings.append(f"{plane.left_out:,} events have impossible times: omitted")
    return builder


def _wall_clock(plane: Any) -> int:
    """When the first line of a plane begins, in ns since 1970; 0 if its times are not from then."""
    return next((n for line in plane.lines if (n := line.timestamp_ns) > _WALL_CLOCK_NS), 0)


def _is_read(name: str) -> bool:
    return name in (_HOST, _TASK) or _DEVICE.match(name) is not None


#: Maker, version, processors, and gigabytes from and to, that one product alone has, by its maker's
#: datasheet. The A100's and L40S's are those of other products as well.
_PRODUCTS = (
    ("nvidia", "9.0", 132, 75, 86, "NVIDIA H100 80GB HBM3"),
    ("nvidia", "9.0", 132, 135, 152, "NVIDIA H200"),
    ("nvidia", "10.0", 148, 175, 200, "NVIDIA B200"),
    ("amd", "9.4", 304, 190, 210, "AMD Instinct MI300X"),
)


def device_name(kind: str, stats: dict[str, Value]) -> str:
    """The name of a device of a kind (GPU, TPU): the product's if it can be told."""
    named = text(stats, "device_type_string") or text(stats, "device_type")
    if named:
        return named
    maker = text(stats, "device_vendor") or kind
    version = ".".join(text(stats, f"compute_cap_{part}") for part in ("major", "minor"))
    cores, gigabytes = whole(stats.get("core_count"), 0), whole(stats.get("memory_size"), 0) / 1e9
    for of, has, processors, least, most, product in _PRODUCTS:
        same = maker.lower().startswith(of) and (version, cores) == (has, processors)
        if same and least <= gigabytes <= most:
            return product
    return f"{maker} {kind} {version}" if version != "." else maker
