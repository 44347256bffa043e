"""What utilization is measured by: flops of products of matrices, and the peak they compare with."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from flint.backends.cost.chips.kernel_table import kernels_of, masked_flops, masks_of
from flint.backends.cost.chips.kernels import KernelKind
from flint.backends.cost.chips.model import peak_type
from flint.cluster.models import Cluster
from flint.errors import FlintError
from flint.ir.columns import is_any
from flint.ir.op_class import OpClass
from flint.ir.program import Int64s, Phase, Program
from flint.ir.workload import Workload
from flint.passes.base import run_passes
from flint.passes.fusion.attention import FuseAttention
from flint.passes.rewrites.dead_code import DropDeadCode
from flint.passes.work.totals import matmul_flops, one_product_flops, total

#: Backward passes of attention in one kernel.
_BACKWARD = frozenset({OpClass.ATTENTION_BACKWARD, OpClass.FUSED_ATTENTION_BACKWARD})


@dataclass(frozen=True, slots=True)
class ProductFlops:
    """Flops of products of matrices of one device and step.

    `model` are those that forward and backward pass need (Chowdhery et al., arXiv 2204.02311,
    appendix B), without what a mask omits. `executed` are those that kernels do. Of these,
    `repeated` were done before: of layers that are recomputed, and of scores within the backward
    pass of flash attention.
    """

    model: int
    executed: int
    repeated: int


def needed_flops(program: Program) -> int:
    """Flops of products that a program's model needs; its kernels, which a profile makes, may do more.

    A model does not need the scores that its mask omits, whoever calculates them: attention
    that a program writes out is recognized, as `FuseAttention` does for flash kernels.
    """
    flops, again = executed_flops(run_passes(program, (DropDeadCode(), FuseAttention())))
    return flops - again


def executed_flops(program: Program) -> tuple[int, int]:
    """Flops of products, without those that kernels skip for masks; and the repeated of them."""
    flops, masks = matmul_flops(program), masks_of(program)
    again = np.where(program.phase == Phase.REMAT, flops, _done_again(program, flops))
    both = (masked_flops(f, program.dims, masks) for f in (flops, again))
    done, repeated = (total(program, f) for f in both)
    return done, repeated


def _done_again(program: Program, flops: Int64s) -> Int64s:
    """For each row the flops that a backward pass of flash attention calculates again.

    In one kernel the scores, the first of its five products (Dao et al., arXiv 2205.14135,
    appendix B): the one of which `dims` are. In two kernels the first calculates them for its
    four products and the second, of three, all but the gradient of the queries.
    """
    rows = np.flatnonzero(is_any(program, _BACKWARD))
    one = np.minimum(one_product_flops(program, rows), flops[rows])
    again = np.zeros(len(program), dtype=np.int64)
    again[rows] = np.where(flops[rows] <= 3 * one, flops[rows] - one, one)
    return again


def main_type_and_peak(
    workload: Workload, cluster: Cluster, tf32: Collection[KernelKind] = ()
) -> tuple[str, float]:
    """The type whose peak most flops of products run at, and that peak.

    Where others run faster, it is what the chip can do in this mix of types, so that no utilization
    is above 1. `tf32` is that of `kernels_of`.
    """
    kinds = frozenset(tf32)
    weight = workload.kept.get("flops of types", kinds, lambda: _flops_of_types(workload, kinds))
    peaks = {k: v.value for k, v in cluster.chip.peak_flops_per_s.items()}
    found: dict[str, int] = {}
    for dtype, flops in weight.items():
        with suppress(FlintError):  # a type that the chip has no peak for
            name, _ = peak_type(cluster.chip, dtype)
            found[name] = found.get(name, 0) + flops
    main = max(found, key=lambda name: found[name]) if any(found.values()) else "bf16"
    peak = peaks.get(main, max(peaks.values()))
    if any(peaks[name] > peak for name, flops in found.items() if flops):
        mixed = sum(found.values()) / sum(flops / peaks[name] for name, flops in found.items())
        peak = max(peak, mixed)
    return main, peak


def _flops_of_types(workload: Workload, tf32: Collection[KernelKind]) -> dict[str, int]:
    """The flops of products by what they multiply, of one device of each class."""
    found: dict[str, int] = {}
    for program in workload.programs:
        kernels, rows = kernels_of(program, tf32=tf32)
        flops = kernels.flops * program.trips[rows]
        for number in np.unique(kernels.dtype).tolist():
            mine = (kernels.dtype == number) & (kernels.kind <= KernelKind.ATTENTION_BACKWARD)
            dtype = kernels.dtypes[number]
            found[dtype] = found.get(dtype, 0) + int(flops[mine].sum())
    return found
