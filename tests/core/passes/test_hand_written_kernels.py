"""Kernels written by hand (Pallas): what a call says of its work, and what it then costs."""

from __future__ import annotations

from typing import Any

import pytest

import flint
from flint.backends.cost.chips.kernel_table import kernels_of
from flint.backends.cost.chips.kernels import KernelKind
from flint.backends.cost.chips.model import latency_ns
from flint.cluster.models import Cluster
from flint.errors import FlintError
from flint.ir.mesh import Mesh
from flint.ir.program import Flag, Program, Row
from flint.passes.partition.xla_child import parse_text
from flint.passes.work.declared import ArrayType, KernelCall
from flint.passes.work.hand_written import work_of_call, work_of_kernel
from tests.hlo_programs import hlo_to_program
from tests.program_rows import ProgramBuilder

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")
pl = pytest.importorskip("jax.experimental.pallas")
P = jax.sharding.PartitionSpec

M, N, K = 1024, 512, 256


def product_kernel(x: Any, w: Any, o: Any) -> None:
    o[...] = jnp.dot(x[...], w[...], preferred_element_type=jnp.float32).astype(o.dtype)


def product(x: Any, w: Any, estimated: bool = True) -> Any:
    m, k, n = *x.shape, w.shape[1]
    moved = 2 * (m * k + k * n + m * n)
    estimate = pl.CostEstimate(flops=2 * m * n * k, transcendentals=7, bytes_accessed=moved + 64)
    return pl.pallas_call(
        product_kernel,
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        grid=(m // 128,),
        in_specs=[pl.BlockSpec((128, k), lambda i: (i, 0)), pl.BlockSpec((k, n), lambda i: (0, 0))],
        out_specs=pl.BlockSpec((128, n), lambda i: (i, 0)),
        cost_estimate=estimate if estimated else None,
        name="my_product",
    )(x, w)


def arrays(*shapes: tuple[int, ...], spec: Any = None) -> list[Any]:
    return [jax.ShapeDtypeStruct(s, jnp.bfloat16, sharding=spec) for s in shapes]


def calls(program: Program) -> list[Row]:
    rows = map(program.row, range(len(program)))
    return [r for r in rows if r.opcode.startswith("custom_call.")]


@pytest.mark.parametrize("platform", ["tpu", "cuda"])
def test_a_kernel_costs_what_it_declares(platform: str) -> None:
    trace = flint.trace(product, {"data": 1}, *arrays((M, K), (K, N)), platform=platform)
    (call,) = calls(trace.workload.programs[0])
    assert call.opcode == "custom_call.pallas.my_product"
    assert (call.flops, call.dims) == (2 * M * N * K, (1, 7, 1, 1))
    assert call.result_bytes == 2 * M * N
    assert call.operand_bytes == 2 * (M * K + K * N) + 64
    assert trace.estimate("v6e").model_flops == 2 * M * N * K
    assert trace.estimate("h100-dgx").step_time_ns > 1500  # no less than a launch


def test_a_kernel_inside_shard_map_is_that_of_one_device() -> None:
    body = jax.shard_map(product, in_specs=(P("data"), P()), out_specs=P("data"), check_vma=False)
    trace = flint.trace(body, {"data": 4}, *arrays((4 * M, K), (K, N)), platform="tpu")
    (call,) = calls(trace.workload.programs[0])
    assert (call.flops, call.shape) == (2 * M * N * K, (M, N))


def until_data_say_so(x: Any) -> Any:
    def kernel(x: Any, o: Any) -> None:
        turns = x[0, 0].astype(jnp.int32)
        o[...] = jax.lax.fori_loop(
            0, turns, lambda _, c: jnp.dot(c, x[...]).astype(c.dtype), x[...]
        )

    return pl.pallas_call(
        kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), name="my_product"
    )(x)


def test_a_kernel_that_cannot_be_counted_stops_and_the_message_says_what_to_do() -> None:
    trace = flint.trace(until_data_say_so, {"data": 1}, *arrays((M, M)), platform="cuda")
    with pytest.raises(FlintError, match="custom_call.pallas.my_product x1") as error:
        trace.estimate("v6e")
    assert error.value.code == "FL704" and "cost_estimate=" in (error.value.help or "")
    assert trace.estimate("v6e", unpriced_is_zero=True).unpriced


