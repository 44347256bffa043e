"""Model and executed flops of steps, against counting products by hand; and the peak of a type."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from flint.backends.cost.chips.kernel_table import kernels_of
from flint.backends.cost.chips.kernels import KernelKind
from flint.backends.cost.chips.model import peak_type, tf32_kinds
from flint.backends.cost.estimate_numbers import (
    ProductFlops,
    executed_flops,
    main_type_and_peak,
    needed_flops,
)
from flint.cluster.models import Cluster
from flint.frontends.model_file import Target, importable, load_step
from flint.ir.mesh import Mesh
from flint.ir.program import Kind, Phase, Program, RegionKind
from flint.ir.workload import Workload
from flint.tracing import Trace, trace_script, trace_step
from tests.program_rows import ProgramBuilder

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
MESH = Mesh(("data", "model"), (4, 2))


def traced(file: str, mesh: str, options: Sequence[str]) -> Trace:
    settings = dict(option.split("=") for option in options)
    with importable(EXAMPLES):
        loaded = load_step(Target.parse(str(EXAMPLES / file)), mesh, settings=settings)
        return trace_step(loaded.step, loaded.mesh, name=loaded.name)


@pytest.mark.parametrize("remat", ["none", "full"])
def test_a_llama_step_needs_6_n_d_and_half_of_12_l_s_s_d(remat: str) -> None:
    """Weights in products, each six times a token; scores and their use, each six times a layer.

    Of the scores a model needs the half that its mask leaves. Recomputing a layer repeats its
    forward products but the last one, which nothing reads again.
    """
    layers, seq, sequences = 2, 128, 4
    dim, heads, kv_heads, head, ffn, vocab = 4096, 32, 8, 128, 14_336, 128_256
    attention_weights = 2 * dim * heads * head + 2 * dim * kv_heads * head
    weights = layers * (attention_weights + 3 * dim * ffn) + dim * vocab
    tokens = sequences * seq
    squares = sequences * layers * seq**2 * heads * head
    again = 2 * tokens * layers * (attention_weights + 2 * dim * ffn) + 4 * squares

    options = [f"num_layers={layers}", f"seq={seq}", f"remat={remat}"]
    trace = traced("llama_jax.py", "4x2", options)
    found = trace.estimate("h100-dgx")
    assert found.model_flops == 6 * weights * tokens + 6 * squares
    assert found.repeated_flops == (again if remat == "full" else 0)
    assert found.executed_flops - found.repeated_flops == 6 * weights * tokens + 12 * squares
    flash = trace.estimate("h100-dgx", profile="xla-gpu+flash")
    assert flash.model_flops == found.model_flops
    assert flash.executed_flops - flash.repeated_flops == found.model_flops
    halves = (again - 4 * squares) + 3 * squares if remat == "full" else squares
    assert flash.repeated_flops == halves


def product_flops(program: Program) -> ProductFlops:
    """Of a program whose rows are kernels already."""
    return ProductFlops(needed_flops(program), *executed_flops(program))


def flash(forward: str, backward: str) -> ProductFlops:
    """A forward and a backward pass of attention, values half as wide as queries and keys."""
    heads, seq, size, value = 4, 64, 32, 16
    whole = [2 * heads * seq * seq * s for s in (size, value)]
    b = ProgramBuilder(MESH)
    dims = (heads, seq, seq, size)
    b.add(forward, flops=sum(whole), dims=dims, phase=Phase.FORWARD)
    b.begin_region(RegionKind.LOOP, 3)
    b.add(backward, flops=3 * whole[0] + 2 * whole[1], dims=dims, phase=Phase.BACKWARD)
    b.end_region()
    scores, weighted = (w // (2 if "[causal]" in forward else 1) for w in whole)
    program = b.build()
    found = product_flops(program)
    assert found.executed == scores + weighted + 3 * (3 * scores + 2 * weighted)
    assert found.model == scores + weighted + 3 * (2 * scores + 2 * weighted)
    return found


@pytest.mark.parametrize(
    ("forward", "backward"),
    [
        ("custom_call.__cudnn$fmhaSoftmax", "custom_call.__cudnn$fmhaSoftmaxBackward"),
        ("custom_call.flint.attention[causal]", "custom_call.flint.attention_backward[causal]"),
        (
            "aten._scaled_dot_product_flash_attention[causal]",
            "aten._scaled_dot_product_flash_attention_backward[causal]",
        ),
    ],
)
def test_a_model_needs_four_of_the_five_products_of_flash_attention(
    forward: str, backward: str
) -> None:
    flash(forward, backward)


def test_a_backward_pass_in_two_kernels_is_needed_as_if_it_were_one() -> None:
    heads, seq, size = 4, 64, 32
    one = 2 * heads * seq * seq * size
    half = one // 2
    b = ProgramBuilder(MESH)
    for products in (4, 3):
        b.add("custom_call.pallas_attention_backward[causal]", flops=products * one,
              dims=(heads, seq, seq, size), phase=Phase.BACKWARD)  # fmt: skip
    program = b.build()
    assert product_flops(program) == ProductFlops(4 * half, 7 * half, 3 * half)


def test_attention_costs_a_model_the_same_written_out_or_as_a_call() -> None:
    """Both by JAX itself: only the scores that the call recomputes differ, and count as executed."""
    import jax
    import jax.numpy as jnp

    import flint

    batch, seq, heads, size = 8, 128, 4, 64

    def loss(q: jax.Array, k: jax.Array, v: jax.Array, implementation: str) -> jax.Array:
        found = jax.nn.dot_product_attention(q, k, v, implementation=implementation)
        return jnp.sum(found**2)

    def found(implementation: str) -> ProductFlops:
        shape = jax.ShapeDtypeStruct((batch, seq, heads, size), jnp.bfloat16)
        gradients = jax.grad(loss, argnums=(0, 1, 2))
        step = flint.trace(lambda *a: gradients(*a, implementation), "2", shape, shape, shape)
        return product_flops(step.program)

    product = 2 * batch * heads * seq * seq * size
    assert found("xla") == ProductFlops(6 * product, 6 * product, 0)
    assert found("cudnn") == ProductFlops(6 * product, 7 * product, product)


@pytest.mark.parametrize("shape", [(1, 64, 1, 32), (1, 1, 64, 32), (1, 1, 1, 32), (8, 1, 1, 32)])
def test_products_with_vectors_are_products(shape: tuple[int, int, int, int]) -> None:
    """A reduction has the same dims as a matrix times a vector; its opcode tells them apart."""
    flops = 2 * math.prod(shape)
    b = ProgramBuilder(MESH)
    for phase in (Phase.FORWARD, Phase.REMAT):
        b.add("stablehlo.dot_general", flops=flops, dims=shape, phase=phase)
        b.add("stablehlo.reduce", flops=64 * 32, dims=(1, 64, 1, 32), phase=phase)
    program = b.build()
    assert product_flops(program) == ProductFlops(flops, 2 * flops, flops)


def test_decoding_one_sequence_counts_its_products_with_vectors() -> None:
    """Each weight once for the token, and for each position of the cache scores and their use."""
    import jax
    import jax.numpy as jnp

    import flint

    dim, cache = 64, 48

    def step(w: jax.Array, keys: jax.Array, values: jax.Array, x: jax.Array) -> jax.Array:
        query = w @ x
        return values.T @ jax.nn.softmax(keys @ query)

    shapes = ((dim, dim), (cache, dim), (cache, dim), (dim,))
    args = [jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in shapes]
    found = flint.trace(step, "1", *args).estimate("h100-dgx")
    assert found.model_flops == found.executed_flops == 2 * dim * dim + 4 * cache * dim
    assert found.mfu > 0


def test_utilisation_beyond_64_bits_is_exact() -> None:
    b = ProgramBuilder(MESH)
    large = 2**61 + 3
    for phase in (Phase.FORWARD, Phase.REMAT):
        b.begin_region(RegionKind.LOOP, 2**40)
        b.add("stablehlo.dot_general", flops=large, dims=(2**20,) * 4, phase=phase)
        b.end_region()
    once, program = large * 2**40, b.build()
    assert product_flops(program) == ProductFlops(once, 2 * once, once)


def test_utilisation_is_of_what_products_are_calculated_in() -> None:
    """bf16 operands with an f32 result are no f32 product."""
    b = ProgramBuilder(MESH)
    x = b.add("x", Kind.PARAMETER, result_bytes=8192, dtype="bfloat16")
    b.add("stablehlo.dot_general", deps=[x], dims=(1, 64, 64, 64), flops=2 * 64**3, dtype="float32",
          result_bytes=16384, operand_bytes=16384)  # fmt: skip
    found = main_type_and_peak(Workload.single(b.build()), Cluster.load("h100-dgx"))
    assert found == ("bf16", 989.4e12)


@pytest.mark.long
def test_resnet_50_of_pytorch_is_in_tf32_but_for_its_classifier() -> None:
    pytest.importorskip("torch")
    options = ("--batch", "2", "--image", "32")
    trace = trace_script(EXAMPLES / "torch_resnet50_ddp.py", "data=2", options)
    cluster = Cluster.load("h100-dgx")
    for profile in ("eager", "inductor"):
        kernels, _ = kernels_of(trace.program, tf32=tf32_kinds(profile, cluster.chip))
        found = Counter(
            (KernelKind(kind).name, peak_type(cluster.chip, kernels.dtypes[dtype])[0])
            for kind, dtype in zip(kernels.kind, kernels.dtype, strict=True)
            if kind <= KernelKind.ATTENTION_BACKWARD
        )
        assert found == {("CONVOLUTION", "tf32"): 2 * 53, ("GEMM", "f32"): 3}
        estimate = trace.estimate(cluster, profile=profile)
        assert (estimate.dtype, estimate.peak_flops_per_s) == ("tf32", 494.7e12)


def test_types_that_are_faster_than_most_raise_the_peak() -> None:
    """Two products in bf16 and one in fp8: at best the time of all, one after the other."""
    b = ProgramBuilder(MESH)
    for dtype in ("bfloat16", "bfloat16", "float8_e4m3fn"):
        x = b.add("x", Kind.PARAMETER, result_bytes=2**26, dtype=dtype, shape=(2**13, 2**13))
        b.add("stablehlo.dot_general", deps=[x], dims=(1, 2**13, 2**13, 2**13), flops=2 * 2**39,
              dtype="bfloat16", result_bytes=2**27, operand_bytes=2**27)  # fmt: skip
    dtype, peak = main_type_and_peak(Workload.single(b.build()), Cluster.load("h100-dgx"))
    bf16, fp8 = 989.4e12, 1978.9e12
    assert dtype == "bf16"
    assert peak == pytest.approx(3 / (2 / bf16 + 1 / fp8), rel=1e-3)
