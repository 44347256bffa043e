"""Kernels on a GPU that are bound by bytes: all but products of matrices and attention.

Element-wise chains, softmax and norms are fitted; of what moves bytes by index, sorts, transforms
or selects, all constants are assumed.

The k largest of each row are found without sorting the rest. With few to find, a block of threads
reads its row once and each thread keeps its best in registers (XLA's kernel for k of at most 16,
xla/service/gpu/kernels/topk_custom_kernel.cc). With more, rows are selected digit by digit: a read
for every 8 bits of the key and one that collects (PyTorch's radix selection; RAFT's select_k). XLA
without RAFT sorts then, which takes longer.
"""

from __future__ import annotations

import numpy as np

from flint.backends.cost.chips.families.gpu.hardware import Float64s, GpuHardware
from flint.backends.cost.chips.kernels import Kernels
from flint.backends.cost.chips.model import fft_passes, row_elements
from flint.ir.dims import ReductionDims

#: Integer instructions per 4 random bytes of Philox and Threefry, over what one SM executes in a
#: cycle. Assumed: Philox4x32-10 has 10 rounds of 2 wide multiplications and 4 exclusive ors per
#: 16 bytes (Salmon et al., SC'11), and an SM executes 64 of them per cycle.
RANDOM_CYCLES = 0.3
#: Bytes that one access to memory moves at least (a sector of the L2).
SECTOR_BYTES = 32
#: A radix sort takes 8 bits at a time, and each pass reads and writes keys and values.
RADIX_BITS = 8
KEY_BITS = 32
#: Most elements that threads keep in registers while they look for the largest.
IN_REGISTERS = 16
#: Reads of the operand by a selection digit by digit.
DIGIT_READS = KEY_BITS / RADIX_BITS + 1
#: Of a line that one block of threads transforms. Assumed: 8,192 complex numbers of two f32, what
#: two blocks of an A100's 164 KB of shared memory hold (NVIDIA's A100 whitepaper); VkFFT's authors
#: take 4,096 for 32 KB.
LINE_BYTES = 65_536
#: Operations of f32 that an SM does in a cycle, additions or multiplications: 128 lanes. A fused
#: multiply-add counts once: butterflies are mostly additions. Assumed for all generations.
OPERATIONS = 128


def bandwidth_ns(
    kernels: Kernels, hardware: GpuHardware, model: str, elements: Float64s
) -> Float64s:
    """launch + bytes / (efficiency * bandwidth) + elements * cycles / (SMs * clock).

    The constants are those of `model` ("elementwise", "softmax", "copy", ...).
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


def elementwise_ns(kernels: Kernels, hardware: GpuHardware) -> Float64s:
    """Chains of element-wise operations; an optimizer's update is one over several arrays.

    Fitted on single operations in f32 (add to gelu) on five GPUs.
    """
    return bandwidth_ns(kernels, hardware, "elementwise", kernels.elements.astype(np.float64))


def random_ns(kernels: Kernels, hardware: GpuHardware) -> Float64s:
    """Draws of random numbers: an element-wise kernel with the generator's instructions."""
    draws = kernels.elements * (RANDOM_CYCLES / (hardware.sms * hardware.cycles_per_ns))
    result: Float64s = elementwise_ns(kernels, hardware) + draws
    return result


def reduction_ns(kernels: Kernels, hardware: GpuHardware) -> Float64s:
    """Sums and maxima over the elements that they read. Unless fitted, as element-wise kernels."""
    return bandwidth_ns(kernels, hardware, "reduction", row_elements(kernels))


def softmax_ns(kernels: Kernels, hardware: GpuHardware) -> Float64s:
    """Softmax and its backward pass, fitted on forward passes in f32."""
    return bandwidth_ns(kernels, hardware, "softmax", row_elements(kernels))