def test_a_compiled_file_says_the_same() -> None:
    lowered = jax.jit(product).trace(*arrays((M, K), (K, N))).lower(lowering_platforms=("tpu",))
    proto = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
    (call,) = calls(hlo_to_program(proto, Mesh(("data",), (1,))))
    assert call.opcode.startswith("custom_call.pallas.")
    assert (call.flops, call.dims) == (2 * M * N * K, (1, 7, 1, 1))
    assert call.operand_bytes == 2 * (M * K + K * N) + 64


LIBRARY = """HloModule m
ENTRY e {
  x = bf16[128,64] parameter(0)
  y = bf16[64,32] parameter(1)
  ROOT d = bf16[128,32] custom-call(x, y), custom_call_target="__cublas$gemm",
    backend_config={"gemm_backend_config": {"dot_dimension_numbers":
      {"lhs_contracting_dimensions": ["1"], "rhs_contracting_dimensions": ["0"]}}}
}
"""


def test_a_product_by_a_library_is_a_product() -> None:
    program = hlo_to_program(parse_text(LIBRARY.encode()), Mesh(("data",), (1,)))
    kernels, _ = kernels_of(program)
    assert kernels.kind.tolist() == [KernelKind.GEMM]
    assert kernels.dims.tolist() == [[1, 128, 32, 64]]


# attention --------------------------------------------------------------------------------------

BATCH, HEADS, LENGTH, SIZE = 4, 4, 1024, 128


