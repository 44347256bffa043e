"""The k largest of each row on a GPU, without sorting the rest. All constants are assumed.

With few to find, a block of threads reads its row once and each thread keeps its best in registers
(XLA's kernel for k of at most 16, xla/service/gpu/kernels/topk_custom_kernel.cc). With more, rows
are selected digit by digit: a read for every 8 bits of the key and one that collects (PyTorch's
radix selection; RAFT's select_k). XLA without RAFT sorts then, which takes longer.
"""

from __future__ import annotations

import numpy as np

from flint.backends.cost.chips.gpu.hardware import Float64s, Hardware
from flint.backends.cost.chips.gpu.memory import KEY_BITS, RADIX_BITS
from flint.backends.cost.chips.kernels import Kernels

#: Most elements that threads keep in registers.
IN_REGISTERS = 16
#: Reads of the operand by a selection digit by digit.
DIGIT_READS = KEY_BITS / RADIX_BITS + 1


def top_k_ns(kernels: Kernels, hardware: Hardware) -> Float64s:
    """A launch and the reads of the operand, by as many SMs as there are rows.

    One SM reads no faster than its share of the L2's bandwidth.
    """
    c = hardware.constants
    rows = np.maximum(kernels.dims[:, 1], 1)
    best = kernels.elements / rows
    reads = np.where(best <= IN_REGISTERS, 1.0, DIGIT_READS)
    share = np.minimum(rows / hardware.sms, 1) * hardware.l2_bytes_per_ns
    memory = c["elementwise.memory_efficiency"] * hardware.memory_bytes_per_ns
    moved = reads * kernels.read_bytes + kernels.written_bytes
    result: Float64s = reads * c["elementwise.launch_ns"] + moved / np.minimum(share, memory)
    return result
