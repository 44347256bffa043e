"""How long kernels run on systolic arrays: one file per model, constants in the cluster file."""

from __future__ import annotations

from flint.backends.cost.chips.systolic.constants import constants_note
from flint.backends.cost.chips.systolic.latency import latency_ns

__all__ = ["constants_note", "latency_ns"]