def norm_ns(kernels: Kernels, hardware: GpuHardware) -> Float64s:
    """Layer norm, RMS norm and their backward passes, fitted on forward layer norms in f32.

    A block of threads takes a row: loads, sums, waits for the sums, stores. Narrow rows are bound
    by that latency (`norm.row_cycles` of an SM per row), wide ones by their bytes.
    """
    c = hardware.constants
    by_bytes = kernels.moved_bytes / (c["norm.memory_efficiency"] * hardware.memory_bytes_per_ns)
    rows = np.maximum(ReductionDims.of(kernels.dims).rows, 0) / (
        hardware.sms * hardware.cycles_per_ns
    )
    result: Float64s = c["norm.launch_ns"] + np.maximum(by_bytes, rows * c["norm.row_cycles"])
    return result


def copy_ns(kernels: Kernels, hardware: GpuHardware) -> Float64s:
    """Transposes, slices, concatenations: unless fitted, as element-wise kernels of the same bytes."""
    return bandwidth_ns(kernels, hardware, "copy", kernels.elements.astype(np.float64))


def _by_index_ns(kernels: Kernels, hardware: GpuHardware) -> Float64s:
    return bandwidth_ns(kernels, hardware, "gather", kernels.elements.astype(np.float64))


def gather_ns(kernels: Kernels, hardware: GpuHardware) -> Float64s:
    """Look-ups of rows. A row shorter than a sector still moves the whole sector."""
    rows = np.maximum(ReductionDims.of(kernels.dims).rows, 0)
    padding = np.maximum(2.0 * SECTOR_BYTES * rows - kernels.moved_bytes, 0)
    result: Float64s = _by_index_ns(kernels, hardware) + _bytes_ns(padding, hardware)
    return result


def scatter_ns(kernels: Kernels, hardware: GpuHardware) -> Float64s:
    """Scatters and scatter-adds: a copy, whose bytes hold the updates and the places read and written.

    A place shorter than a sector still moves the whole sector, both ways.
    """
    dims = ReductionDims.of(kernels.dims)
    row_bytes = dims.reduced * kernels.written_bytes / np.maximum(kernels.elements, 1)
    padding = 2.0 * np.maximum(dims.rows, 0) * np.maximum(SECTOR_BYTES - row_bytes, 0)
    result: Float64s = _by_index_ns(kernels, hardware) + _bytes_ns(padding, hardware)
    return result


def _bytes_ns(moved: Float64s, hardware: GpuHardware) -> Float64s:
    bandwidth = hardware.constants["gather.memory_efficiency"] * hardware.memory_bytes_per_ns
    result: Float64s = moved / bandwidth
    return result


def sort_ns(kernels: Kernels, hardware: GpuHardware) -> Float64s:
    """Radix sorts: a launch and a pass over all bytes per 8 bits of key."""
    one = bandwidth_ns(kernels, hardware, "elementwise", kernels.elements.astype(np.float64))
    result: Float64s = one * (KEY_BITS / RADIX_BITS)
    return result


def top_k_ns(kernels: Kernels, hardware: GpuHardware) -> Float64s:
    """A launch and the reads of the operand, by as many SMs as there are rows.

    One SM reads no faster than its share of the L2's bandwidth.
    """
    c = hardware.constants
    rows = np.maximum(ReductionDims.of(kernels.dims).rows, 1)
    best = kernels.elements / rows
    reads = np.where(best <= IN_REGISTERS, 1.0, DIGIT_READS)
    share = np.minimum(rows / hardware.sms, 1) * hardware.l2_bytes_per_ns
    memory = c["elementwise.memory_efficiency"] * hardware.memory_bytes_per_ns
    moved = reads * kernels.read_bytes + kernels.written_bytes
    result: Float64s = reads * c["elementwise.launch_ns"] + moved / np.minimum(share, memory)
    return result


def fft_ns(kernels: Kernels, hardware: GpuHardware) -> Float64s:
    """Launches, and the longer of passes over memory and 5 n log2 n operations."""
    c = hardware.constants
    count = fft_passes(kernels, LINE_BYTES)
    bandwidth = c["elementwise.memory_efficiency"] * hardware.memory_bytes_per_ns
    moving = count * kernels.moved_bytes / bandwidth
    working = kernels.flops / (OPERATIONS * hardware.sms * hardware.cycles_per_ns)
    result: Float64s = count * c["elementwise.launch_ns"] + np.maximum(moving, working)
    return result
