"""What utilisation is measured by: flops of products of matrices, and the peak they compare with."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from flint.backends.cost.kernel_table import kernels_of, kind_of
from flint.backends.cost.kernels import KernelKind
from flint.backends.cost.peaks import peak_type
from flint.cluster import Cluster
from flint.errors import FlintError
from flint.program import Int64s, Phase, Program
from flint.totals import matmul_flops, one_product_flops, total
from flint.workload import Workload


@dataclass(frozen=True, slots=True)
class ProductFlops:
    """Flops of products of matrices of one device and step.

    `model` are those that forward and backward pass need (Chowdhery et al., arXiv 2204.02311,
    appendix B), `executed` those that are done: recomputation is in these only, of layers as well
    as of scores within the backward pass of flash attention.
    """

    model: int
    executed: int


def product_flops(program: Program) -> ProductFlops:
    """The flops of a program's products, of the full square where attention is causal."""
    flops = matmul_flops(program)
    again = np.where(program.phase == Phase.REMAT, flops, _done_again(program, flops))
    executed = total(program, flops)
    return ProductFlops(executed - total(program, again), executed)


def _done_again(program: Program, flops: Int64s) -> Int64s:
    """For each row the flops that a backward pass of flash attention calculates again.

    In one kernel the scores, the first of its five products (Dao et al., arXiv 2205.14135,
    appendix B): the one of which `dims` are. In two kernels the first calculates them for its
    four products and the second, of three, all but the gradient of the queries.
    """
    backward = [kind_of(o) == KernelKind.ATTENTION_BACKWARD for o in program.opcodes]
    rows = np.flatnonzero(np.array(backward, dtype=np.bool_)[program.opcode])
    one = np.minimum(one_product_flops(program, rows), flops[rows])
    again = np.zeros(len(program), dtype=np.int64)
    again[rows] = np.where(flops[rows] <= 3 * one, flops[rows] - one, one)
    return again


def main_type_and_peak(
    workload: Workload, cluster: Cluster, tf32: Collection[KernelKind] = ()
) -> tuple[str, float]:
    """The type whose peak most flops of products run at, and that peak.

    `tf32` is that of `kernels_of`.
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
    return main, peaks.get(main, max(peaks.values()))


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
