"""Where physics gives a direction, GPU latencies follow it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from flint.backends.cost.chips.families.gpu.hardware import hardware_of
from flint.backends.cost.chips.kernels import KernelKind, Kernels
from flint.backends.cost.chips.model import latency_ns
from flint.cluster.models import Chip, Cluster

PRESETS = [name for name in Cluster.names() if Cluster.load(name).chip.gpu]
SIZES = st.integers(1, 1 << 16)
TINY = 1 - 1e-9  # rounding


@cache
def chip_of(name: str) -> Chip:
    return Cluster.load(name).chip


def one(
    kind: KernelKind, dims: tuple[int, int, int, int], read: int, written: int, *, causal: bool
) -> Kernels:
    batch, m, n, k = dims
    flops = 4 * batch * m * n * k if kind in ATTENTIONS else 2 * batch * m * n * k
    return Kernels(
        kind=np.array([kind], np.uint8),
        dtype=np.zeros(1, np.uint8),
        dims=np.array([dims], np.int64),
        flops=np.array([flops // (2 if causal else 1)]),
        read_bytes=np.array([read]),
        written_bytes=np.array([written]),
        elements=np.array([batch * m * n]),
        arrays=np.array([3]),
        causal=np.array([causal]),
        dtypes=("bf16",),
    )


ATTENTIONS = (KernelKind.ATTENTION, KernelKind.ATTENTION_BACKWARD)


def product(batch: int, m: int, n: int, k: int) -> Kernels:
    read, written = 2 * batch * (m * k + k * n), 2 * batch * m * n
    return one(KernelKind.GEMM, (batch, m, n, k), read, written, causal=False)


def time_of(kernels: Kernels, chip: Chip) -> float:
    return float(latency_ns(kernels, chip)[0])


def with_bandwidth(chip: Chip, factor: float) -> Chip:
    quantity = chip.memory_bandwidth_bytes_per_s
    faster = quantity.model_copy(update={"value": quantity.value * factor})
    return chip.model_copy(update={"memory_bandwidth_bytes_per_s": faster})


@settings(max_examples=150)
@given(st.sampled_from(PRESETS), st.integers(1, 64), SIZES, SIZES, SIZES)
def test_a_product_never_beats_the_roofline(name: str, batch: int, m: int, n: int, k: int) -> None:
    """Peak and bandwidth of the datasheet bound every product: it starts with cold caches."""
    chip, kernels = chip_of(name), product(batch, m, n, k)
    hardware = hardware_of(chip)
    measured, moved = time_of(kernels, chip), float(kernels.moved_bytes[0])
    assert measured >= kernels.flops[0] / hardware.peak_flops_per_ns("bf16") * TINY
    assert measured >= moved / hardware.memory_bytes_per_ns * TINY


@settings(max_examples=150)
@given(st.sampled_from(PRESETS), st.integers(1, 64), SIZES, SIZES, SIZES, st.integers(0, 3), SIZES)
def test_a_larger_product_is_never_faster(
    name: str, batch: int, m: int, n: int, k: int, which: int, more: int
) -> None:
    """In each dimension, exactly: tiles and steps only get more, whichever tile is chosen."""
    larger = [batch, m, n, k]
    larger[which] += more
    chip = chip_of(name)
    small, large = time_of(product(batch, m, n, k), chip), time_of(product(*larger), chip)
    assert large >= small * TINY


KINDS = st.sampled_from([k for k in KernelKind if k != KernelKind.UNPRICED])


@settings(max_examples=200)
@given(
    st.sampled_from(PRESETS), KINDS, st.integers(1, 64), st.integers(1, 4096),
    st.integers(1, 4096), st.integers(1, 512), st.integers(0, 1 << 32), st.integers(0, 1 << 32),
    st.booleans(), st.floats(1, 8),
)  # fmt: skip
def test_more_memory_bandwidth_is_never_slower(
    name: str, kind: KernelKind, batch: int, m: int, n: int, k: int, read: int, written: int,
    causal: bool, factor: float,
) -> None:  # fmt: skip
    chip = chip_of(name)
    kernels = one(kind, (batch, m, n, k), read, written, causal=causal)
    faster = with_bandwidth(chip, factor)
    assert time_of(kernels, faster) <= time_of(kernels, chip) / TINY


@settings(max_examples=200)
@given(
    st.sampled_from(PRESETS), KINDS, st.integers(1, 64), st.integers(1, 4096),
    st.integers(1, 4096), st.integers(1, 512), st.integers(0, 1 << 32), st.integers(0, 1 << 32),
    st.booleans(), st.integers(0, 1 << 32),
)  # fmt: skip
def test_more_bytes_are_never_faster(
    name: str, kind: KernelKind, batch: int, m: int, n: int, k: int, read: int, written: int,
    causal: bool, more: int,
) -> None:  # fmt: skip
    chip = chip_of(name)
    kernels = one(kind, (batch, m, n, k), read, written, causal=causal)
    heavier = replace(kernels, read_bytes=kernels.read_bytes + more)
    assert time_of(heavier, chip) >= time_of(kernels, chip) * TINY


BOUND_BY_BYTES = [
    k for k in KernelKind if k not in (KernelKind.GEMM, KernelKind.CONVOLUTION, KernelKind.UNPRICED)
]


@settings(max_examples=200)
@given(
    st.sampled_from(PRESETS), st.sampled_from(BOUND_BY_BYTES), st.integers(1, 64),
    st.integers(1, 4096), st.integers(1, 4096), st.integers(1, 512), st.integers(0, 1 << 32),
    st.booleans(),
)  # fmt: skip
def test_other_kernels_never_beat_memory(
    name: str, kind: KernelKind, batch: int, m: int, n: int, k: int, read: int, causal: bool
) -> None:  # fmt: skip
    chip = chip_of(name)
    kernels = one(kind, (batch, m, n, k), read, 0, causal=causal)
    assert time_of(kernels, chip) >= read / hardware_of(chip).memory_bytes_per_ns * TINY


@settings(max_examples=150)
@given(
    st.sampled_from(PRESETS), st.sampled_from(ATTENTIONS), st.integers(1, 64),
    st.integers(9, 8192), st.integers(0, 8192), st.sampled_from((32, 64, 96, 128, 256)),
    st.booleans(),
)  # fmt: skip
def test_attention_never_beats_the_peak(
    name: str, kind: KernelKind, heads: int, queries: int, before: int, head_size: int,
    causal: bool,
) -> None:  # fmt: skip
    """Causal attention has at least half of the pairs, those of earlier keys in full."""
    chip = chip_of(name)
    kernels = one(kind, (heads, queries, queries + before, head_size), 0, 0, causal=causal)
    peak = hardware_of(chip).peak_flops_per_ns("bf16")
    assert time_of(kernels, chip) >= kernels.flops[0] / peak * TINY


@settings(max_examples=150)
@given(
    st.sampled_from(PRESETS), st.sampled_from(ATTENTIONS), st.integers(1, 64),
    st.integers(1, 8192), st.integers(0, 8192), st.sampled_from((64, 128, 256)), st.booleans(),
    st.integers(0, 4096), st.integers(0, 4096),
)  # fmt: skip
def test_longer_attention_is_never_faster(
    name: str, kind: KernelKind, heads: int, queries: int, before: int, head_size: int,
    causal: bool, more_queries: int, more_keys: int,
) -> None:  # fmt: skip
    chip = chip_of(name)

    def attention(queries: int, keys: int) -> Kernels:
        moved = 2 * heads * head_size
        dims = (heads, queries, keys, head_size)
        return one(kind, dims, moved * (queries + 2 * keys), moved * queries, causal=causal)

    keys = queries + before + more_queries
    short = time_of(attention(queries, keys), chip)
    assert time_of(attention(queries + more_queries, keys), chip) >= short * TINY
    assert time_of(attention(queries, keys + more_keys), chip) >= short * TINY
