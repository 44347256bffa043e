"""Kernels on systolic arrays: shapes, chips, modes and measured rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks import accuracy_tpu, tpu_rows
from benchmarks.fits import tpu
from flint.backends.cost.chips.families.systolic.constants import constants_note, constants_of
from flint.backends.cost.chips.families.systolic.model import SystolicModel
from flint.backends.cost.chips.families.systolic.scalesim import cycles
from flint.backends.cost.chips.kernels import KernelKind, Kernels
from flint.backends.cost.chips.model import latency_ns
from flint.cluster.models import Chip, Cluster, Quantity, SourceKind
from flint.errors import FlintError
from tests.cpu import cpu_seconds
from tests.kernel_rows import gemm, kernels


def attention(
    queries: int, *, causal: bool, backward: bool = False, size: int = 128, batch: int = 32
) -> Kernels:
    kind = KernelKind.ATTENTION_BACKWARD if backward else KernelKind.ATTENTION
    elements = batch * queries * size
    return kernels(
        kind, (batch, queries, queries, size), read=6 * elements, written=2 * elements,
        elements=elements, causal=causal,
    )  # fmt: skip


@pytest.fixture(scope="module")
def v6e() -> Chip:
    return Cluster.load("v6e").chip


def scalesim_chip(chip: Chip, dataflow: str, arrays: int = 1) -> Chip:
    """The chip as arrays of SCALE-Sim, with as good as unlimited bandwidth."""
    assert chip.systolic is not None
    count = Quantity(value=arrays, kind=SourceKind.ASSUMED, source="test")
    fast = Quantity(value=1e30, kind=SourceKind.ASSUMED, source="test")
    peak = Quantity(value=2 * 256 * 256 * 3.5e9, kind=SourceKind.ASSUMED, source="test")
    return chip.model_copy(
        update={
            "systolic": chip.systolic.model_copy(
                update={"arrays": count, "mode": "scalesim", "dataflow": dataflow}
            ),
            "memory_bandwidth_bytes_per_s": fast,
            "peak_flops_per_s": {"bf16": peak},
        }
    )


def test_a_square_product_is_near_the_recipes_microbenchmark(v6e: Chip) -> None:
    # tpu-recipes: 8192^3 in bf16 takes 1.329 ms on TPU v6e; no row of the fit is as large
    found = latency_ns(gemm(8192, 8192, 8192), v6e)[0]
    assert found == pytest.approx(1.329e6, rel=0.12)


def test_arrays_wait_for_what_is_fused_into_a_product(v6e: Chip) -> None:
    plain = gemm(8192, 8192, 8192)
    fused = replace(plain, flops=plain.flops + 3 * 8192 * 8192)
    constants = constants_of(v6e)
    operations = 3 * 8192 * 8192 * constants["gemm.fused_operations"]
    later = latency_ns(fused, v6e)[0] - latency_ns(plain, v6e)[0]
    assert later == pytest.approx(operations / 4096 / constants["vector.clock_ghz"])


def test_products_with_fused_work_are_near_what_the_compiler_schedules(v6e: Chip) -> None:
    operations = constants_of(v6e)["gemm.fused_operations"]
    assert operations == float(f"{np.median(tpu_rows.waiting_operations()):.2g}")
    errors = tpu_rows.fused_product_errors(operations)
    without = tpu_rows.fused_product_errors(0.0)
    assert np.median(np.abs(errors)) < 0.6 * np.median(np.abs(without))
    assert abs(np.mean(errors)) < 0.5 * abs(np.mean(without))


def test_what_is_fused_costs_nothing_where_memory_takes_longer(v6e: Chip) -> None:
    plain = gemm(16, 8192, 8192)
    fused = replace(plain, flops=plain.flops + 3 * 16 * 8192)
    assert latency_ns(fused, v6e)[0] == latency_ns(plain, v6e)[0]


def test_tiles_are_whole(v6e: Chip) -> None:
    whole, odd = (latency_ns(gemm(m, n, 4096), v6e)[0] for m, n in ((4112, 4352), (4097, 4097)))
    assert odd == pytest.approx(whole, rel=0.02)
    # a narrow result lies the other way around: as much as a product of few rows
    tall, wide = (latency_ns(g, v6e)[0] for g in (gemm(65536, 8, 8192), gemm(8, 65536, 8192)))
    assert tall == pytest.approx(wide, rel=1e-9)


def test_weights_that_were_fetched_before_are_not_read(v6e: Chip) -> None:
    weights = gemm(16, 4096, 4096)
    fetched = kernels(
        KernelKind.GEMM, (1, 16, 4096, 4096), flops=int(weights.flops[0]),
        read=2 * 16 * 4096, written=2 * 16 * 4096, elements=16 * 4096,
    )  # fmt: skip
    reading, ready = latency_ns(weights, v6e)[0], latency_ns(fetched, v6e)[0]
    assert ready < 33.6e6 / 1638 < reading  # the second is bound by HBM, the first is not


def test_types_without_arrays_of_their_own(v6e: Chip) -> None:
    bf16 = latency_ns(gemm(8192, 8192, 8192), v6e)[0]
    f8 = latency_ns(gemm(8192, 8192, 8192, dtype="f8E4M3FN", size=1), v6e)[0]
    i8 = latency_ns(gemm(8192, 8192, 8192, dtype="i8", size=1), v6e)[0]
    assert 0.9 * bf16 < f8 <= bf16  # v6e converts them
    assert i8 < 0.6 * bf16
    with pytest.raises(FlintError, match="no peak for f64") as caught:
        latency_ns(gemm(8, 8, 8, dtype="f64", size=8), v6e)
    assert caught.value.code == "FL705"


def test_a_gpu_has_no_arrays() -> None:
    with pytest.raises(FlintError, match="no systolic arrays") as caught:
        SystolicModel(Cluster.load("h100-dgx").chip).latency_ns(gemm(8, 8, 8))
    assert caught.value.code == "FL705"


def test_causal_attention_leaves_out_blocks_above_the_diagonal(v6e: Chip) -> None:
    full = latency_ns(attention(16384, causal=False), v6e)[0]
    half = latency_ns(attention(16384, causal=True), v6e)[0]
    # 136 of 16 x 16 blocks of 1,024; steps that are skipped cost a little
    assert half == pytest.approx(full * 136 / 256, rel=0.1)
    assert half > full * 136 / 256


def test_attention_is_as_long_as_the_schedules_of_the_tpu_compiler() -> None:
    off = []
    for row in tpu_rows.splash_schedules():
        found = tpu_rows.splash_cycles(row)
        off.append(found / float(row["cycles"]) - 1)
    assert len(off) >= 8
    assert np.abs(off).max() < 0.18
    assert np.abs(off).mean() < 0.08


def test_attention_on_v5p_against_published_times() -> None:
    """axlearn's table: 2 sequences of 2,048, heads of 128, host and transposes included."""
    chip = Cluster.load("v5p").chip

    def kernel_ms(heads: int, *, backward: bool) -> float:
        one = attention(2048, causal=True, backward=backward, batch=2 * heads)
        return float(latency_ns(one, chip)[0]) * 1e-6

    rows = tpu_rows.published_attention()
    few, many = rows[0], rows[-1]
    for column, backward in (("forward_ms", False), ("gradient_ms", True)):
        measured = float(many[column]) - float(few[column])
        heads = [int(r["heads"]) for r in (many, few)]
        found = kernel_ms(heads[0], backward=False) - kernel_ms(heads[1], backward=False)
        if backward:
            found += kernel_ms(heads[0], backward=True) - kernel_ms(heads[1], backward=True)
        # what XLA turns around the kernels is measured, too
        assert 0.6 * measured < found < measured


