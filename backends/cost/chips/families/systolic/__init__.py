"""Systolic arrays: one file per model, constants in the chip's cluster file."""

from __future__ import annotations

from flint.backends.cost.chips.families.systolic.constants import Systolic

__all__ = ["Systolic"]
