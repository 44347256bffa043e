"""What the models read of a chip with systolic arrays, as plain numbers per nanosecond."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flint.backends.cost.chips.families.systolic.constants import CLOCK, constants_of, systolic_of
from flint.backends.cost.chips.model import ON_TPU

if TYPE_CHECKING:
    from flint.cluster.models import Chip

#: Operations of one core's vector unit per cycle. Assumed: 4 units of 8 x 128 lanes
#: (jax-ml/scaling-book); one core per array pair at least does as much.
VECTOR_OPERATIONS = 4096
#: Transcendental functions of one core per cycle: a register of 8 x 128 lanes, as XLA's TPU compiler
#: schedules them for v6e (libtpu 0.0.52, capacity 1 of its unit EUP).
TRANSCENDENTALS = 1024
#: Bytes of an element, by the beginning of StableHLO's name.
_BYTES = (("f8", 1), ("i8", 1), ("ui8", 1), ("f4", 1), ("i4", 1), ("f64", 8), ("f32", 4))


@dataclass(frozen=True)
class SystolicHardware:
    """A chip in nanoseconds and bytes. `arrays` and `vmem_bytes` are those of all its cores."""

    chip: Chip
    constants: Mapping[str, float]
    cores: float
    arrays: float
    rows: float
    columns: float
    cycles_per_ns: float
    vmem_bytes: float
    memory_bytes_per_ns: float

    @property
    def vector_cycles_per_ns(self) -> float:
        """Cycles of the vector units of all cores, which share the work."""
        return self.constants[CLOCK] * self.cores

    @property
    def vector_operations_per_ns(self) -> float:
        """Operations of the vector units of all cores."""
        return VECTOR_OPERATIONS * self.vector_cycles_per_ns

    @property
    def functions_per_ns(self) -> float:
        """Transcendental functions of the vector units of all cores."""
        return TRANSCENDENTALS * self.vector_cycles_per_ns

    def peak_flops_per_ns(self, dtype: str) -> float:
        """Dense peak for a type. Raises FlintError FL705 if the chip file has none for it."""
        return ON_TPU.flops_per_ns(self.chip, dtype)


def hardware_of(chip: Chip, constants: Mapping[str, float] | None = None) -> SystolicHardware:
    """Read a chip, with its constants or the given ones. Raises FL705 without arrays."""
    systolic = systolic_of(chip)
    return SystolicHardware(
        chip=chip,
        constants=constants_of(chip) if constants is None else constants,
        cores=systolic.cores.value,
        arrays=systolic.cores.value * systolic.arrays.value,
        rows=systolic.rows.value,
        columns=systolic.columns.value,
        cycles_per_ns=systolic.clock_hz.value * 1e-9,
        vmem_bytes=systolic.cores.value * systolic.vmem_bytes.value,
        memory_bytes_per_ns=chip.memory_bandwidth_bytes_per_s.value * 1e-9,
    )


def element_bytes(dtype: str) -> int:
    """Bytes of an element; 2 for types that the table does not name."""
    return next((size for start, size in _BYTES if dtype.startswith(start)), 2)
