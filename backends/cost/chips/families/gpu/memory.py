"""Kernels on a GPU that are bound by bytes: all but products of matrices and attention.

Element-wise chains, copies, softmax, norms, reductions and look-ups are fitted, by library
(`[chip.gpu.libraries.aten]`: PyTorch's own, `triton`: compilers'); of sorts, transforms and selections
all constants are assumed.

The k largest of each row are found without sorting the rest. With few to find, a block of threads
reads its row once and each thread keeps its best in registers (XLA's kernel for k of at most 16,
xla/service/gpu/kernels/topk_custom_kernel.cc). With more, rows are selected digit by digit: a read
for every 8 bits of the key and one that collects (PyTorch's radix selection; RAFT's select_k). XLA
without RAFT sorts then, which takes longer.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from flint.backends.cost.chips.families.gpu.hardware import GpuHardware
from flint.backends.cost.chips.kernels import Kernels
from flint.backends.cost.chips.model import fft_passes, row_elements
from flint.ir.arrays import Float64s, Int64s
from flint.ir.dims import ReductionDims
from flint.ir.program_columns import Phase

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
#: Most elements of a row that a warp keeps in registers (the limit of PyTorch's and Apex's softmax, and
#: of Inductor's persistent reductions).
IN_WARP = 1024
#: Bytes that a thread loads at a time, if a row starts at a multiple of them.
VECTOR_BYTES = 16
#: What a norm reads over what it writes, beyond which it is a backward pass: that reads the operand and
#: a gradient and writes one.
BACKWARD_READS = 1.5
#: Bytes of a weight and a bias for a column, in f32: what few rows read beside operands.
WEIGHT_BYTES = 8
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


def _over_arrays_ns(kernels: Kernels, hardware: GpuHardware, model: str) -> Float64s:
    """`bandwidth_ns`; where arrays lie differently, finding places takes its own time beside it.

    Both overlap in part: their times add as the legs of a right angle. The first bytes are under way
    while blocks still start: a launch counts less the longer the rest is. The norm that joins them has
    the exponent 3/2: of 1 to 3 it is the one with which small and large kernels of H100's and
    MI300X's profiles agree.
    """
    c = hardware.constants
    launch = c[f"{model}.launch_ns"]
    streaming = bandwidth_ns(kernels, hardware, model, kernels.elements.astype(np.float64)) - launch
    finding = kernels.indexed_elements * (
        c[f"{model}.indexed_cycles"] / (hardware.sms * hardware.cycles_per_ns)
    )
    rest = np.hypot(streaming, finding) if kernels.indexed is not None else streaming
    joined = launch * math.sqrt(launch) + rest * np.sqrt(rest)  # to the power 3 / 2
    result: Float64s = np.cbrt(joined) ** 2
    return result


def elementwise_ns(kernels: Kernels, hardware: GpuHardware) -> Float64s:
    """Chains of element-wise operations; an optimizer's update is one over several arrays.

    Where arrays lie differently, PyTorch's kernels find the place of each element by themselves.
    """
    return _over_arrays_ns(kernels, hardware, "elementwise")


def random_ns(kernels: Kernels, hardware: GpuHardware) -> Float64s:
    """Draws of random numbers: an element-wise kernel with the generator's instructions."""
    draws = kernels.elements * (RANDOM_CYCLES / (hardware.sms * hardware.cycles_per_ns))
    result: Float64s = elementwise_ns(kernels, hardware) + draws
    return result


def reduction_ns(kernels: Kernels, hardware: GpuHardware) -> Float64s:
    """Sums and maxima over the elements that they read. Unless fitted, as element-wise kernels."""
    return bandwidth_ns(kernels, hardware, "reduction", row_elements(kernels))


def softmax_ns(kernels: Kernels, hardware: GpuHardware) -> Float64s:
    """Softmax and its backward pass.

    Of rows up to `IN_WARP` elements a warp holds one in its registers. Longer ones are those of a
    block of threads, which goes over a row three times (maximum, sum, result). Some of it comes from
    memory again: `softmax.long_bytes` times the bytes move, 2 (three reads and a write) at most.
    NeuSight's five GPUs take 0.9 to 1.3 times as long for a byte of such a row. Rows that do not start
    at 16 bytes are loaded element by element, which take as long as of f32, of which all that is measured.
    """
    c, columns = hardware.constants, ReductionDims.of(kernels.dims).reduced
    width = kernels.written_bytes / np.maximum(kernels.elements, 1)
    one_by_one = (columns * width % VECTOR_BYTES > 0) & (c["softmax.long_bytes"] > 1)
    share = np.where(one_by_one, 4 / np.clip(width, 1, 4), 1.0)
    bandwidth = c["softmax.memory_efficiency"] * hardware.memory_bytes_per_ns
    moved = kernels.moved_bytes * (share * c["softmax.long_bytes"] - 1)
    again = (columns > IN_WARP) * moved / bandwidth
    result: Float64s = bandwidth_ns(kernels, hardware, "softmax", row_elements(kernels)) + again
    return result


