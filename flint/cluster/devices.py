"""Which cluster that comes with Flint has a device, by the name that its driver or runtime gives it."""

from __future__ import annotations

from flint.cluster.load import preset_names
from flint.cluster.models import Cluster

#: Beginnings of names as drivers and runtimes say them, without the maker, and the preset that has
#: such devices. The first that fits counts. "NVIDIA H100 80GB HBM3" is what CUDA calls an H100 SXM5.
_PRESETS = (
    ("H100 80GB HBM3", "h100-dgx"),
    ("H100-SXM5-80GB", "h100-dgx"),
    ("H200", "h200-dgx"),
    ("GB300", "gb300-nvl72"),
    ("GB200", "gb200-nvl72"),
    ("B300", "b300-hgx"),
    ("B200", "b200-dgx"),
    ("A100-SXM4-80GB", "a100-80-dgx"),
    ("A100-SXM4-40GB", "a100-40-dgx"),
    ("L40S", "l40s"),
    ("RTX PRO 6000 Blackwell Server", "rtx-pro-6000"),
    ("Instinct MI300X", "mi300x"),
    ("MI300X", "mi300x"),
    ("Instinct MI325X", "mi325x"),
    ("Instinct MI350X", "mi350x"),
    ("Instinct MI355X", "mi355x"),
    ("TPU7x", "v7"),
    ("TPU v7", "v7"),
    ("TPU v6 lite", "v6e"),
    ("TPU v6e", "v6e"),
    ("TPU v5 lite", "v5e"),
    ("TPU v5e", "v5e"),
    ("TPU v5p", "v5p"),
    ("TPU v5", "v5p"),
    ("TPU v4", "v4"),
)
_MAKERS = ("NVIDIA ", "AMD ", "Google ")


def preset_of_device(name: str) -> str | None:
    """The preset with such devices ("NVIDIA B200" is of "b200-dgx"), None if Flint has none."""
    bare = name.strip()
    for maker in _MAKERS:
        bare = bare.removeprefix(maker)
    bare = bare.removeprefix("Tesla ")
    found = next((p for begins, p in _PRESETS if bare.lower().startswith(begins.lower())), None)
    return found if found in preset_names() else None


def neutral_device(name: str) -> str:
    """A device's name without what tells installations apart: one that means the same preset, or ""."""
    found = preset_of_device(name)
    return next((begins for begins, preset in _PRESETS if preset == found), "")


def public_devices() -> frozenset[str]:
    """Every name that `neutral_device` gives."""
    return frozenset(begins for begins, _ in _PRESETS)


def cluster_of_device(name: str) -> Cluster | None:
    """The cluster of `preset_of_device`."""
    found = preset_of_device(name)
    return None if found is None else Cluster.load(found)
