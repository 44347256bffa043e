"""Convolutions on a GPU: implicit products of matrices, and what a library does around them.

    layouts = launch + window + copies * 2 * bytes / memory
    total   = products * (launch + window + product / efficiency) + copies * 2 * bytes / memory

- PyTorch keeps (batch, channels, height, width) and libraries multiply (batch, height, width, channels):
  kernels before and after a product copy its arrays (`convolution.launch_ns`, `convolution.layouts`).
- Where windows overlap, MIOpen clears or converts what it splits along k (`convolution.window_ns`). They
  overlap where a product has more of the input than the input's bytes.
- The backward pass of PyTorch is two products: one for each gradient.
- Each place in a window is a step of its own along k. Of an image, which has 3 channels, a step is filled up
  to `convolution.channels`: patches of 16 x 16 take 256 steps where a product takes 24.
- Depthwise, each channel for itself, they are no products of matrices. An SM loads `LOADS` numbers in a cycle,
  one for each multiplication, beside the bytes from memory.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from flint.backends.cost.chips.families.gpu.hardware import GpuHardware, element_bytes
from flint.backends.cost.chips.families.gpu.memory import elementwise_ns
from flint.backends.cost.chips.families.gpu.products import gemm_ns
from flint.backends.cost.chips.kernels import Kernels
from flint.ir.arrays import Float64s
from flint.ir.dims import ProductDims

#: Channels of an image (red, green, blue), of convolutions whose channels are too few for a step.
IMAGE = 3
#: Windows have more of the input than there is: for rounding, and for positions at edges.
OVERLAP = 1.01
#: Numbers that an SM loads from its shared memory in a cycle (CUDA C++ programming guide: 32 banks).
LOADS = 32


def convolution_ns(kernels: Kernels, hardware: GpuHardware, dtype: str) -> Float64s:
    """Latency of convolutions of one type. Raises FlintError FL705 if the chip has no peak for it."""
    batch, _, n, _ = ProductDims.of(kernels.dims)
    depthwise = (batch > 1) & (n == 1)
    whole = _product_ns(kernels, hardware, dtype)
    if not depthwise.any():
        return whole
    loads = kernels.flops / (2 * LOADS * hardware.sms * hardware.cycles_per_ns)
    result: Float64s = np.where(depthwise, elementwise_ns(kernels, hardware) + loads, whole)
    return result


def _product_ns(kernels: Kernels, hardware: GpuHardware, dtype: str) -> Float64s:
    c, size = hardware.constants, element_bytes(dtype)
    batch, m, n, k = ProductDims.of(kernels.dims)
    flops = 2.0 * batch * m * n * k
    products = 1 + ((flops > 0) & (kernels.flops > 1.5 * flops))
    inputs = np.maximum(kernels.read_bytes - size * batch * n * k, 1)
    overlapping = size * batch * m * k > OVERLAP * inputs
    product = gemm_ns(_with_steps(kernels, c["convolution.channels"]), _aligned(hardware), dtype)
    each = c["convolution.launch_ns"] + overlapping * c["convolution.window_ns"]
    each += (product - c["gemm.launch_ns"]) / c["convolution.efficiency"]
    memory = c["elementwise.memory_efficiency"] * hardware.memory_bytes_per_ns
    result: Float64s = products * each + c["convolution.layouts"] * 2 * kernels.moved_bytes / memory
    return result


def _aligned(hardware: GpuHardware) -> GpuHardware:
    """Convolutions gather what they multiply: the lengths of their rows are no addresses."""
    c = hardware.constants
    none = {"gemm.unaligned_ns": 0.0, "gemm.unaligned_cycles": 0.0}
    return replace(hardware, constants=replace(c, values={**c.values, **none}))


def _with_steps(kernels: Kernels, channels: float) -> Kernels:
    """The same kernels; of images each place in a window has as many channels as a step."""
    if kernels.indexed is None or not kernels.indexed.any():
        return kernels
    dims = kernels.dims.copy()
    k = ProductDims.of(dims).k
    padded = np.maximum(k, np.ceil(k / IMAGE) * channels).astype(np.int64)
    k[:] = np.where(kernels.indexed, padded, k)
    return replace(kernels, dims=dims)
