"""Pallas kernels that declare no cost: counted from their bodies, grids and blocks, by hand here."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import flint
from flint.backends.cost.chips.kernel_table import Masks, masked_flops
from flint.ir.program import Flag, Row
from flint.tracing import Trace
from tests.auto_mesh import auto_mesh

pl = pytest.importorskip("jax.experimental.pallas")
gpu_attention = pytest.importorskip("jax.experimental.pallas.ops.gpu.attention")

BF16 = jnp.bfloat16
B, T, H, D = 2, 1024, 8, 64
BLOCK = 128
#: Query and key positions that causal attention calculates in whole blocks of 128.
BLOCKS = sum(range(1, T // BLOCK + 1)) * BLOCK * BLOCK


def array(*shape: int, dtype: Any = BF16) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)


def kernels(trace: Trace) -> dict[str, Row]:
    rows = [trace.program.row(i) for i in range(len(trace.program))]
    found = [r for r in rows if r.opcode.startswith("custom_call.")]
    assert not any(r.flags & Flag.UNPRICED for r in found)
    return {r.opcode.removeprefix("custom_call.").removeprefix("pallas."): r for r in found}


def traced(fn: Any, *args: Any, platform: str = "cuda", devices: int = 1) -> dict[str, Row]:
    return kernels(flint.trace(fn, {"data": devices}, *args, platform=platform))


@pytest.mark.parametrize("causal", [False, True])
def test_attention_on_gpus(causal: bool) -> None:
    def loss(q: Any, k: Any, v: Any) -> Any:
        return gpu_attention.mha(q, k, v, None, causal=causal).astype(jnp.float32).sum()

    found = traced(jax.grad(loss, argnums=(0, 1, 2)), *[array(B, T, H, D)] * 3)
    scores = B * H * (BLOCKS if causal else T * T)
    assert found["mha_forward"].flops == 2 * 2 * scores * D
    # an exponential of each score, for each row and block of keys one that rescales, for each row the
    # logarithm of its sum, for each step that of e
    logarithms = B * H * (T + T // BLOCK)
    rest = found["mha_forward"].dims[1] - scores - scores // BLOCK
    assert rest in (0, logarithms)  # JAX 0.12 has none of the second kind
    # dk, dv and their scores and dp: 4 products; scores, dp and dq: 3, in blocks of 32
    small = 32
    narrow = B * H * (sum(range(1, T // small + 1)) * small * small if causal else T * T)
    assert found["mha_backward"].flops == 2 * (4 + 3) * narrow * D


def test_decoding_on_gpus() -> None:
    decode = pytest.importorskip("jax.experimental.pallas.ops.gpu.decode_attention")
    found = traced(decode.mqa, array(4, 16, D), array(4, 2048, D), array(4, 2048, D))
    assert found["mha_forward"].flops == 4 * 4 * 16 * 2048 * D
    grouped = traced(decode.gqa, array(4, 32, D), array(4, 2048, 8, D), array(4, 2048, 8, D))
    # 4 query heads for each key head, in blocks of 16: three of four rows are padding
    assert grouped["mha_forward"].flops == 4 * 4 * (8 * 16) * 2048 * D


def test_paged_attention_on_gpus_as_if_pages_were_full() -> None:
    paged = pytest.importorskip("jax.experimental.pallas.ops.gpu.paged_attention")
    pages = array(8, 256, 16, D)
    table, lengths = array(4, 64, dtype=jnp.int32), array(4, dtype=jnp.int32)
    found = traced(
        lambda q, k, v, t, n: paged.paged_attention(q, k, v, t, n), array(4, 128, D), pages, pages, table, lengths
    )  # fmt: skip
    ((_, row),) = found.items()
    assert row.flops == 4 * 4 * 128 * (64 * 16) * D


@pytest.mark.parametrize("devices", [1, 2])
def test_paged_attention_on_tpus_as_if_pages_were_full(devices: int) -> None:
    paged = pytest.importorskip("jax.experimental.pallas.ops.tpu.paged_attention")
    pages, size = array(8, 256, 16, 128), 128
    table, lengths = array(4, 64, dtype=jnp.int32), array(4, dtype=jnp.int32)
    found = traced(
        lambda q, k, v, n, t: paged.paged_attention(q, k, v, n, t, pages_per_compute_block=8),
        *(array(4, 64, size), pages, pages, lengths, table),
        platform="tpu",
        devices=devices,
    )
    (row,) = [r for name, r in found.items() if "paged_flash_attention" in name]
    seen = 64 * 16
    assert row.flops == 4 * 4 * 64 * seen * size
    cached = 2 * 4 * 8 * seen * size * 2  # keys and values of 4 sequences and 8 heads
    assert row.operand_bytes == cached + 4 * 64 * size * 2


def test_ragged_paged_attention() -> None:
    ragged = pytest.importorskip("jax.experimental.pallas.ops.tpu.ragged_paged_attention")

    def call(q: Any, kv: Any, n: Any, t: Any, c: Any, s: Any) -> Any:
        return ragged.ragged_paged_attention(
            q, kv, n, t, c, s, num_kv_pages_per_block=8, num_queries_per_block=32
        )

    integers = [array(*s, dtype=jnp.int32) for s in ((8,), (8, 64), (9,), (1,))]
    found = traced(call, array(256, 32, 128), array(512, 16, 16, 128), *integers, platform="tpu")
    row = found["ragged_paged_attention_kernel"]
    assert row.flops == 4 * 256 * 32 * (64 * 16) * 128
    assert row.operand_bytes == 8 * 64 * (16 * 16 * 128 * 2) + 256 * 32 * 128 * 2


def test_grouped_products_of_megablox() -> None:
    megablox = pytest.importorskip("jax.experimental.pallas.ops.tpu.megablox")
    sizes = array(8, dtype=jnp.int32)
    found = traced(
        lambda a, b, g: megablox.gmm(a, b, g),
        *(array(2048, 1024), array(8, 1024, 512), sizes),
        platform="tpu",
    )
    assert sum(r.flops for r in found.values()) == 2 * 2048 * 1024 * 512


def test_blocks_are_copied_when_their_index_changes() -> None:
    matmul = pytest.importorskip("jax.experimental.pallas.ops.tpu.matmul")
    m, k, n = 2048, 1024, 4096
    found = traced(
        lambda a, b: matmul.matmul(a, b, block_shape=(512, 512), block_k=256),
        *(array(m, k), array(k, n)),
        platform="tpu",
    )
    ((_, row),) = found.items()
    assert row.flops == 2 * m * k * n
    # 4 x 8 blocks of results, and both operands' blocks at each of 4 steps along k
    copied = 4 * 8 * 4 * 2 * (512 * 256 * 2)
    assert (row.operand_bytes, row.result_bytes) == (copied, m * n * 2)


def branching(x: Any, o: Any) -> None:
    @pl.when(pl.program_id(0) < 3)
    def _() -> None:
        o[...] = jnp.dot(x[...], x[...], preferred_element_type=jnp.float32)

    @pl.when(x[0, 0] > 0)
    def _() -> None:
        o[...] += jnp.dot(x[...], x[...], preferred_element_type=jnp.float32)


def test_branches_on_the_grid_are_exact_and_those_on_data_count() -> None:
    def call(x: Any) -> Any:
        block = pl.BlockSpec((128, 128), lambda i: (i, 0))
        return pl.pallas_call(
            branching, grid=(8,), in_specs=[block], out_specs=block, out_shape=x, name="branches"
        )(x)

    row = traced(call, array(1024, 128, dtype=jnp.float32))["branches"]
    assert row.flops == (3 + 8) * 2 * 128**3


def test_what_a_program_says_goes_first() -> None:
    flint.cost_of("pallas.said_here")(lambda _: flint.CostEstimate(flops=5, bytes_accessed=1 << 20))

    def call(x: Any) -> Any:
        copy = lambda x, o: o.__setitem__(..., x[...])
        return pl.pallas_call(copy, out_shape=x, name="said_here")(x)

    assert traced(call, array(128, 128))["said_here"].flops == 5


def test_much_arithmetic_by_elements_is_not_free() -> None:
    def kernel(x: Any, o: Any) -> None:
        o[...] = jax.lax.fori_loop(0, 500, lambda _, c: c * x[...] + 1, x[...])

    def call(x: Any) -> Any:
        return pl.pallas_call(kernel, out_shape=x, name="spins")(x)

    trace = flint.trace(call, {"data": 1}, array(128, 128))
    rows = [trace.program.row(i) for i in range(len(trace.program))]
    assert [r.opcode for r in rows if r.flags & Flag.UNPRICED] == ["custom_call.pallas.spins"]


# splash attention -----------------------------------------------------------------------------

LONG, SIZE, SIDE = 2048, 128, 512


def splash(*masks: Any) -> Any:
    """Splash attention of as many heads as masks, in blocks of 512."""
    kernel = pytest.importorskip("jax.experimental.pallas.ops.tpu.splash_attention")
    names = ("block_q", "block_kv", "block_kv_compute", "block_q_dkv", "block_kv_dkv")
    names += ("block_kv_dkv_compute", "block_q_dq", "block_kv_dq")
    return kernel.make_splash_mha(
        kernel.MultiHeadMask([getattr(kernel, name)((LONG, LONG), *more) for name, *more in masks]),
        head_shards=1,
        q_seq_shards=1,
        block_sizes=kernel.BlockSizes(**dict.fromkeys(names, SIDE)),
    )


LOCAL = ("LocalMask", (SIDE, 0), 0)
#: Scores in blocks, of 4 x 4 for each head: of the diagonal and the blocks before it.
BAND = 7 * SIDE * SIDE


@pytest.mark.parametrize(
    ("masks", "scores", "shown"),
    [
        ([("CausalMask",)] * 4, 4 * LONG * LONG // 2, "[causal]"),
        ([("FullMask",)] * 4, 4 * LONG * LONG, ""),
        ([LOCAL] * 4, 4 * BAND, "[7 of 16 blocks]"),
        ([LOCAL] * 3 + [("CausalMask",)], 3 * BAND + 10 * SIDE * SIDE, "[31 of 64 blocks]"),
    ],
)
def test_splash_counts_the_blocks_of_its_mask(masks: Any, scores: int, shown: str) -> None:
    attention = jax.vmap(splash(*masks))

    def layers(q: Any, k: Any, v: Any) -> Any:
        def layer(x: Any, _: Any) -> Any:
            return jax.checkpoint(attention)(x, k, v), None

        return jax.lax.scan(layer, q, None, length=3)[0].astype(jnp.float32).sum()

    trace = flint.trace(
        jax.grad(layers), {"data": 1}, *[array(2, 4, LONG, SIZE)] * 3, platform="tpu"
    )
    found = [trace.program.row(i) for i in range(len(trace.program))]
    kernels = [r for r in found if "attention" in r.opcode]
    assert len(kernels) >= 3 and all(r.opcode.endswith(shown or "attention") for r in kernels[:1])
    assert {r.mask for r in kernels} == {kernels[0].mask}
    forward = kernels[0]
    assert forward.flops == 2 * 2 * (2 * 4) * LONG * LONG * SIZE
    masks_of_rows = Masks(np.array([forward.mask < 0]), np.array([max(forward.mask, 0)]))
    left = masked_flops(np.array([forward.flops]), np.array([forward.dims]), masks_of_rows)
    expected = 2 * 2 * 2 * scores * SIZE
    assert expected <= int(left[0]) < expected * 1.002  # in whole keys


# jax.nn.scaled_matmul -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left", "right", "m", "n", "k", "reduced"),
    [
        (P(None, "data"), P(None, "model"), 32, 128, 512, 0),
        (P(None, "data", "model"), P(None, None, "model"), 32, 512, 128, 32 * 512 * 4),
    ],
)
def test_scaled_products(left: P, right: P, m: int, n: int, k: int, reduced: int) -> None:
    mesh = auto_mesh((8, 4), ("data", "model"))

    def shard(shape: tuple[int, ...], dtype: Any, spec: P) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))

    fp8, scale = jnp.float8_e4m3fn, jnp.float8_e8m0fnu
    trace = flint.trace(
        lambda a, b, sa, sb: jax.nn.scaled_matmul(a, b, sa, sb, preferred_element_type=jnp.float32),
        mesh,
        *(shard((1, 256, 512), fp8, left), shard((1, 512, 512), fp8, right)),
        *(shard((1, 256, 16), scale, left), shard((1, 512, 16), scale, right)),
    )
    row = kernels(trace)["__op$block_scaled_dot"]
    assert row.flops == 2 * m * n * k and row.product == "float8_e4m3fn:block"
    rows = [trace.program.row(i) for i in range(len(trace.program))]
    assert sum(r.comm_bytes for r in rows) == reduced


def test_blocks_by_element_and_small_types_of_tpus() -> None:
    """Index maps of `pl.Element` give elements, and two of int4 are a byte."""

    def copy(x: Any, y: Any) -> None:
        y[...] = x[...]

    def product(x: Any, w: Any, y: Any) -> None:
        y[...] = jnp.dot(x[...], w[...].astype(BF16), preferred_element_type=jnp.float32)

    def by_element(x: Any) -> Any:
        size, out = pl.Element(128), array(1024, 128)
        spec = pl.BlockSpec((size, size), lambda i: (i * 64, 0))
        to = pl.BlockSpec((128, 128), lambda i: (i, 0))
        return pl.pallas_call(copy, grid=(8,), in_specs=[spec], out_specs=to, out_shape=out)(x)

    def small(x: Any, w: Any) -> Any:
        return pl.pallas_call(product, out_shape=array(256, 512, dtype=jnp.float32))(x, w)

    moved = traced(by_element, array(1024, 128), platform="tpu")["copy"]
    assert moved.operand_bytes == 8 * 128 * 128 * 2
    weights = array(512, 512, dtype=jnp.int4)
    found = traced(small, array(256, 512), weights, platform="tpu")["product"]
    assert found.operand_bytes == 256 * 512 * 2 + 512 * 512 // 2