def test_small_heads_leave_rows_of_the_array_empty(v6e: Chip) -> None:
    v5p = Cluster.load("v5p").chip
    narrow, wide = (attention(16384, causal=True, size=size) for size in (128, 256))
    same = latency_ns(wide, v6e)[0] / latency_ns(narrow, v6e)[0]
    more = latency_ns(wide, v5p)[0] / latency_ns(narrow, v5p)[0]
    assert same == pytest.approx(1, rel=0.01)
    assert 1.5 < more < 2  # twice the products, as many scores


def test_decode_is_bound_by_the_keys(v6e: Chip) -> None:
    def decode(keys: int) -> float:
        kernel = kernels(
            KernelKind.ATTENTION, (32 * 64, 1, keys, 128), read=2 * 2 * 64 * 8 * keys * 128
        )
        return float(latency_ns(kernel, v6e)[0])

    assert decode(4096) > 1.5 * decode(2048) > 0


BYTES = 10**9


@pytest.mark.parametrize(
    "kind",
    [
        KernelKind.ELEMENTWISE,
        KernelKind.OPTIMIZER,
        KernelKind.COPY,
        KernelKind.REDUCTION,
        KernelKind.SOFTMAX,
        KernelKind.NORM,
        KernelKind.GATHER,
        KernelKind.SCATTER,
        KernelKind.SORT,
        KernelKind.RANDOM,
    ],
)
def test_kernels_of_bytes_take_the_time_of_their_bytes(v6e: Chip, kind: KernelKind) -> None:
    dims = (1, 4096, 1, BYTES // 2 // 4096)
    part = kernels(kind, dims, read=BYTES, written=BYTES, elements=BYTES // 2)
    roofline = 2 * BYTES / 1638
    assert roofline < latency_ns(part, v6e)[0]
    if kind not in (KernelKind.SORT, KernelKind.SCATTER, KernelKind.RANDOM):
        assert latency_ns(part, v6e)[0] < 1.5 * roofline


def test_arrays_in_vmem_are_faster_than_memory(v6e: Chip) -> None:
    elements = 10**7
    part = kernels(KernelKind.ELEMENTWISE, elements=elements)
    assert 0 < latency_ns(part, v6e)[0] < 4 * elements / 1638


def test_rows_by_index_cost_something_each(v6e: Chip) -> None:
    few, many = (
        kernels(KernelKind.GATHER, (1, rows, 1, 4), read=8 * rows, written=8 * rows)
        for rows in (1000, 100_000)
    )
    assert latency_ns(many, v6e)[0] > 20 * latency_ns(few, v6e)[0]


def test_unpriced_kernels_take_nothing(v6e: Chip) -> None:
    assert latency_ns(kernels(KernelKind.UNPRICED), v6e).tolist() == [0]


@pytest.mark.parametrize("dataflow", ["ws", "os", "is"])
def test_scalesim_mode_is_scalesim_exactly(v6e: Chip, dataflow: str) -> None:
    chip = scalesim_chip(v6e, dataflow)
    found = latency_ns(gemm(1000, 777, 513), chip)[0] * 3.5
    assert found == pytest.approx(int(cycles(1000, 777, 513, 256, 256, dataflow)), abs=1e-6)


def test_scalesim_mode_deals_tiles_to_arrays(v6e: Chip) -> None:
    one, two = (scalesim_chip(v6e, "ws", arrays) for arrays in (1, 2))
    work = gemm(4096, 4096, 4096)
    assert latency_ns(work, two)[0] == pytest.approx(latency_ns(work, one)[0] / 2, rel=1e-3)
    assert constants_note(two) == ""


def test_scalesim_mode_waits_for_what_its_buffers_read(v6e: Chip) -> None:
    assert v6e.systolic is not None
    limited = v6e.model_copy(
        update={"systolic": v6e.systolic.model_copy(update={"mode": "scalesim"})}
    )
    # m x k does not fit into half of a third of VMEM: it is read for each of 16 columns of tiles
    found = latency_ns(gemm(16384, 4096, 4096), limited)[0]
    assert found > 16 * 2 * 16384 * 4096 / 1638


def test_an_unknown_dataflow() -> None:
    with pytest.raises(ValueError, match="'rs' is not one of os, ws, is"):
        cycles(1, 1, 1, 8, 8, "rs")


def test_presets_have_every_constant_and_own_up_to_borrowing(v6e: Chip) -> None:
    for name in ("v4", "v5e", "v5p", "v6e"):
        assert constants_note(Cluster.load(name).chip) == ""
    assert v6e.systolic is not None
    bare = v6e.model_copy(
        update={"name": "T", "systolic": v6e.systolic.model_copy(update={"constants": {}})}
    )
    assert constants_note(bare).startswith("T has no measurements")
    work = gemm(512, 512, 512)
    assert latency_ns(work, bare).tolist() == latency_ns(work, v6e).tolist()


def test_constants_are_physical(v6e: Chip) -> None:
    assert v6e.systolic is not None
    values = v6e.systolic.constants
    assert set(values) >= {name for fit in tpu.fits() for name in fit.names}
    for name, quantity in values.items():
        if name.endswith("efficiency"):
            assert 0 < quantity.value <= 0.95, name
        if name.endswith("_ns"):
            assert quantity.value >= 0, name


def test_time_grows_with_kernels_and_no_faster(v6e: Chip) -> None:
    def priced(count: int) -> float:
        work = gemm(4096, 4096, 4096).select(np.zeros(count, np.int64))
        return cpu_seconds(lambda: latency_ns(work, v6e))

    # Ten times as many: what grows with the square takes 100 times as long.
    assert priced(100_000) < 60 * max(min(priced(10_000) for _ in range(3)), 0.001)


def test_held_out_products_of_layers_are_within_the_bars() -> None:
    rows = {(r.data, r.split): r for r in accuracy_tpu.tpu_rows_accuracy()}
    for name in ("all weights read", "o_proj's fetched before"):
        found = rows[f"llmservingsim layer products, {name}", "held out"]
        assert found.count > 1500
        assert found.mape <= 15 < found.roofline
        assert found.median <= 7


def test_held_out_attention_of_serving_kernels_is_within_the_bars() -> None:
    rows = {(r.data, r.split): r for r in accuracy_tpu.tpu_rows_accuracy()}
    for name, most in (("prefill", 12), ("decode", 4)):
        found = rows[f"llmservingsim attention, {name} (serving kernel)", "held out"]
        assert found.mape <= most < found.roofline


def test_rows_of_the_layers_are_those_of_the_model() -> None:
    part = tpu_rows.gemm_layer("down_proj")
    assert part.kernels.dims[0].tolist()[2:] == [4096, 14336]
    assert len(tpu_rows.attention_rows(decode=True)) > 2000
    assert 500 < len(tpu_rows.embedding()) < 700