def norm_ns(kernels: Kernels, hardware: GpuHardware) -> Float64s:
    """Layer norm, RMS norm and their backward passes.

    A block of threads takes a row: loads, sums, waits for the sums (`norm.row_cycles`), loads again
    and stores. What it loaded first is still near the SM if a row has `norm.near_bytes` (its share
    of the L1); of rows twice as long all comes from memory again. Rows fewer than SMs leave some of
    them idle: a row takes an SM what the elements take that it reads (`norm.element_cycles`). A
    compiler's kernel keeps a row of `IN_WARP` elements in registers, and goes over a longer one in
    loops, which fill and drain (`norm.long_ns`).

    A backward pass is of the row and of the weight: a sum down each column, for which operands are read
    again, or a thread walks down all rows. It reads more than half again what it writes, weights aside.
    So does a forward pass from f32 to bf16: what is known to be of another phase is none.
    """
    c = hardware.constants
    dims = ReductionDims.of(kernels.dims)
    rows = np.maximum(dims.rows, 1).astype(np.float64)
    beyond = np.clip(kernels.read_bytes / (rows * c["norm.near_bytes"]) - 1, 0, 1)
    moved = kernels.moved_bytes + beyond * kernels.read_bytes
    ratio = kernels.read_bytes / np.maximum(kernels.written_bytes, 1)
    bandwidth = c["norm.memory_efficiency"] * hardware.memory_bytes_per_ns
    cycles = c["norm.row_cycles"] + dims.reduced * np.maximum(ratio, 1) * c["norm.element_cycles"]
    by_rows = np.maximum(rows / hardware.sms, 1) * cycles / hardware.cycles_per_ns
    by_rows += (dims.reduced > IN_WARP) * c["norm.long_ns"]
    again = kernels.read_bytes * c["norm.backward_reads"] / bandwidth
    walk = rows * c["norm.backward_row_cycles"] / hardware.cycles_per_ns
    backward = c["norm.backward_launch_ns"] + np.maximum(again, walk)
    launch = np.where(_goes_back(kernels, dims.reduced), backward, c["norm.launch_ns"])
    result: Float64s = launch + moved / bandwidth + by_rows
    return result


def _goes_back(kernels: Kernels, columns: Int64s) -> NDArray[np.bool_]:
    operands = kernels.read_bytes - WEIGHT_BYTES * columns
    may = (kernels.phase == Phase.UNKNOWN) | (kernels.phase == Phase.BACKWARD)
    result: NDArray[np.bool_] = may & (operands > BACKWARD_READS * kernels.written_bytes)
    return result


def copy_ns(kernels: Kernels, hardware: GpuHardware) -> Float64s:
    """Transposes, slices, concatenations: unless fitted, as element-wise kernels of the same bytes."""
    return _over_arrays_ns(kernels, hardware, "copy")


def gather_ns(kernels: Kernels, hardware: GpuHardware) -> Float64s:
    """Look-ups of rows. A row shorter than a sector still moves the whole sector."""
    rows = np.maximum(ReductionDims.of(kernels.dims).rows, 0)
    return _by_index_ns(kernels, hardware, 2.0 * SECTOR_BYTES * rows - kernels.moved_bytes)


def scatter_ns(kernels: Kernels, hardware: GpuHardware) -> Float64s:
    """Scatters and scatter-adds: a copy, whose bytes hold the updates and the places read and written.

    A place shorter than a sector still moves the whole sector, both ways.
    """
    dims = ReductionDims.of(kernels.dims)
    row_bytes = dims.reduced * kernels.written_bytes / np.maximum(kernels.elements, 1)
    return _by_index_ns(
        kernels, hardware, 2.0 * np.maximum(dims.rows, 0) * (SECTOR_BYTES - row_bytes)
    )


def _by_index_ns(kernels: Kernels, hardware: GpuHardware, padding: Float64s) -> Float64s:
    """With the bytes by which sectors are longer than rows, if they are."""
    bandwidth = hardware.constants["gather.memory_efficiency"] * hardware.memory_bytes_per_ns
    moving = bandwidth_ns(kernels, hardware, "gather", kernels.elements.astype(np.float64))
    result: Float64s = moving + np.maximum(padding, 0) / bandwidth
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
