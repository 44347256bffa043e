"""Products of matrices on a real TPU: folds in a pipeline, against HBM and VMEM.

The arrays hold a tile of `rows` x `columns` weights and load the next one meanwhile, so folds
follow each other without a gap: the pipeline is filled and drained once per product, not once per
fold as in SCALE-Sim. Tiles are whole: k and n are padded to the array, m to the sublanes of a
register. The smaller operand is brought to the chip first (`gemm.exposed_loads`: loaded and laid
out while the arrays wait; at most half of VMEM, the other half streams), then the larger one is
streamed from HBM:

    total = launch + fill + max(arithmetic / efficiency + exposed + fused, VMEM, bytes / bandwidth)

Element-wise work that is fused into a product makes the arrays wait: `gemm.fused_operations` of the
vector unit for each of its flops, as XLA's TPU compiler schedules it (`benchmarks/tpu_single.py`).
Bytes are those that cross the edge of the kernel. A kernel whose weights were fetched into VMEM
during the one before does not read them: only then is it faster than the roofline of its shape.
"""

from __future__ import annotations

import numpy as np

from flint.backends.cost.chips.families.systolic.hardware import SystolicHardware, element_bytes
from flint.backends.cost.chips.kernels import KernelKind, Kernels
from flint.ir.arrays import Float64s
from flint.ir.dims import ProductDims

#: Bytes of a sublane group: 8 sublanes of 4 bytes (bf16 tiles are 16 x 128, f32 tiles 8 x 128).
SUBLANE_BYTES = 32


def gemm_ns(kernels: Kernels, hardware: SystolicHardware, dtype: str) -> Float64s:
    """Latency of products and of convolutions as products, all rows with `dtype`.

    Raises FlintError FL705 if the chip has no peak for it.
    """
    c = hardware.constants
    size = element_bytes(dtype)
    batch, m, n, k = np.maximum(ProductDims.of(kernels.dims.astype(np.float64)), 1)
    arithmetic = _padded_flops(batch, m, n, k, hardware, size) / hardware.peak_flops_per_ns(dtype)
    waiting = np.minimum(m, n) * k * size  # the smaller operand
    waiting = np.minimum(waiting, hardware.vmem_bytes / 2)
    exposed = c["gemm.exposed_loads"] * waiting / hardware.memory_bytes_per_ns
    vmem = batch * (m + n) * k * size / vmem_bytes_per_ns(hardware)
    memory = kernels.moved_bytes / (c["gemm.memory_efficiency"] * hardware.memory_bytes_per_ns)
    busy = arithmetic / c["gemm.efficiency"] + exposed + _fused_ns(kernels, hardware)
    fill = (2 * hardware.rows + hardware.columns - 2) / hardware.cycles_per_ns
    result: Float64s = c["gemm.launch_ns"] + fill + np.maximum(np.maximum(busy, vmem), memory)
    return result


def _fused_ns(kernels: Kernels, hardware: SystolicHardware) -> Float64s:
    """What arrays wait for element-wise work that is part of a product: its flops beyond those."""
    products = 2 * kernels.dims.astype(np.float64).prod(axis=1)
    fused = np.maximum(kernels.flops - products, 0) * (kernels.kind == KernelKind.GEMM)
    operations = fused * hardware.constants["gemm.fused_operations"]
    result: Float64s = operations / hardware.vector_operations_per_ns
    return result


def vmem_bytes_per_ns(hardware: SystolicHardware) -> float:
    """Bandwidth from VMEM into the arrays."""
    return hardware.constants["vmem.bandwidth_ratio"] * hardware.memory_bytes_per_ns


def _padded_flops(
    batch: Float64s, m: Float64s, n: Float64s, k: Float64s, hardware: SystolicHardware, size: int
) -> Float64s:
    high = _padded(m, max(SUBLANE_BYTES / size, 1))
    # either dimension of the result may lie along the columns: the compiler transposes a product
    # that is narrow
    other = _padded(n, max(SUBLANE_BYTES / size, 1))
    area = np.minimum(high * _padded(n, hardware.columns), other * _padded(m, hardware.columns))
    result: Float64s = 2 * batch * area * _padded(k, hardware.rows)
    return result


def _padded(extent: Float64s, multiple: float) -> Float64s:
    result: Float64s = np.ceil(extent / multiple) * multiple
    return result
