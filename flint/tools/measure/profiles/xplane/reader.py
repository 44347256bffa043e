"""`*.xplane.pb` as profiles: one for each device, with the launches that the host made for it."""

from __future__ import annotations

import re
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
    PlaneNames,
    Value,
    decoded,
    text,
    whole,
)
from flint.tools.measure.profiles.xplane.steps import add_steps
from flint.tools.measure.profiles.xplane.tpu import TpuReader

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
