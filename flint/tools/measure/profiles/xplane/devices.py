"""The name of a device: XLA says its maker, version, processors and memory, and of TPUs the name."""

from __future__ import annotations

from flint.tools.measure.profiles.xplane.planes import Value, text, whole

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
