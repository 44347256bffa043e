"""Systolic arrays in cluster files: their table, and what each constant of their models means."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from flint.cluster.tables import (
    ChipFamily,
    Constant,
    Count,
    Positive,
    Quantity,
    efficiency,
    limited,
    named,
    positive,
)
from flint.errors import FlintError

if TYPE_CHECKING:
    from flint.cluster.models import Chip

#: The constant that no chip borrows.
CLOCK = "vector.clock_ghz"
#: Preset whose chip has measurements.
REFERENCE = "v6e"
#: Programs are launched whole: a kernel may start in less time than on a GPU.
CONSTANTS: Mapping[str, Constant] = {
    "gemm.efficiency": efficiency("share of the arrays' peak in the inner loop"),
    "gemm.memory_efficiency": efficiency("share of the bandwidth that streamed operands get"),
    "gemm.launch_ns": Constant("start to end of a product without work"),
    "gemm.exposed_loads": Constant("times that the operand which stays moves while arrays wait"),
    "gemm.fused_operations": Constant("of the vector unit, for each flop fused into a product"),
    "vmem.bandwidth_ratio": positive("bandwidth of VMEM into the arrays, in memory bandwidths"),
    "attention.register_cycles": Constant("of the vector unit for 1,024 scores of attention"),
    "attention.backward_register_cycles": Constant("the same of its backward pass"),
    "attention.step_cycles": Constant("a step of a kernel's grid, also one that is skipped"),
    "attention.query_cycles": Constant("beginning and end of a query of a head"),
    "attention.launch_ns": Constant("start to end of a fused attention without work"),
    "prefill.register_cycles": Constant("attention.register_cycles of a chunk after cached keys"),
    "prefill.query_cycles": Constant("each query of a head in that, of the vector unit"),
    "prefill.launch_ns": Constant("start to end of that without work"),
    "decode.launch_ns": Constant("the same of attention of one or a few queries per head"),
    "decode.memory_efficiency": efficiency("share of the memory bandwidth in that"),
    "decode.head_ns": Constant("cost of one head of one sequence in that"),
    "elementwise.launch_ns": Constant("start to end of a kernel that passes over arrays once"),
    "elementwise.memory_efficiency": efficiency("share of the memory bandwidth in that"),
    "elementwise.vmem_ratio": positive("bandwidth of arrays in VMEM, in memory bandwidths"),
    "norm.launch_ns": Constant("start to end of a kernel that reads rows"),
    "norm.vmem_ratio": positive("bandwidth of rows in VMEM, in memory bandwidths"),
    "gather.launch_ns": Constant("start to end of a look-up"),
    "gather.row_ns": Constant("each of its rows"),
    CLOCK: positive("clock of the vector unit; else that of the arrays"),
}


class Systolic(ChipFamily):
    """Systolic arrays: `cores` cores, each with `arrays` arrays of `rows` x `columns`.

    `vmem_bytes` is of one core. Arrays, size and clock give the peak: one multiplication and one
    addition per cell and cycle.
    """

    table: ClassVar[str] = "systolic"
    known: ClassVar[Mapping[str, Constant]] = CONSTANTS
    peak_keys: ClassVar[tuple[str, ...]] = ("cores", "arrays", "rows", "columns", "clock_hz")

    cores: Count
    """Cores of a chip."""
    arrays: Count
    """Systolic arrays of a core."""
    rows: Count
    """Rows of an array."""
    columns: Count
    """Columns of an array."""
    clock_hz: Positive
    """Their clock, in Hz."""
    vmem_bytes: Positive
    """Memory beside the arrays of one core, in bytes."""
    mode: Literal["tpu", "scalesim"] = "tpu"
    """"tpu" (pipelined folds, the default) or "scalesim" (SCALE-Sim's cycles of products)."""
    dataflow: Literal["ws", "os", "is"] = "ws"
    """What stays in an array with "scalesim": weights, outputs or inputs."""
    constants: Annotated[dict[str, Quantity], named(CONSTANTS), limited(CONSTANTS)] = Field(
        default_factory=dict
    )
    """Constants of the model; missing ones are those of a reference chip."""


def systolic_of(chip: Chip) -> Systolic:
    """The arrays of a chip. Raises FlintError FL705 for a chip without any."""
    if not isinstance(chip.family, Systolic):
        raise FlintError(
            "FL705", f"chip '{chip.name}' has no systolic arrays: it has no table [chip.systolic]"
        )
    return chip.family


def constants_of(chip: Chip) -> Mapping[str, float]:
    """Constants of a chip: its own where it has them, the others from `REFERENCE`.

    Shares and ratios are taken as they are; so are times, which mostly are not of the clock's.
    """
    systolic = systolic_of(chip)
    own = {name: q.value for name, q in systolic.constants.items()}
    return {**_reference(), CLOCK: systolic.clock_hz.value * 1e-9, **own}


def constants_note(chip: Chip) -> str:
    """A sentence on whose constants a chip's kernels are priced with; empty if they are its own."""
    systolic = systolic_of(chip)
    borrowed = [name for name in _reference() if name not in systolic.constants]
    if not borrowed:
        return ""
    return (
        f"{chip.name} has no measurements for {len(borrowed)} of {len(_reference())} constants "
        "of the kernel models: they are those of TPU v6e, unscaled"
    )


@cache
def _reference() -> Mapping[str, float]:
    from flint.cluster.models import Cluster  # which needs this module

    chip = Cluster.load(REFERENCE).chip
    own = sorted(systolic_of(chip).constants.items())
    return {name: q.value for name, q in own if name != CLOCK}
