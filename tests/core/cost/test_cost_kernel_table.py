"""What each row of a program is to a latency model."""

from __future__ import annotations

import pytest

from flint.backends.cost.chips.kernel_table import element_type, kernels_of
from flint.backends.cost.chips.kernels import KernelKind, Kernels
from flint.backends.cost.chips.model import tf32_kinds
from flint.cluster.models import Cluster
from flint.ir.mesh import Mesh
from flint.ir.program import Flag, Kind, Phase
from tests.program_rows import ProgramBuilder


@pytest.mark.parametrize(
    ("opcode", "kind"),
    [
        ("stablehlo.dot_general", KernelKind.GEMM),
        ("aten.mm", KernelKind.GEMM),
        ("stablehlo.convolution", KernelKind.CONVOLUTION),
        ("fusion", KernelKind.ELEMENTWISE),
        ("fusion.attention[causal]", KernelKind.ATTENTION),
        ("fusion.attention_backward", KernelKind.ATTENTION_BACKWARD),
        ("custom_call.flint.attention[causal]", KernelKind.ATTENTION),
        ("custom_call.flint.attention_backward", KernelKind.ATTENTION_BACKWARD),
        ("custom_call.__cudnn$fmhaSoftmaxBackward", KernelKind.ATTENTION_BACKWARD),
        ("aten._scaled_dot_product_flash_attention[causal]", KernelKind.ATTENTION),
        ("aten._softmax", KernelKind.SOFTMAX),
        ("aten.native_layer_norm", KernelKind.NORM),
        ("stablehlo.reduce", KernelKind.REDUCTION),
        ("stablehlo.transpose", KernelKind.COPY),
        ("stablehlo.dynamic_update_slice", KernelKind.COPY),
        ("stablehlo.gather", KernelKind.GATHER),
        ("stablehlo.scatter", KernelKind.SCATTER),
        ("aten.embedding_dense_backward", KernelKind.SCATTER),
        ("stablehlo.sort", KernelKind.SORT),
        ("stablehlo.rng", KernelKind.RANDOM),
        ("custom_call.mine", KernelKind.UNPRICED),
    ],
)
def test_kinds_of_operations(opcode: str, kind: KernelKind) -> None:
    b = ProgramBuilder(Mesh(("data",), (2,)))
    b.add(opcode, result_bytes=64)
    kernels, _ = kernels_of(b.build())
    assert kernels.kind.tolist() == [kind]


@pytest.mark.parametrize(
    ("dtype", "name"),
    [("bfloat16", "bf16"), ("float32", "f32"), ("int8", "i8"), ("uint16", "ui16"), ("bool", "i1")],
)
def test_types_are_named_as_in_chips_files(dtype: str, name: str) -> None:
    assert element_type(dtype) == name


def _product(left: str, right: str, result: str, *, tf32: bool = False) -> Kernels:
    b = ProgramBuilder(Mesh(("data",), (2,)))
    a, c = (b.add("parameter", Kind.PARAMETER, dtype=t, result_bytes=8) for t in (left, right))
    b.add("stablehlo.dot_general", deps=[a, c], dtype=result, flops=16, dims=(1, 2, 2, 2))
    return kernels_of(b.build(), tf32=[KernelKind.GEMM] if tf32 else [])[0]


@pytest.mark.parametrize(
    ("types", "tf32", "expected"),
    [
        (("bfloat16", "bfloat16", "float32"), False, "bf16"),
        (("float32", "float32", "bfloat16"), False, "f32"),
        (("float32", "float32", "float32"), True, "tf32"),
        (("bfloat16", "bfloat16", "float32"), True, "bf16"),
        (("float64", "float64", "float64"), True, "f64"),
    ],
)
def test_a_product_calculates_in_the_type_of_its_operands(
    types: tuple[str, str, str], tf32: bool, expected: str
) -> None:
    kernels = _product(*types, tf32=tf32)
    assert kernels.dtypes[kernels.dtype[0]] == expected


@pytest.mark.parametrize(
    ("profile", "opcode", "expected"),
    [
        ("eager", "aten.convolution", "tf32"),
        ("eager", "aten.convolution_backward", "tf32"),
        ("eager", "aten.mm", "f32"),
        ("eager", "aten._scaled_dot_product_efficient_attention", "f32"),
        ("inductor", "stablehlo.convolution", "tf32"),
        ("inductor", "stablehlo.dot_general", "f32"),
        ("xla-gpu", "stablehlo.convolution", "tf32"),
        ("xla-gpu", "stablehlo.dot_general", "tf32"),
        ("xla-gpu+flash", "fusion.attention", "tf32"),
        ("none", "stablehlo.convolution", "f32"),
    ],
)
def test_which_products_of_f32_use_tf32_is_by_compiler(
    profile: str, opcode: str, expected: str
) -> None:
    b = ProgramBuilder(Mesh(("data",), (2,)))
    x = b.add("parameter", Kind.PARAMETER, dtype="float32", result_bytes=8)
    b.add(opcode, deps=[x], dtype="float32", flops=16, dims=(1, 2, 2, 2))
    for cluster, name in (("h100-dgx", expected), ("v5p", "f32")):
        chip = Cluster.load(cluster).chip
        kernels, _ = kernels_of(b.build(), tf32=tf32_kinds(profile, chip))
        assert kernels.dtypes[kernels.dtype[0]] == name


def test_the_upper_half_of_causal_attention_is_not_calculated() -> None:
    b = ProgramBuilder(Mesh(("data",), (2,)))
    for opcode in ("custom_call.flint.attention", "custom_call.flint.attention[causal]"):
        b.add(opcode, flops=800, result_bytes=4, dims=(2, 4, 4, 8))
    kernels, _ = kernels_of(b.build())
    assert kernels.flops.tolist() == [800, 400]
    assert kernels.causal.tolist() == [False, True]


