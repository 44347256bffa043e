"""Prices of kernels on a dataflow chip."""

from __future__ import annotations

from flint.backends.cost.chips.kernels import KernelKind, Kernels
from flint.backends.cost.chips.model import Float64s, Roofline
from flint_plugin.dataflow import Dataflow


class DataflowModel(Roofline):
    """A roofline, and the time that each kernel takes to start."""

    def latency_ns(self, kernels: Kernels) -> Float64s:
        """Nanoseconds of each kernel; 0 for UNPRICED ones."""
        family = self.chip.family
        assert isinstance(family, Dataflow)
        priced = kernels.kind != KernelKind.UNPRICED
        return priced * (family.start_ns.value + super().latency_ns(kernels))

    def note(self) -> str:
        """What the numbers rest on."""
        return f"kernels of {self.chip.name} are a roofline after a constant start: an example"
