"""Peaks of a chip by element type."""

from __future__ import annotations

from collections.abc import Iterable

from flint.cluster import Chip
from flint.errors import FlintError


def peak_flops_per_ns(chip: Chip, dtype: str, stand_ins: Iterable[str]) -> float:
    """Dense peak of a chip for a type, or for the first of `stand_ins` that its file has.

    Raises FlintError FL705 if it has none.
    """
    for name in (dtype, *stand_ins):
        if name in chip.peak_flops_per_s:
            return chip.peak_flops_per_s[name].value * 1e-9
    raise FlintError(
        "FL705",
        f"chip '{chip.name}' has no peak for {dtype}",
        help=f"add {dtype} to [chip.peak_flops_per_s] of the cluster file",
    )