def test_views_and_values_are_no_kernels_and_the_optimizer_has_its_own() -> None:
    b = ProgramBuilder(Mesh(("data",), (2,)))
    x = b.add("parameter", Kind.PARAMETER, result_bytes=4)
    b.add("stablehlo.transpose", deps=[x], result_bytes=4, flags=Flag.VIEW, alias=x)
    b.add("stablehlo.constant", Kind.VALUE, result_bytes=4)
    b.add("fusion", deps=[x], result_bytes=4, phase=Phase.OPTIMIZER)
    b.add("fusion", deps=[x], result_bytes=4, flags=Flag.UNPRICED)
    kernels, rows = kernels_of(b.build())
    assert rows.tolist() == [3, 4]
    assert kernels.kind.tolist() == [KernelKind.OPTIMIZER, KernelKind.UNPRICED]


@pytest.mark.parametrize(
    ("phase", "result_bytes", "kind"),
    [
        (Phase.OPTIMIZER, 8 * 1024 + 4, KernelKind.OPTIMIZER),  # two moments, and a norm of them
        (Phase.OPTIMIZER, 2 * 1024 + 4, KernelKind.OPTIMIZER),
        (Phase.OPTIMIZER, 4, KernelKind.REDUCTION),  # the norm by itself
        (Phase.BACKWARD, 8 * 1024 + 4, KernelKind.REDUCTION),
    ],
)
@pytest.mark.parametrize("dims", [(1, 1, 1, 1024), (1, 4, 1, 256), (1, 1024, 1, 1)])
def test_an_update_that_also_reduces_is_an_update(
    dims: tuple[int, int, int, int], phase: Phase, result_bytes: int, kind: KernelKind
) -> None:
    b = ProgramBuilder(Mesh(("data",), (2,)))
    x = b.add("parameter", Kind.PARAMETER, result_bytes=4096)
    b.add("fusion.reduction", deps=[x], dims=dims, result_bytes=result_bytes, phase=phase)
    kernels, _ = kernels_of(b.build())
    assert kernels.kind.tolist() == [kind]
    assert kernels.elements.tolist() == [1024 if kind is KernelKind.OPTIMIZER else 1]


@pytest.mark.parametrize(
    ("opcode", "flops", "flags", "kind"),
    [
        ("fsdp.chunk_cat", 0, Flag(0), KernelKind.COPY),
        ("aten.to", 0, Flag(0), KernelKind.COPY),
        ("aten.max_pool2d_with_indices", 36, Flag(0), KernelKind.ELEMENTWISE),
        ("aten.nll_loss_forward", 4, Flag(0), KernelKind.ELEMENTWISE),
        ("mine.operator", 0, Flag.UNPRICED, KernelKind.UNPRICED),
        ("custom_call.mine", 0, Flag(0), KernelKind.UNPRICED),
    ],
)
def test_an_operator_whose_work_is_known_has_a_price(
    opcode: str, flops: int, flags: Flag, kind: KernelKind
) -> None:
    b = ProgramBuilder(Mesh(("data",), (2,)))
    x = b.add("parameter", Kind.PARAMETER, result_bytes=4)
    b.add(opcode, deps=[x], result_bytes=4, operand_bytes=4, flops=flops, flags=flags)
    assert kernels_of(b.build())[0].kind.tolist() == [kind]


@pytest.mark.parametrize(
    ("dims", "product", "kind"),
    [
        ((1, 8, 8, 8), "bfloat16", KernelKind.GEMM),
        ((4, 8, 1, 8), "bfloat16", KernelKind.GEMM),
        ((1, 8, 8, 8), "", KernelKind.GEMM),
        ((1, 8, 1, 8), "", KernelKind.ELEMENTWISE),
        ((0, 0, 0, 0), "", KernelKind.ELEMENTWISE),
    ],
)
def test_a_fusion_that_holds_a_product_is_one(
    dims: tuple[int, int, int, int], product: str, kind: KernelKind
) -> None:
    b = ProgramBuilder(Mesh(("data",), (2,)))
    x = b.add("parameter", Kind.PARAMETER, dtype="bfloat16", shape=(8, 8), result_bytes=128)
    about = {"dtype": "float32", "shape": (8, 8), "operand_bytes": 128, "result_bytes": 256}
    for phase in (Phase.FORWARD, Phase.OPTIMIZER):
        b.add("hlo.fusion", deps=[x], dims=dims, product=product, flops=4096, phase=phase, **about)
    kernels, _ = kernels_of(b.build())
    update = kind if kind is KernelKind.GEMM else KernelKind.OPTIMIZER
    assert kernels.kind.tolist() == [kind, update]


def test_of_an_update_in_place_only_what_is_written_counts() -> None:
    b = ProgramBuilder(Mesh(("data",), (2,)))
    stack = b.add("parameter", Kind.PARAMETER, dtype="bfloat16", result_bytes=2 * 80 * 64)
    part = b.add("parameter", Kind.PARAMETER, dtype="bfloat16", result_bytes=2 * 64)
    about = {"dtype": "bfloat16", "shape": (80, 64), "operand_bytes": 2 * 64}
    b.add("stablehlo.dynamic_update_slice", deps=[stack, part], result_bytes=2 * 64,
          flags=Flag.IN_PLACE, alias=stack, **about)  # fmt: skip
    b.add("stablehlo.negate", deps=[stack], result_bytes=2 * 80 * 64, **about)
    assert kernels_of(b.build())[0].elements.tolist() == [64, 80 * 64]
