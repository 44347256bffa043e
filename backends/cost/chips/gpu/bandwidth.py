"""Kernels that are bound by bytes: a launch, bytes over bandwidth, cycles per element."""

from __future__ import annotations

from flint.backends.cost.chips.gpu.hardware import Float64s, Hardware
from flint.backends.cost.chips.kernels import Kernels


def bandwidth_ns(kernels: Kernels, hardware: Hardware, model: str, elements: Float64s) -> Float64s:
    """launch + bytes / (efficiency * bandwidth) + elements * cycles / (SMs * clock).

    The constants are those of `model` ("elementwise" or "softmax").
    """
    c = hardware.constants
    bandwidth = c[f"{model}.memory_efficiency"] * hardware.memory_bytes_per_ns
    cycles_per_ns = hardware.sms * hardware.cycles_per_ns
    result: Float64s = (
        c[f"{model}.launch_ns"]
        + kernels.moved_bytes / bandwidth
        + elements * (c[f"{model}.cycles"] / cycles_per_ns)
    )
    return result
