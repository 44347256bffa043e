"""The constants of the TPU models: a chip's own, or those of TPU v6e, where they were fitted.

| constant | meaning |
|---|---|
| gemm.efficiency | share of the arrays' peak in the inner loop, at most 0.95 |
| gemm.memory_efficiency | share of the memory bandwidth that streamed operands get |
| gemm.launch_ns | start to end of a product without work |
| gemm.exposed_loads | times that the operand which stays on the chip moves while arrays wait |
| gemm.fused_operations | of the vector unit while arrays wait, for each flop fused into a product |
| vmem.bandwidth_ratio | bandwidth of VMEM into the arrays, in memory bandwidths |
| attention.register_cycles | of the vector unit for 1,024 scores of fused attention |
| attention.backward_register_cycles | the same of its backward pass |
| attention.step_cycles | a step of a kernel's grid, also one that is skipped |
| attention.query_cycles | to begin and end a query of a head |
| attention.launch_ns | start to end of a fused attention without work |
| decode.launch_ns, decode.memory_efficiency | attention of one or a few queries per head |
| decode.head_ns | what one head of one sequence costs in that |
| elementwise.launch_ns, elementwise.memory_efficiency | of kernels that pass over arrays once |
| elementwise.vmem_ratio | bandwidth of arrays that lie in VMEM, in memory bandwidths |
| norm.launch_ns, norm.vmem_ratio | the same of kernels that read rows |
| gather.launch_ns, gather.row_ns | a look-up, and each of its rows |
| vector.clock_ghz | clock of the vector unit; else that of the arrays |
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from flint.cluster.models import Chip, Cluster, Systolic
from flint.errors import FlintError

#: The constant that no chip borrows.
CLOCK = "vector.clock_ghz"
#: Preset whose chip has measurements.
REFERENCE = "v6e"


def systolic_of(chip: Chip) -> Systolic:
    """The arrays of a chip. Raises FlintError FL705 for a chip without any."""
    if chip.systolic is None:
        raise FlintError(
            "FL705", f"chip '{chip.name}' has no systolic arrays: no table [chip.systolic]"
        )
    return chip.systolic


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
    if systolic.mode != "tpu":
        return ""
    borrowed = [name for name in _reference() if name not in systolic.constants]
    if not borrowed:
        return ""
    return (
        f"{chip.name} has no measurements of its own for {len(borrowed)} of {len(_reference())} "
        "constants of the kernel models: they are those of TPU v6e, unscaled"
    )


@cache
def _reference() -> Mapping[str, float]:
    chip = Cluster.load(REFERENCE).chip
    own = sorted(systolic_of(chip).constants.items())
    return {name: q.value for name, q in own if name != CLOCK}
