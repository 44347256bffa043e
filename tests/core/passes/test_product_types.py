"""What products multiply: operand types after casts inside of their kernels, and precisions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
import numpy as np
from jax.lax import DotAlgorithmPreset, Precision

import flint
from flint.backends.cost.chips.model import peak_flops_per_ns, peak_type
from flint.backends.cost.estimate import Estimate
from flint.cluster.models import Cluster
from flint.errors import FlintError
from flint.ir.mesh import Mesh
from flint.ir.product_types import algorithm_type, level_of, product_type
from flint.ir.program import Kind, Program
from flint.ir.workload import Workload
from flint.passes.fusion.kernels import FuseKernels
from flint.passes.partition.xla_child import parse_text
from tests.auto_mesh import auto_mesh
from tests.hlo_programs import hlo_to_program
from tests.program_rows import ProgramBuilder

SIZE = 4096
MESH = Mesh.parse("data=1")
GPUS, TPUS = ("h100-dgx", "a100-80-dgx"), ("v5e", "v6e")
BF16, F32, I8, F8, I4 = jnp.bfloat16, jnp.float32, jnp.int8, jnp.float8_e4m3fn, jnp.int4


def estimated(
    function: Callable[..., Any], types: tuple[Any, ...], chip: str, **kw: Any
) -> Estimate:
    trace = flint.trace(function, "1", *(jax.ShapeDtypeStruct((SIZE, SIZE), t) for t in types))
    return trace.estimate(chip, **kw)


@cache
def plain(dtype: str, chip: str, profile: str | None = None) -> Estimate:
    """The estimate of a product of two matrices of a type."""
    return estimated(jnp.matmul, (jnp.dtype(dtype),) * 2, chip, profile=profile)


def same(found: Estimate, expected: Estimate, *, most: float = 1.02) -> None:
    """The same rate; what is added to the product may take time beside it."""
    assert (found.dtype, found.peak_flops_per_s) == (expected.dtype, expected.peak_flops_per_s)
    assert 0.98 < found.step_time_ns / expected.step_time_ns < most
    assert 0.5 < found.mfu < 1


CASTS = {
    "int8 weights": (lambda a, b: a @ b.astype(BF16), (BF16, I8)),
    "fp8 weights": (lambda a, b: a @ b.astype(BF16), (BF16, F8)),
    "int4 weights": (lambda a, b: a @ b.astype(BF16), (BF16, I4)),
    "int8 residual": (lambda a, b, c: a @ b + c.astype(BF16), (BF16, BF16, I8)),
    "both narrowed": (lambda a, b: a.astype(BF16) @ b.astype(BF16), (F32, F32)),
}


@pytest.mark.parametrize("chip", GPUS + TPUS)
@pytest.mark.parametrize("case", CASTS)
def test_casts_inside_of_a_kernel_are_no_products(case: str, chip: str) -> None:
    # operands of f32 are read as such, which takes an SM longer to feed
    most = {"int8 residual": 1.3, "both narrowed": 1.1}.get(case, 1.02)
    same(estimated(*CASTS[case], chip), plain("bfloat16", chip), most=most)


WIDENED = {
    "widened weights": (lambda a, b: a @ b.astype(F32), (F32, BF16)),
    "bf16 bias": (lambda a, b, c: a @ b + c.astype(F32), (F32, F32, BF16)),
}


@pytest.mark.parametrize("profile", ["xla-gpu", "inductor"])
@pytest.mark.parametrize("case", WIDENED)
def test_products_of_f32_stay_of_f32_on_gpus(case: str, profile: str) -> None:
    found = estimated(*WIDENED[case], "h100-dgx", profile=profile)
    same(found, plain("float32", "h100-dgx", profile), most=1.3)
    assert found.dtype == ("tf32" if profile == "xla-gpu" else "f32")


def test_products_of_8_bits_have_their_own_peak() -> None:
    assert plain("int8", "h100-dgx").dtype == "i8"
    assert plain("float8_e4m3fn", "h100-dgx").dtype == "f8E4M3FN"


def of_precision(precision: Any, chip: str) -> Estimate:
    return estimated(lambda a, b: jnp.matmul(a, b, precision=precision), (F32, F32), chip)


@pytest.mark.parametrize("chip", TPUS)
@pytest.mark.parametrize(("precision", "products"), [(Precision.HIGH, 3), (Precision.HIGHEST, 6)])
def test_tpus_make_f32_of_several_products_of_bf16(
    precision: Precision, products: int, chip: str
) -> None:
    large = jax.ShapeDtypeStruct((4 * SIZE, 4 * SIZE), F32)
    default, found = (
        flint.trace(lambda a, b, p=p: jnp.matmul(a, b, precision=p), "1", large, large).estimate(
            chip
        )
        for p in (None, precision)
    )
    assert found.step_time_ns / default.step_time_ns == pytest.approx(products, rel=0.1)
    assert found.mfu == pytest.approx(default.mfu / products, rel=0.1)


@pytest.mark.parametrize("chip", GPUS)
def test_gpus_take_cuda_cores_at_the_highest_precision_only(chip: str) -> None:
    tf32, f32 = plain("float32", chip), plain("float32", chip, "inductor")
    assert (tf32.dtype, f32.dtype) == ("tf32", "f32")
    same(of_precision(Precision.HIGH, chip), tf32)
    same(of_precision(Precision.HIGHEST, chip), f32)
    same(of_precision(DotAlgorithmPreset.F32_F32_F32, chip), f32)
    with jax.default_matmul_precision("float32"):
        same(estimated(jnp.matmul, (F32, F32), chip), f32)


@pytest.mark.parametrize(
    ("preset", "chip", "dtype", "products"),
    [
        (DotAlgorithmPreset.BF16_BF16_F32_X3, "h100-dgx", "bf16", 3),
        (DotAlgorithmPreset.TF32_TF32_F32_X3, "h100-dgx", "tf32", 3),
        (DotAlgorithmPreset.BF16_BF16_F32_X6, "v6e", "bf16", 6),
        (DotAlgorithmPreset.F32_F32_F32, "v6e", "f32", 6),
    ],
)
def test_algorithms_say_how_many_products(
    preset: DotAlgorithmPreset, chip: str, dtype: str, products: int
) -> None:
    found = of_precision(preset, chip)
    peak = Cluster.load(chip).chip.peak_flops_per_s[dtype].value
    assert (found.dtype, found.peak_flops_per_s) == (dtype, peak)
    assert 0.6 / products < found.mfu < 1 / products


@pytest.mark.parametrize(
    ("precision", "name"),
    [("highest", "float32:highest"), (DotAlgorithmPreset.BF16_BF16_F32_X3, "bf16:3")],
)
def test_partitioners_keep_precisions(precision: Any, name: str) -> None:
    def product(a: Any, b: Any) -> Any:
        return jnp.matmul(a, b, precision=precision)

    mesh = auto_mesh((2,), ("model",))
    sharded = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, "model"))
    matrix = jax.ShapeDtypeStruct((512, 512), F32, sharding=sharded)
    program = flint.trace(product, mesh, matrix, matrix).program
    assert name in program.products


def test_narrow_types_are_exact_at_any_precision() -> None:
    found = estimated(lambda a, b: jnp.matmul(a, b, precision="highest"), (BF16, BF16), "v5e")
    same(found, plain("bfloat16", "v5e"))


def test_convolutions_multiply_what_they_are_given() -> None:
    def convolution(x: Any, w: Any) -> Any:
        return jax.lax.conv(x, w.astype(BF16), (1, 1), "SAME")

    x, w = jax.ShapeDtypeStruct((64, 256, 56, 56), BF16), (256, 256, 3, 3)
    times = [
        flint.trace(convolution, "1", x, jax.ShapeDtypeStruct(w, dtype)).estimate("h100-dgx")
        for dtype in (BF16, I8)
    ]
    same(times[1], times[0])


@pytest.mark.parametrize("profile", ["xla-gpu+flash", "xla-gpu", "inductor"])
def test_attention_keeps_the_type_of_its_products(profile: str) -> None:
    """Weights of softmax are f32, queries are cast from int8: products are of bf16."""

    def attention(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("bsh,bth->bst", q.astype(BF16), k, preferred_element_type=F32)
        return jax.nn.softmax(scores, axis=-1).astype(BF16) @ v

    shapes = [jax.ShapeDtypeStruct((32, 2048, 128), t) for t in (I8, BF16, BF16)]
    estimate = flint.trace(attention, "1", *shapes).estimate("h100-dgx", profile=profile)
    assert estimate.dtype == "bf16" and estimate.mfu < 1


# names ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operands", "how", "expected"),
    [
        (["bfloat16", "bfloat16"], "highest", "bfloat16"),
        (["f32", "f32"], "highest", "f32:highest"),
        (["float32", "float32"], "", "float32"),
        (["i8", "bf16"], "", "bf16"),
        (["int32", "bfloat16"], "", "bfloat16"),
        (["f8E4M3FN", "f8E5M2"], "", "f8E4M3FN"),
        (["bf16", "f32"], "tf32", "f32:tf32"),
        (["complex64", "complex64"], "", ""),
        (["token"], "", ""),
        ([], "", ""),
    ],
)
def test_operands_are_multiplied_in_the_wider_type(
    operands: list[str], how: str, expected: str
) -> None:
    assert product_type(operands, how) == expected


def test_names_of_levels_and_algorithms() -> None:
    assert [level_of(levels) for levels in ([], [0, 0], [0, 1], [2, 1])] == [
        "",
        "",
        "high",
        "highest",
    ]
    assert algorithm_type("f32", 1) == "f32:highest"
    assert algorithm_type("bf16", 3) == "bf16:3"


@pytest.mark.parametrize(
    ("chip", "name", "expected"),
    [
        ("h100-dgx", "f32", ("f32", 1)),
        ("h100-dgx", "f32:high", ("tf32", 1)),
        ("h100-dgx", "f32:tf32", ("tf32", 1)),
        ("h100-dgx", "f32:ieee", ("f32", 1)),
        ("h100-dgx", "tf32:3", ("tf32", 3)),
        ("h100-dgx", "f8E5M2FNUZ", ("f8E4M3FN", 1)),
        ("v5p", "f16:1", ("bf16", 1)),
        ("v5p", "f32:ieee", ("f32", 1)),
        ("v5p", "f32:tf32", ("f32", 1)),
        ("v5p", "f32:highest", ("f32", 6)),
        ("v5p", "bf16:6", ("bf16", 6)),
    ],
)
def test_peaks_by_name(chip: str, name: str, expected: tuple[str, int]) -> None:
    found, (dtype, products) = Cluster.load(chip).chip, expected
    assert peak_type(found, name) == expected
    peak = found.peak_flops_per_s[dtype].value * 1e-9
    assert peak_flops_per_ns(found, name) == pytest.approx(peak / products)


def test_a_chip_without_tensor_cores_for_f32_does_it_on_its_other_cores() -> None:
    chip = Cluster.load("h100-dgx").chip
    peaks = {k: v for k, v in chip.peak_flops_per_s.items() if k != "tf32"}
    assert peak_type(chip.model_copy(update={"peak_flops_per_s": peaks}), "f32:tf32") == ("f32", 1)


def test_a_type_without_a_peak_is_an_error_of_its_name() -> None:
    with pytest.raises(FlintError, match="no peak for f8E4M3FN") as caught:
        estimated(jnp.matmul, (F8, F8), "a100-80-dgx")
    assert caught.value.code == "FL705"


# programs ---------------------------------------------------------------------------------------


def of_one_kernel() -> Program:
    """A small and a large product; the small one's result is cast and added to the large one's."""
    b = ProgramBuilder(MESH)
    x = b.add("x", Kind.PARAMETER, result_bytes=64, dtype="int8", shape=(8, 8))
    cast = b.add("stablehlo.convert", deps=[x], result_bytes=128, dtype="bfloat16", shape=(8, 8))
    product = b.add(
        "stablehlo.dot_general", deps=[cast, x], result_bytes=128, dtype="bfloat16", shape=(8, 8),
        dims=(1, 8, 8, 8), flops=1024, operand_bytes=192, product="bfloat16",
    )  # fmt: skip
    added = b.add(
        "stablehlo.add", deps=[product, x], result_bytes=128, dtype="bfloat16", shape=(8, 8),
        flops=64, operand_bytes=256,
    )  # fmt: skip
    b.add("func.return", Kind.VALUE, deps=[added])
    return b.build()


def test_a_kernel_multiplies_as_its_product() -> None:
    program = of_one_kernel()
    program.verify()
    fused = FuseKernels().apply(program)
    kernels = [fused.row(i) for i in range(len(fused)) if fused.kind[i] == Kind.COMPUTE]
    assert [(k.opcode, k.product, k.operand_bytes) for k in kernels] == [
        ("stablehlo.dot_general", "bfloat16", 64)
    ]


def test_a_file_keeps_the_column() -> None:
    workload = Workload.single(of_one_kernel())
    read = Workload.from_bytes(workload.to_bytes()).programs[0]
    assert read.products == ("", "bfloat16") and read.product.tolist() == [0, 0, 1, 0, 0]
    assert (read.op == workload.programs[0].op).all()


# HLO --------------------------------------------------------------------------------------------

DOT = "dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
BLAS = """custom-call(x, y), custom_call_target="__cublas$gemm", backend_config={
"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],
"rhs_contracting_dimensions":["0"],"lhs_batch_dimensions":[],"rhs_batch_dimensions":[]},
"precision_config":{"operand_precision":["LEVEL","DEFAULT"],"algorithm":"ALGORITHM"}}}"""
HLO = {
    DOT: "float32",
    f"{DOT}, operand_precision={{high,default}}": "float32:high",
    f"{DOT}, operand_precision={{highest,highest}}": "float32:highest",
    f"{DOT}, algorithm=dot_bf16_bf16_f32_x3": "bf16:3",
    f"{DOT}, algorithm=dot_bf16_bf16_f32_x6": "bf16:6",
    f"{DOT}, algorithm=dot_bf16_bf16_f32_x9": "bf16:9",
    f"{DOT}, algorithm=dot_tf32_tf32_f32": "tf32:1",
    f"{DOT}, algorithm=dot_tf32_tf32_f32_x3": "tf32:3",
    f"{DOT}, algorithm=dot_f32_f32_f32": "f32:highest",
    f'{DOT}, frontend_attributes={{flint.precision="ieee"}}': "float32:ieee",
    BLAS.replace("LEVEL", "HIGHEST").replace("ALGORITHM", "ALG_UNSET"): "float32:highest",
    BLAS.replace("LEVEL", "DEFAULT").replace("ALGORITHM", "ALG_DOT_TF32_TF32_F32"): "tf32:1",
    "convolution(x, y), dim_labels=bf_io->bf, operand_precision={highest,highest}": "float32:highest",
}


def hlo_products(body: str, before: str = "") -> Iterator[str]:
    text = f"HloModule m\n{before}\nENTRY e {{\n{body}\n}}\n"
    program = hlo_to_program(parse_text(text.encode()), MESH)
    program.verify()
    return (program.row(i).product for i in np.flatnonzero(program.product).tolist())


@pytest.mark.parametrize("instruction", HLO)
def test_instructions_of_hlo(instruction: str) -> None:
    body = f"x = f32[8,8] parameter(0)\ny = f32[8,8] parameter(1)\nROOT d = f32[8,8] {instruction}"
    assert list(hlo_products(body)) == [HLO[instruction]]


def test_a_fusion_of_hlo_multiplies_as_its_product() -> None:
    fused = f"""f {{ p = s8[8,8] parameter(0)
    y = bf16[8,8] parameter(1)
    x = bf16[8,8] convert(p)
    d = bf16[8,8] {DOT}
    ROOT c = f32[8,8] convert(d) }}"""
    body = """p = s8[8,8] parameter(0)
    y = bf16[8,8] parameter(1)
    ROOT f = f32[8,8] fusion(p, y), kind=kOutput, calls=f"""
    assert list(hlo_products(body, fused)) == ["bfloat16"]
