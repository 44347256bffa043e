"""What the models read of a GPU, as plain numbers in bytes and FLOP per nanosecond."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flint.backends.cost.chips.families.gpu.constants import (
    Constants,
    constants_of,
    flops_per_cycle,
    gpu_of,
)
from flint.backends.cost.chips.model import ON_GPU

if TYPE_CHECKING:
    from flint.cluster.models import Chip

#: L2 bandwidth over that of memory where the chip file does not say. Assumed: an SM takes 64 bytes
#: per cycle from the L2 (NVIDIA A100 whitepaper), of which copies reach about half.
L2_BANDWIDTH_RATIO = 2.0
#: Transcendental functions of one SM per cycle (CUDA C++ programming guide, throughput of native
#: arithmetic instructions, compute capability 8.0 to 9.0).
TRANSCENDENTALS = 16
#: An SM that does more FLOP per cycle (16 bits) has instructions of groups of warps: H100 does 4,096,
#: A100 2,048 (NVIDIA's whitepapers).
WARP_GROUP_FLOPS = 3000
#: Bytes of an element in a product of matrices, by the beginning of StableHLO's name.
_BYTES: tuple[tuple[str, float], ...] = (
    ("f8", 1),
    ("i8", 1),
    ("ui8", 1),
    ("f4", 0.5),
    ("f64", 8),
    ("f32", 4),
    ("tf32", 4),
    ("i32", 4),
    ("ui32", 4),
)


@dataclass(frozen=True)
class GpuHardware:
    """A chip in nanoseconds. `l2_bytes_per_ns` is never below that of memory."""

    chip: Chip
    constants: Constants
    sms: float
    cycles_per_ns: float
    l2_bytes: float
    l2_bytes_per_ns: float
    memory_bytes_per_ns: float

    def peak_flops_per_ns(self, dtype: str) -> float:
        """Dense peak for a type. Raises FlintError FL705 if the chip file has none for it."""
        return ON_GPU.flops_per_ns(self.chip, dtype)

    def is_on_cuda_cores(self, dtype: str) -> bool:
        """Whether products of a type are of f32 that Tensor Cores, which are faster, do not multiply."""
        name, _ = ON_GPU.on(self.chip, dtype)
        return name == "f32" and self.peak_flops_per_ns("f32") < self.peak_flops_per_ns("tf32")

    @property
    def has_warp_groups(self) -> bool:
        """Whether groups of warps multiply together, as from Hopper on."""
        return flops_per_cycle(self.chip) > WARP_GROUP_FLOPS

    @property
    def functions_per_ns(self) -> float:
        """Transcendental functions of all SMs."""
        return TRANSCENDENTALS * self.sms * self.cycles_per_ns


def hardware_of(chip: Chip, constants: Constants | None = None) -> GpuHardware:
    """Read a chip, with its constants or the given ones. Raises FlintError FL705 if it is no GPU."""
    gpu = gpu_of(chip)
    memory = chip.memory_bandwidth_bytes_per_s.value
    l2 = gpu.l2_bandwidth_bytes_per_s.value if gpu.l2_bandwidth_bytes_per_s else 0.0
    return GpuHardware(
        chip=chip,
        constants=constants_of(chip) if constants is None else constants,
        sms=gpu.sms.value,
        cycles_per_ns=gpu.clock_hz.value * 1e-9,
        l2_bytes=gpu.l2_bytes.value,
        l2_bytes_per_ns=max(l2 or L2_BANDWIDTH_RATIO * memory, memory) * 1e-9,
        memory_bytes_per_ns=memory * 1e-9,
    )


def element_bytes(dtype: str) -> float:
    """Bytes of an element of a matrix."""
    return next((size for start, size in _BYTES if dtype.startswith(start)), 2)
