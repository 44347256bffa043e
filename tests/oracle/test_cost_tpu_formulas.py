"""Prices of kernels on a TPU against the formulas of their docstrings, one kernel at a time.

Here are plain numbers instead of columns. Shapes are drawn from a seed: they reach each case of a
formula, such as sorts that do not fit into VMEM. A chip with odd arrays tells rows from columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from flint.backends.cost.chips.families.systolic.constants import constants_of
from flint.backends.cost.chips.kernels import KernelKind
from flint.backends.cost.chips.model import latency_ns
from flint.cluster.models import Chip, Cluster
from tests.kernel_rows import Row, columns_of, drawn_rows, without_dimensions

K = KernelKind
SIZES = {"bf16": 2, "f32": 4, "i8": 1}


@dataclass(frozen=True)
class Tpu:
    """A chip's numbers per nanosecond, of all its cores."""

    chip: Chip

    def __getitem__(self, constant: str) -> float:
        return constants_of(self.chip)[constant]

    def said(self, name: str) -> float:
        """What the table of the chip's file says."""
        family: Any = self.chip.family
        return float(getattr(family, name).value)

    @property
    def memory(self) -> float:
        return self.chip.memory_bandwidth_bytes_per_s.value / 1e9

    @property
    def vmem_bytes(self) -> float:
        return self.said("cores") * self.said("vmem_bytes")

    @property
    def vector_cycles(self) -> float:
        return self.said("cores") * self["vector.clock_ghz"]

    @property
    def operations(self) -> float:
        """Four units of 8 x 128 lanes in each core."""
        return 4 * 8 * 128 * self.vector_cycles

    def peak(self, dtype: str) -> float:
        """Floats of 32 bits are multiplied as bf16."""
        name = "bf16" if dtype == "f32" else dtype
        return self.chip.peak_flops_per_s[name].value / 1e9


def two_cores() -> Chip:
    """A v6e with two cores and arrays that are no squares; no constant is 0 or 1."""
    chip: Any = Cluster.load("v6e").chip
    family = chip.family

    def as_count(value: float) -> Any:
        return family.cores.model_copy(update={"value": value})

    constants = dict(family.constants)
    for name, value in {"gemm.exposed_loads": 0.3, "gemm.fused_operations": 0.7}.items():
        constants[name] = constants[name].model_copy(update={"value": value})
    arrays = {"cores": as_count(2), "rows": as_count(256), "columns": as_count(128)}
    changed = family.model_copy(update={**arrays, "constants": constants})
    found: Chip = chip.model_copy(update={"systolic": changed})
    return found


TPU = Tpu(two_cores())


def padded(extent: float, multiple: float) -> float:
    return math.ceil(extent / multiple) * multiple


def product_ns(row: Row, tpu: Tpu) -> float:
    size = SIZES[row.dtype]
    batch, m, n, k = row.sides
    high, wide = tpu.said("rows"), tpu.said("columns")
    sublanes = 32 / size
    area = min(padded(m, sublanes) * padded(n, wide), padded(n, sublanes) * padded(m, wide))
    arithmetic = 2 * batch * area * padded(k, high) / tpu.peak(row.dtype) / tpu["gemm.efficiency"]
    first = min(min(m, n) * k * size, tpu.vmem_bytes / 2) / tpu.memory
    busy = arithmetic + tpu["gemm.exposed_loads"] * first
    if row.kind is K.GEMM:
        fused = max(row.flops - 2 * math.prod(row.dims), 0)
        busy += fused * tpu["gemm.fused_operations"] / tpu.operations
    vmem = batch * (m + n) * k * size / (tpu["vmem.bandwidth_ratio"] * tpu.memory)
    bytes_ns = row.moved / (tpu["gemm.memory_efficiency"] * tpu.memory)
    fill = (2 * high + wide - 2) / (tpu.said("clock_hz") / 1e9)
    return tpu["gemm.launch_ns"] + fill + max(busy, vmem, bytes_ns)


def moved_ns(row: Row, tpu: Tpu) -> float:
    return row.moved / (tpu["elementwise.memory_efficiency"] * tpu.memory)


