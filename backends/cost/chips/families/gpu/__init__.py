"""GPUs: one file per model, constants in the chip's cluster file."""

from __future__ import annotations

from flint.backends.cost.chips.families.gpu.constants import Gpu

__all__ = ["Gpu"]
