"""What physics says of systolic latencies, for any shape."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flint.backends.cost.chips.families.systolic.constants import constants_of
from flint.backends.cost.chips.families.systolic.model import SystolicModel
from flint.backends.cost.chips.families.systolic.scalesim import DATAFLOWS, cycles
from flint.backends.cost.chips.kernels import KernelKind, Kernels
from flint.backends.cost.chips.model import latency_ns
from flint.cluster.models import Chip, Cluster, Quantity

EXTENT = st.integers(1, 20_000)
PRESETS = st.sampled_from(["v4", "v5e", "v5p", "v6e"])
KINDS = st.sampled_from([k for k in KernelKind if k is not KernelKind.UNPRICED])


def kernel(kind: KernelKind, dims: tuple[int, int, int, int]) -> Kernels:
    batch, m, n, k = dims
    if kind in (KernelKind.ATTENTION, KernelKind.ATTENTION_BACKWARD):
        read, written = 2 * batch * (m + 2 * n) * k, 2 * batch * m * k
        flops = 4 * batch * m * n * k
    elif kind in (KernelKind.GEMM, KernelKind.CONVOLUTION):
        read, written, flops = 2 * batch * (m + n) * k, 2 * batch * m * n, 2 * batch * m * n * k
    else:
        read, written, flops = 2 * m * k, 2 * m * k, 0
    return Kernels(
        kind=np.array([kind], np.uint8),
        dtype=np.zeros(1, np.uint8),
        dims=np.array([dims], np.int64),
        flops=np.array([flops]),
        read_bytes=np.array([read]),
        written_bytes=np.array([written]),
        elements=np.array([written // 2]),
        arrays=np.array([3]),
        causal=np.zeros(1, np.bool_),
        dtypes=("bf16",),
    )


def scaled(quantity: Quantity, factor: float) -> Quantity:
    return quantity.model_copy(update={"value": quantity.value * factor})


def faster(chip: Chip, *, bandwidth: float = 1, clock: float = 1) -> Chip:
    assert chip.systolic is not None
    memory = scaled(chip.memory_bandwidth_bytes_per_s, bandwidth)
    arrays = chip.systolic.model_copy(update={"clock_hz": scaled(chip.systolic.clock_hz, clock)})
    peaks = {name: scaled(q, clock) for name, q in chip.peak_flops_per_s.items()}
    return chip.model_copy(
        update={
            "memory_bandwidth_bytes_per_s": memory,
            "systolic": arrays,
            "peak_flops_per_s": peaks,
        }
    )


def with_mode(chip: Chip, mode: str) -> Chip:
    assert chip.systolic is not None
    return chip.model_copy(update={"systolic": chip.systolic.model_copy(update={"mode": mode})})


@given(PRESETS, KINDS, st.tuples(st.integers(1, 64), EXTENT, EXTENT, EXTENT), st.floats(1, 8),
       st.sampled_from(["tpu", "scalesim"]))  # fmt: skip
def test_more_bandwidth_or_clock_is_never_slower(
    preset: str, kind: KernelKind, dims: tuple[int, int, int, int], factor: float, mode: str
) -> None:
    chip = with_mode(Cluster.load(preset).chip, mode)
    one = kernel(kind, dims)
    before = latency_ns(one, chip)[0]
    assert latency_ns(one, faster(chip, bandwidth=factor))[0] <= before * (1 + 1e-12)
    assert latency_ns(one, faster(chip, clock=factor))[0] <= before * (1 + 1e-12)


@given(PRESETS, KINDS, st.tuples(st.integers(1, 64), EXTENT, EXTENT, EXTENT))
def test_the_roofline_is_a_lower_bound_at_efficiency_one(
    preset: str, kind: KernelKind, dims: tuple[int, int, int, int]
) -> None:
    chip = Cluster.load(preset).chip
    one = kernel(kind, dims)
    ideal = {
        name: 1.0 if name.endswith("efficiency") else 0.0 if name.endswith("_ns") else value
        for name, value in constants_of(chip).items()
    } | {"gemm.exposed_loads": 0.0}
    peak = chip.peak_flops_per_s["bf16"].value * 1e-9
    memory = chip.memory_bandwidth_bytes_per_s.value * 1e-9
    roofline = max(one.flops[0] / peak, one.moved_bytes[0] / memory)
    assert SystolicModel(chip, ideal).latency_ns(one)[0] >= roofline * (1 - 1e-9)
    assert latency_ns(one, chip)[0] >= roofline * (1 - 1e-9)


@given(EXTENT, EXTENT, EXTENT, st.sampled_from(DATAFLOWS), st.sampled_from([8, 128, 256]))
def test_an_array_never_does_more_than_a_product_per_cell_and_cycle(
    m: int, n: int, k: int, dataflow: str, size: int
) -> None:
    found = int(cycles(m, n, k, size, size, dataflow))
    assert found * size * size >= m * n * k
    for more in ((m + 1, n, k), (m, n + 1, k), (m, n, k + 1)):
        assert int(cycles(*more, size, size, dataflow)) >= found
