"""How long kernels run on a GPU: one file per model, constants in the chip's cluster file."""

from __future__ import annotations

from flint.backends.cost.chips.gpu.constants import constants_note
from flint.backends.cost.chips.gpu.latency import latency_ns
from flint.backends.cost.chips.gpu.roofline import roofline_ns

__all__ = ["constants_note", "latency_ns", "roofline_ns"]
