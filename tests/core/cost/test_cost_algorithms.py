"""Fourier transforms, top-k and sorts: against what memory allows, and what was measured."""

from __future__ import annotations

import math

import numpy as np
import pytest

import flint
from flint.backends.cost.chips.kernel_table import kernels_of
from flint.backends.cost.chips.kernels import KernelKind
from flint.backends.cost.chips.model import latency_ns as kernel_ns
from flint.cluster.models import Cluster
from flint.ir.program import Program
from flint.passes.work.formulas import fft


def latency_ns(program: Program, cluster: str) -> dict[KernelKind, float]:
    """Nanoseconds of the kernels of a program, by kind."""
    kernels, _ = kernels_of(program)
    times = kernel_ns(kernels, Cluster.load(cluster).chip)
    return {KernelKind(k): float(times[kernels.kind == k].sum()) for k in np.unique(kernels.kind)}


def bandwidth(cluster: str) -> float:
    return Cluster.load(cluster).chip.memory_bandwidth_bytes_per_s.value * 1e-9


def transform(shape: tuple[int, ...], axes: int) -> Program:
    import jax
    import jax.numpy as jnp

    data = jax.ShapeDtypeStruct(shape, jnp.complex64)
    last = tuple(range(-axes, 0))
    return flint.trace(lambda x: jnp.fft.fftn(x, axes=last), "1", data).program


def best(rows: int, columns: int, k: int, dtype: str) -> Program:
    import jax

    data = jax.ShapeDtypeStruct((rows, columns), dtype)
    return flint.trace(lambda x: jax.lax.top_k(x, k), "1", data).program


@pytest.mark.parametrize("cluster", ["h100", "a100-80-dgx", "v6e", "v5p"])
@pytest.mark.parametrize(
    ("shape", "axes", "passes"),
    [((16_384, 4_096), 1, 1), ((16, 2_048, 2_048), 2, 2), ((512, 512, 256), 3, (2, 3))],
)
def test_a_transform_is_read_and_written_once_an_axis(
    cluster: str, shape: tuple[int, ...], axes: int, passes: int | tuple[int, int]
) -> None:
    """Outer axes are one axis, which on a GPU is longer than a line that fits on chip."""
    found = latency_ns(transform(shape, axes), cluster)[KernelKind.FFT]
    low, high = (passes, passes) if isinstance(passes, int) else passes
    once = 2 * 8 * math.prod(shape) / bandwidth(cluster)
    assert low * once < found < 1.7 * high * once


def test_long_lines_go_through_memory_twice_on_a_gpu() -> None:
    short, long = (latency_ns(transform(s, 1), "h100") for s in ((8_192, 8_192), (64, 1 << 20)))
    ratio = long[KernelKind.FFT] / short[KernelKind.FFT]
    assert ratio == pytest.approx(2, rel=0.05)


@pytest.mark.parametrize(("shape", "axes"), [((64, 4_096), 1), ((4, 128, 256), 2)])
def test_a_transform_has_5_n_log_n_operations(shape: tuple[int, ...], axes: int) -> None:
    program = transform(shape, axes)
    (row,) = np.flatnonzero([o == "hlo.fft" for o in np.array(program.opcodes)[program.opcode]])
    length = math.prod(shape[-axes:])
    assert program.flops[row] == 5 * math.prod(shape) * math.log2(length)
    outer, count, _, last = program.dims[row].tolist()
    assert (outer * last, outer * count * last) == (length, math.prod(shape))


def test_an_empty_transform_has_no_work() -> None:
    assert fft(0, [1, 8]).flops == 0


def test_few_of_many_are_found_in_one_read_on_a_gpu() -> None:
    """Of 128,256 logits in 8,192 rows; and never by fewer bytes than the operand has."""
    read = 4 * 8_192 * 128_256 / bandwidth("h100")
    found = {k: latency_ns(best(8_192, 128_256, k, "float32"), "h100") for k in (8, 64)}
    assert read < found[8][KernelKind.TOP_K] < 1.5 * read
    assert 4 * read < found[64][KernelKind.TOP_K] < 7 * read


def test_one_row_is_read_by_one_part_of_a_gpu() -> None:
    """Rows are spread over SMs: a few take no longer than one."""
    one, many = (latency_ns(best(rows, 201_088, 1, "float32"), "h100") for rows in (1, 32))
    assert many[KernelKind.TOP_K] < 1.1 * one[KernelKind.TOP_K]


@pytest.mark.parametrize(
    ("cluster", "rows", "columns", "k", "dtype", "measured_us"),
    [
        ("v5e", 32, 201_088, 64, "float32", 1_320),
        ("v6e", 32, 201_088, 64, "float32", 1_010),
        ("v5e", 16, 32_768, 5, "bfloat16", 85),
    ],
)
def test_top_k_of_tpus_is_as_it_was_measured(
    cluster: str, rows: int, columns: int, k: int, dtype: str, measured_us: float
) -> None:
    """XLA's exact top-k, by the READMEs of oliverdutton/fast_exact_topk_tpu and tallax."""
    found = latency_ns(best(rows, columns, k, dtype), cluster)[KernelKind.TOP_K]
    assert found == pytest.approx(1e3 * measured_us, rel=0.2)


def test_small_sorts_cost_a_launch_on_a_tpu() -> None:
    import jax

    data = jax.ShapeDtypeStruct((8, 64), "float32")
    program = flint.trace(jax.lax.sort, "1", data).program
    assert latency_ns(program, "v5e")[KernelKind.SORT] > 2_000


@pytest.mark.long
@pytest.mark.parametrize("cluster", ["v5e", "v6e"])
def test_rows_that_leave_vmem_sort_slower(cluster: str) -> None:
    """Twice the elements in one row that no longer fits take more than twice as long."""
    import jax

    def of(columns: int) -> float:
        data = jax.ShapeDtypeStruct((1, columns), "float32")
        program = flint.trace(jax.lax.sort, "1", data).program
        return latency_ns(program, cluster)[KernelKind.SORT]

    times = [of(1 << n) for n in range(10, 31)]
    assert times == sorted(times)
    assert of(1 << 30) > 2 * of(1 << 29)