def splash(mask: str, *, fused: bool = True) -> Any:
    """The gradient of splash attention, batch and heads sharded."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    two = {} if fused else {"block_q_dq": 512, "block_kv_dq": 512}
    sizes = kernels.BlockSizes(
        block_q=512, block_kv=512, block_kv_compute=512, block_q_dkv=512, block_kv_dkv=512,
        block_kv_dkv_compute=512, use_fused_bwd_kernel=fused, **two,
    )  # fmt: skip
    heads = [getattr(masks, mask)((LENGTH, LENGTH)) for _ in range(HEADS // 2)]
    kernel = kernels.make_splash_mha_single_device(
        mask=masks.MultiHeadMask(heads), block_sizes=sizes
    )
    spec = P("data", "model")
    attend = jax.shard_map(jax.vmap(kernel), in_specs=(spec,) * 3, out_specs=spec, check_vma=False)
    return jax.grad(lambda *qkv: attend(*qkv).astype(jnp.float32).sum(), argnums=(0, 1, 2))


def attention_calls(function: Any, platform: str) -> list[Row]:
    shapes = [(BATCH, HEADS, LENGTH, SIZE)] * 3
    given = arrays(*shapes, spec=P("data", "model"))
    trace = flint.trace(function, {"data": 2, "model": 2}, *given, platform=platform)
    assert trace.estimate("v6e").step_time_ns > 0
    return calls(trace.workload.programs[0])


@pytest.mark.parametrize("platform", ["tpu", "cuda"])
def test_splash_attention_is_attention(platform: str) -> None:
    pytest.importorskip("jax.experimental.pallas.ops.tpu.splash_attention")
    forward, backward = attention_calls(splash("CausalMask"), platform)
    assert forward.opcode == "custom_call.pallas_attention[causal]"
    assert backward.opcode == "custom_call.pallas_attention_backward[causal]"
    local = (BATCH // 2 * HEADS // 2, LENGTH, LENGTH, SIZE)
    one = 2 * local[0] * LENGTH * LENGTH * SIZE
    assert (forward.dims, forward.flops) == (local, 2 * one)
    assert (backward.dims, backward.flops) == (local, 5 * one)


def test_splash_attention_without_a_mask_is_not_causal() -> None:
    pytest.importorskip("jax.experimental.pallas.ops.tpu.splash_attention")
    found = attention_calls(splash("FullMask"), "tpu")
    assert [c.opcode for c in found] == [
        "custom_call.pallas_attention",
        "custom_call.pallas_attention_backward",
    ]


def test_a_backward_pass_in_two_kernels_has_seven_products() -> None:
    pytest.importorskip("jax.experimental.pallas.ops.tpu.splash_attention")
    forward, *backward = attention_calls(splash("CausalMask", fused=False), "tpu")
    assert sorted(2 * c.flops // forward.flops for c in backward) == [3, 4]


QKV = (ArrayType((8, 1024, 128), "bfloat16", 2 << 20),) * 3


@pytest.mark.parametrize(
    ("name", "called"),
    [
        ("_flash_attention_kernel", "custom_call.pallas_attention"),
        ("_flash_attention_dq_kernel", "custom_call.pallas_attention_backward"),
        ("splash_mqa_fwd_segmented_no_residuals", "custom_call.pallas_attention"),
        ("my_flash_attention", "custom_call.pallas.my_flash_attention"),
        ("odd name", "custom_call.pallas.odd_name"),
        ("", "custom_call.pallas.kernel"),
    ],
)
def test_kernels_by_name(name: str, called: str) -> None:
    assert work_of_kernel(name, KernelCall(QKV, QKV[:1]), None).called == called


def test_an_attention_name_on_other_arrays_is_not_believed() -> None:
    work = work_of_kernel("_flash_attention_kernel", KernelCall(QKV[:1], QKV[:1]), {"flops": 5})
    assert (work.flops, work.called) == (5, "custom_call.pallas._flash_attention_kernel")


@pytest.mark.parametrize("scope", ["jit(step)/splash_mha_fwd_residuals/pallas_call", ""])
def test_a_compiled_file_has_the_name_in_a_scope_or_in_the_call(scope: str) -> None:
    text = (
        "HloModule m\nENTRY e {\n"
        + "".join(f"  p{i} = bf16[2,256,128] parameter({i})\n" for i in range(3))
        + "  ROOT splash_mha_fwd_residuals.1 = bf16[2,256,128] custom-call(p0, p1, p2), "
        + f'custom_call_target="tpu_custom_call", metadata={{op_name="{scope}"}}\n}}\n'
    )
    (call,) = calls(hlo_to_program(parse_text(text.encode()), Mesh(("data",), (1,))))
    assert call.opcode == "custom_call.pallas_attention"
    assert call.dims == (2, 256, 256, 128)


@pytest.mark.parametrize(
    "estimate",
    [
        None,
        {},
        {"bytes_accessed": 8},
        {"flops": None},
        {"flops": -1},
        {"flops": 1, "remote_bytes_transferred": 8},
    ],
)
def test_what_is_not_known_is_unpriced(estimate: dict[str, Any] | None) -> None:
    assert work_of_call("mine", KernelCall((), QKV), estimate).unpriced


# prices -----------------------------------------------------------------------------------------


def one_call(
    flops: int, transcendentals: int, operand_bytes: int, *, unpriced: bool = False
) -> Program:
    b = ProgramBuilder(Mesh(("data",), (2,)))
    table = b.add("parameter", dtype="int8", result_bytes=64)
    x = b.add("parameter", dtype="bfloat16", result_bytes=1 << 20)
    b.add(
        "custom_call.pallas.softmax", deps=[table, x], dtype="float32", result_bytes=4, flops=flops,
        dims=(1, transcendentals, 1, 1), operand_bytes=operand_bytes, flags=Flag.UNPRICED if unpriced else Flag(0),
    )  # fmt: skip
    return b.build()


def price_of(*work: int) -> float:
    kernels, _ = kernels_of(one_call(*work))
    own = kernels.select(kernels.kind == KernelKind.DECLARED)
    assert len(own) == 1 and own.dtypes[own.dtype[0]] == "bf16"
    return float(latency_ns(own, Cluster.load("v6e").chip)[0])


def test_the_longest_of_three_limits_decides() -> None:
    least = price_of(1, 1, 4)
    assert price_of(918_000_000_000, 1, 4) - least == pytest.approx(1e6 / 0.9036, rel=1e-3)
    assert price_of(1, 1024 * 1_750_000, 4) - least == pytest.approx(1e6, rel=1e-3)
    assert price_of(1, 1, 1_638_000_000) - least == pytest.approx(1e6 / 0.8925, rel=1e-3)
    assert price_of(918_000_000_000, 1024, 1_000_000) == price_of(918_000_000_000, 1, 4)


def test_the_flag_says_that_nothing_is_known() -> None:
    kernels, _ = kernels_of(one_call(0, 1, 4, unpriced=True))
    assert KernelKind.UNPRICED in kernels.kind.tolist()