def pass_ns(row: Row, tpu: Tpu, model: str, touched: float) -> float:
    inside = touched * SIZES[row.dtype] / (tpu[f"{model}.vmem_ratio"] * tpu.memory)
    return tpu[f"{model}.launch_ns"] + max(inside, moved_ns(row, tpu))


def elementwise_ns(row: Row, tpu: Tpu) -> float:
    """Its elements are read and written in VMEM."""
    return pass_ns(row, tpu, "elementwise", 2 * row.elements)


def random_ns(row: Row, tpu: Tpu) -> float:
    """20 rounds of 5 operations and 12 for the keys, for two numbers."""
    return max(elementwise_ns(row, tpu), row.elements * (20 * 5 + 12) / 2 / tpu.operations)


def gather_ns(row: Row, tpu: Tpu, passes: int = 1) -> float:
    moving = max(row.dims[1] * tpu["gather.row_ns"], moved_ns(row, tpu))
    return tpu["gather.launch_ns"] + passes * moving


def network_ns(row: Row, tpu: Tpu, arrays: int) -> float:
    """Stages of a bitonic network over a row: 1 + 2 + ... + log2 of its length."""
    rows, columns = row.sides[1], max(row.dims[3], 2)
    doublings = math.ceil(math.log2(columns))
    stages = sum(range(doublings + 1))
    lanes = padded(rows, 8) * max(columns, 128)
    working = lanes * arrays * stages * 3.5 / tpu.operations
    near = math.floor(math.log2(tpu.vmem_bytes / 2 / 4 / arrays))
    far = 0
    for doubling in range(near + 1, doublings + 1):  # stages beyond, and one pass for the others
        far += doubling - near + 1
    moved = row.moved + far * 2 * 4 * rows * columns * arrays
    memory = moved / (tpu["elementwise.memory_efficiency"] * tpu.memory)
    return tpu["gather.launch_ns"] + max(working, memory)


def fft_ns(row: Row, tpu: Tpu) -> float:
    longest = tpu.vmem_bytes / 2 / 8
    outer, _, _, last = row.dims
    passes = 2 if last > longest else 1
    if outer > 1:
        passes += 2 if outer > longest else 1
    working = row.flops / tpu.operations
    return passes * tpu["norm.launch_ns"] + max(passes * moved_ns(row, tpu), working)


def attention_ns(row: Row, tpu: Tpu, *, backward: bool = False) -> float:
    if row.dims[1] <= 8 and not row.causal and not backward:
        return decode_ns(row, tpu)
    if row.causal and row.dims[2] > row.dims[1] and not backward:
        return chunk_ns(row, tpu)
    tried = [blocks_ns(row, tpu, backward, block) for block in (512, 1024, 2048)]
    return tpu["attention.launch_ns"] + max(min(tried), row.flops / tpu.peak(row.dtype))


def products_of(row: Row, *, backward: bool) -> float:
    """A kernel with fewer flops than all products has fewer of them; at least one."""
    whole = 2 * math.prod(row.sides) * (0.5 if row.causal else 1)
    most = 5 if backward else 2
    return min(row.flops / whole, most) if row.flops >= whole else most


def blocks_ns(row: Row, tpu: Tpu, backward: bool, block: int) -> float:
    heads, queries, keys, size = row.sides
    products = products_of(row, backward=backward)
    scores = queries * keys
    if row.causal:  # half of a square, without the half blocks at its diagonal
        side = min(queries, keys)
        scores -= side * max(side - min(queries, keys, block), 0) / 2
    scores *= heads
    across = padded(size, tpu.said("rows"))
    arrays = 2 * scores * across * products / tpu.peak(row.dtype)
    cycles = tpu[f"attention.{'backward_' if backward else ''}register_cycles"]
    vector = scores / (8 * 128) * cycles / tpu.vector_cycles
    steps = heads * math.ceil(queries / block) * math.ceil(keys / block)
    around = steps * tpu["attention.step_cycles"] + heads * queries * tpu["attention.query_cycles"]
    working = (arrays**3 + vector**3) ** (1 / 3) + around / tpu.vector_cycles
    bandwidth = tpu["gemm.memory_efficiency"] * tpu.memory
    parts = 0.0
    if backward and products > 4:  # gradients of queries that each block of keys leaves
        parts = heads * math.ceil(keys / block) * queries * size * SIZES[row.dtype]
    return max(working, (row.moved + parts) / bandwidth) + parts / bandwidth


def chunk_ns(row: Row, tpu: Tpu) -> float:
    """Queries after keys in a cache: each sees those and its own."""
    heads, queries, keys, size = row.sides
    scores = heads * (queries * (keys - queries) + queries * (queries + 1) / 2)
    arrays = 4 * scores * padded(size, tpu.said("rows")) / tpu.peak(row.dtype)
    cycles = scores / (8 * 128) * tpu["prefill.register_cycles"]
    cycles += heads * queries * tpu["prefill.query_cycles"]
    working = (arrays**3 + (cycles / tpu.vector_cycles) ** 3) ** (1 / 3)
    return tpu["prefill.launch_ns"] + max(
        working, row.moved / (tpu["gemm.memory_efficiency"] * tpu.memory)
    )


def decode_ns(row: Row, tpu: Tpu) -> float:
    bytes_ns = row.moved / (tpu["decode.memory_efficiency"] * tpu.memory)
    bytes_ns += row.sides[0] * tpu["decode.head_ns"]
    return tpu["decode.launch_ns"] + max(bytes_ns, row.flops / tpu.peak(row.dtype))


def declared_ns(row: Row, tpu: Tpu) -> float:
    flops = row.flops / (tpu["gemm.efficiency"] * tpu.peak(row.dtype))
    functions = row.dims[1] / (8 * 128 * tpu.vector_cycles)
    bytes_ns = row.moved / (tpu["gemm.memory_efficiency"] * tpu.memory)
    return tpu["gemm.launch_ns"] + max(flops, functions, bytes_ns)


FORMULAS: dict[KernelKind, Callable[[Row, Tpu], float]] = {
    K.GEMM: product_ns,
    K.CONVOLUTION: product_ns,
    K.ATTENTION: attention_ns,
    K.ATTENTION_BACKWARD: lambda row, tpu: attention_ns(row, tpu, backward=True),
    K.ELEMENTWISE: elementwise_ns,
    K.OPTIMIZER: elementwise_ns,
    K.COPY: elementwise_ns,
    K.HOST_COPY: elementwise_ns,
    K.RANDOM: random_ns,
    K.REDUCTION: lambda row, tpu: pass_ns(row, tpu, "elementwise", row.touched),
    K.SOFTMAX: lambda row, tpu: pass_ns(row, tpu, "norm", 2 * row.touched),
    K.NORM: lambda row, tpu: pass_ns(row, tpu, "norm", 2 * row.touched),
    K.GATHER: gather_ns,
    K.SCATTER: lambda row, tpu: gather_ns(row, tpu, passes=2),
    K.SORT: lambda row, tpu: network_ns(row, tpu, max(row.arrays - 1, 1)),
    K.TOP_K: lambda row, tpu: network_ns(row, tpu, 2),
    K.FFT: fft_ns,
    K.DECLARED: declared_ns,
}


def test_every_kind_has_a_formula_here() -> None:
    assert set(KernelKind) - set(FORMULAS) == {K.UNPRICED}


@pytest.mark.parametrize("kind", FORMULAS)
def test_prices_are_those_of_the_formula(kind: KernelKind) -> None:
    rows = drawn_rows(kind, list(SIZES), seed=int(kind), count=300)
    found = latency_ns(columns_of(rows), TPU.chip)
    np.testing.assert_allclose(found, [FORMULAS[kind](row, TPU) for row in rows], rtol=1e-9)


@pytest.mark.parametrize("kind", FORMULAS)
def test_kernels_without_dimensions_are_priced(kind: KernelKind) -> None:
    rows = without_dimensions(kind)
    found = latency_ns(columns_of(rows), TPU.chip)
    np.testing.assert_allclose(found, [FORMULAS[kind](row, TPU) for row in rows], rtol=1e-9)
