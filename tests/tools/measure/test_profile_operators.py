"""Operators as PyTorch's profiler writes them down: shapes of results, work, class, nests."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flint.frontends.torch_world.program.op_classes import class_of
from flint.frontends.torch_world.program.operands import read as read_by
from flint.frontends.torch_world.program.operands import results
from flint.frontends.torch_world.program.work import moved_bytes
from flint.ir.op_class import OpClass
from flint.tools.measure.profiles.attribution import chosen
from flint.tools.measure.profiles.operators import events
from flint.tools.measure.profiles.operators.events import knows, read, recorded_name
from flint.tools.measure.profiles.operators.types import element_type, promoted
from flint.tools.measure.profiles.profile import Signature

BF16, F32, LONG = "c10::BFloat16", "float", "long int"
Given = tuple[tuple[int, ...], str] | str | list[tuple[int, ...]]


def signature(*arguments: Given, strides: tuple[tuple[int, ...], ...] = ()) -> Signature:
    """Tensors are (shape, type), lists of tensors lists of shapes, scalars their text."""
    shapes, types, values, lists = [], [], [], []
    for one in arguments:
        listed = tuple(one) if isinstance(one, list) else ()
        tensor = one if isinstance(one, tuple) else ((), "TensorList" if listed else "Scalar")
        shapes.append(tensor[0])
        types.append(tensor[1])
        values.append(one if isinstance(one, str) else "")
        lists.append(listed)
    return Signature(tuple(shapes), tuple(types), strides, tuple(values), tuple(lists))


def b(*shape: int) -> tuple[tuple[int, ...], str]:
    return shape, BF16


def f(*shape: int) -> tuple[tuple[int, ...], str]:
    return shape, F32


CASES: dict[str, tuple[str, Signature, tuple[int, ...], int]] = {
    "mm": ("aten::mm", signature(b(8, 4), b(4, 6)), (8, 6), 2 * 8 * 4 * 6),
    "bmm": ("aten::bmm", signature(b(3, 8, 4), b(3, 4, 6)), (3, 8, 6), 2 * 3 * 8 * 4 * 6),
    "addmm": (
        "aten::addmm", signature(b(6), b(8, 4), b(4, 6), "1", "1"), (8, 6), 2 * 8 * 4 * 6 + 48,
    ),
    "baddbmm": (
        "aten::baddbmm", signature(b(3, 8, 6), b(3, 8, 4), b(3, 4, 6)), (3, 8, 6),
        2 * 3 * 8 * 4 * 6 + 144,
    ),
    "linear": ("aten::linear", signature(b(2, 8, 4), b(6, 4), b(6)), (2, 8, 6), 2 * 16 * 4 * 6 + 96),
    "convolution": (
        "aten::convolution",
        signature(b(2, 3, 8, 8), b(4, 3, 3, 3), b(4), "[2, 2]", "[1, 1]", "[1, 1]", "False",
                  "[0, 0]", "1"),
        (2, 4, 4, 4), 2 * (2 * 4 * 4) * 4 * 27 + 128,
    ),
    "transposed convolution": (
        "aten::convolution",
        signature(b(1, 4, 4, 4), b(4, 3, 2, 2), "", "[2, 2]", "[0, 0]", "[1, 1]", "True",
                  "[0, 0]", "1"),
        (1, 3, 8, 8), 2 * 16 * 4 * 12,
    ),
    "cudnn convolution": (
        "aten::cudnn_convolution",
        signature(b(2, 3, 8, 8), b(4, 3, 3, 3), "[1, 1]", "[1, 1]", "[1, 1]", "1", "False"),
        (2, 4, 8, 8), 2 * 128 * 4 * 27,
    ),
    "miopen convolution": (
        "aten::miopen_convolution",
        signature(b(2, 3, 8, 8), b(4, 3, 3, 3), "", "[1, 1]", "[2, 2]", "[1, 1]", "1", "False"),
        (2, 4, 4, 4), 2 * 32 * 4 * 27,
    ),
    "convolution backward": (
        "aten::convolution_backward",
        signature(b(2, 4, 8, 8), b(2, 3, 8, 8), b(4, 3, 3, 3), "[4]", "[1, 1]", "[1, 1]", "[1, 1]",
                  "False", "[0, 0]", "1", "[True, True, True]"),
        (2, 3, 8, 8), 2 * (2 * 128 * 4 * 27) + 512,
    ),
    "flash attention": (
        "aten::_scaled_dot_product_flash_attention",
        signature(b(2, 4, 16, 8), b(2, 4, 16, 8), b(2, 4, 16, 8), "0.", "True", "False", "0.1"),
        (2, 4, 16, 8), 2 * 2 * (2 * 4 * 16) * 16 * 8,
    ),
    "packed attention": (
        "aten::_flash_attention_forward",
        signature(b(2, 16, 4, 8), b(2, 16, 4, 8), b(2, 16, 4, 8), "", "", "16", "16", "0.", "False"),
        (2, 16, 4, 8), 2 * 2 * (2 * 4 * 16) * 16 * 8,
    ),
    "attention backward": (
        "aten::_scaled_dot_product_flash_attention_backward",
        signature(*[b(2, 4, 16, 8)] * 5, f(2, 4, 16), "", "", "16", "16", "0.", "False"),
        (2, 4, 16, 8), 5 * 2 * (2 * 4 * 16) * 16 * 8,
    ),
    "mul": ("aten::mul", signature(b(8, 4), b(4)), (8, 4), 32),
    "gelu": ("aten::gelu", signature(b(8, 4), "none"), (8, 4), 5 * 32),
    "softmax": ("aten::_softmax", signature(b(8, 4), "-1", "False"), (8, 4), 5 * 32),
    "layer norm": (
        "aten::native_layer_norm", signature(b(8, 4), "[4]", b(4), b(4), "1e-05"), (8, 4), 7 * 32,
    ),
    "rms norm": ("aten::_fused_rms_norm", signature(b(8, 4), "[4]", b(4), ""), (8, 4), 4 * 32),
    "batch norm": (
        "aten::miopen_batch_norm",
        signature(b(2, 3, 4, 4), b(3), b(3), b(3), b(3), "True", "0.1", "1e-05"),
        (2, 3, 4, 4), 7 * 96,
    ),
    "mean over a dimension": (
        "aten::mean", signature(f(8, 4), "[-1]", "True", ""), (8, 1), 32,
    ),
    "sum of all": ("aten::sum", signature(f(8, 4), ""), (), 32),
    "argmax": ("aten::argmax", signature(f(8, 4), "-1", "False"), (8,), 32),
    "embedding": (
        "aten::embedding", signature(b(100, 16), ((2, 5), LONG), "0", "False", "False"),
        (2, 5, 16), 0,
    ),
    "index_select": (
        "aten::index_select", signature(b(100, 16), "0", ((7,), LONG)), (7, 16), 0,
    ),
    "index_select of columns": (
        "aten::index_select", signature(b(100, 16), "1", ((7,), LONG)), (100, 7), 0,
    ),
    "index_select of the last dimension": (
        "aten::index_select", signature(b(4, 100, 16), "-1", ((7,), LONG)), (4, 100, 7), 0,
    ),
    "gather": ("aten::gather", signature(f(8, 4), "1", ((8, 2), LONG), "False"), (8, 2), 0),
    "cat": ("aten::cat", signature([(8, 4), (8, 2)], "-1"), (8, 6), 0),
    "pad": ("aten::constant_pad_nd", signature(b(8, 4), "[0, 2]", "0."), (8, 6), 0),
    "repeat": ("aten::repeat", signature(b(4), "[8, 2]"), (8, 8), 0),
    "topk": ("aten::topk", signature(f(8, 100), "5", "-1", "True", "True"), (8, 5), 8 * 100 * 3),
    "cumsum": ("aten::cumsum", signature(f(8, 4), "0", ""), (8, 4), 32),
    "max pool": (
        "aten::max_pool2d_with_indices",
        signature(b(2, 3, 8, 8), "[3, 3]", "[2, 2]", "[1, 1]", "[1, 1]", "False"),
        (2, 3, 4, 4), 96 * 9,
    ),
    "mse loss": ("aten::mse_loss", signature(f(8, 4), f(8, 4), "1"), (), 64),
    "nll loss": (
        "aten::nll_loss_forward", signature(f(8, 4), ((8,), LONG), "", "1", "-100"), (), 8,
    ),
    "vllm norm": (
        "_C::fused_add_rms_norm", signature(b(8, 4), b(8, 4), b(4), "1e-05"), (8, 4), 5 * 32,
    ),
    "vllm activation": ("_C::silu_and_mul", signature(b(8, 4), b(8, 8)), (8, 4), 4 * 32),
    "flash-attn": (
        "flash_attn::_flash_attn_forward",
        signature(b(2, 16, 4, 8), b(2, 16, 4, 8), b(2, 16, 4, 8)),
        (2, 16, 4, 8), 2 * 2 * (2 * 4 * 16) * 16 * 8,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_results_and_flops(case: str) -> None:
    name, given, shape, flops = CASES[case]
    found = read(name, given)
    assert found is not None
    assert found.event.outputs[0].shape == shape
    work = found.work
    assert not work.unpriced
    if case != "topk":
        assert work.flops == flops
    assert knows(name)


def bytes_of(name: str, given: Signature) -> tuple[int, int]:
    found = read(name, given)
    assert found is not None
    event = found.event
    return moved_bytes(found.work, read_by(event), results(event), found.visible_bytes)


def test_bytes_of_copies_updates_and_expanded_operands() -> None:
    assert bytes_of("aten::copy_", signature(f(8, 4), b(8, 4), "False")) == (64, 128)
    assert bytes_of("aten::add_", signature(b(8, 4), b(8, 4), "1")) == (128, 64)
    expanded = signature(b(8, 4), b(8, 4), strides=((4, 1), (0, 1)))
    assert bytes_of("aten::mul", expanded) == (64 + 8, 64)
    assert bytes_of("aten::fill_", signature(b(8, 4), "0")) == (0, 64)
    assert bytes_of("aten::_to_copy", signature(b(8, 4), "6")) == (64, 128)


def test_lists_take_the_type_that_the_kernel_names() -> None:
    found = read("aten::cat", signature([(8, 4), (8, 2)], "1"), "bf16")
    assert found is not None
    assert found.event.outputs[0].num_bytes == 96


def test_attention_knows_its_mask() -> None:
    q = b(2, 4, 16, 8)
    causal = read("aten::_scaled_dot_product_flash_attention", signature(q, q, q, "0.", "True"))
    whole = read("aten::_scaled_dot_product_flash_attention", signature(q, q, q, "0.", "False"))
    assert causal is not None
    assert whole is not None
    assert causal.event.attributes == {"is_causal": True}
    assert whole.event.attributes == {}


#: PyTorch's schemas: where an attention operator has the word that says its mask.
_MASKED = {
    "_scaled_dot_product_flash_attention": (3, 4, "True"),
    "_scaled_dot_product_efficient_attention": (3, 6, "True"),
    "_scaled_dot_product_cudnn_attention": (3, 6, "True"),
    "_scaled_dot_product_flash_attention_backward": (6, 11, "True"),
    "_scaled_dot_product_efficient_attention_backward": (4, 11, "True"),
    "_scaled_dot_product_cudnn_attention_backward": (6, 14, "True"),
    "_flash_attention_forward": (3, 8, "True"),
    "_flash_attention_backward": (6, 11, "True"),
    "_efficient_attention_forward": (3, 9, "1"),
    "_efficient_attention_backward": (4, 14, "1"),
}


@pytest.mark.parametrize("name", _MASKED)
def test_the_mask_is_where_the_schema_has_it(name: str) -> None:
    tensors, at, word = _MASKED[name]
    given = [b(2, 4, 16, 8)] * tensors
    for said, causal in ((word, True), ("False" if word == "True" else "0", False)):
        found = read(f"aten::{name}", signature(*given, *[""] * (at - tensors), said, ""))
        assert found is not None
        assert bool(found.event.attributes) is causal


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("aten::mm", signature(b(8, 4))),
        ("aten::mm", signature()),
        ("aten::convolution", signature(b(2, 3), b(4, 3))),
        ("aten::cat", signature([(8, 4), (8,)], "1")),
        ("aten::topk", signature(f(8), "x")),
        ("aten::_foreach_add_", signature("", "", "-0.001")),
        ("vllm::moe_forward", signature(b(8, 4))),
        ("my::own", signature(b(8, 4))),
    ],
)
def test_arguments_that_tell_nothing_are_no_error(name: str, given: Signature) -> None:
    assert read(name, given) is None


texts = st.sampled_from(
    [
        "",
        "0",
        "1",
        "-1",
        "2",
        "7",
        "True",
        "[0]",
        "[1, 2]",
        "[0, 0]",
        "[-1]",
        "[3, 3, 3]",
        "x",
        "9" * 30,
    ]
)
tensors = st.tuples(
    st.lists(st.integers(0, 5), max_size=5).map(tuple), st.sampled_from([BF16, F32, LONG, "bool"])
)
lists = st.lists(st.lists(st.integers(0, 5), max_size=4).map(tuple), min_size=1, max_size=3)
NAMES = [f"aten::{base}" for base in events._FORMS] + [
    *("aten::add", "aten::where", "aten::_foreach_add_", "aten::_fused_adam_", "aten::index_put_"),
    *("_C::rms_norm", "_C::fused_add_rms_norm", "_C::silu_and_mul", "_C::static_scaled_fp8_quant"),
    *("_C::rotary_embedding", "_C_cache_ops::reshape_and_cache_flash", "_C::cutlass_scaled_mm"),
    *("flash_attn::_flash_attn_forward", "flash_attn::_flash_attn_backward", "triton_poi_fused_0"),
]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(NAMES), st.lists(st.one_of(texts, tensors, lists), max_size=12))
def test_no_arguments_break_any_operator(name: str, arguments: list[Given]) -> None:
    found = read(name, signature(*arguments))
    if found is None:
        return
    work = found.work
    operand_bytes, result_bytes = moved_bytes(
        work, read_by(found.event), results(found.event), found.visible_bytes
    )
    assert min(work.flops, operand_bytes, result_bytes, *work.dims) >= 0


@pytest.mark.parametrize(
    ("name", "recorded"),
    [
        ("aten::add_", "aten.add_.default"),
        ("aten::relu6", "aten.hardtanh.default"),
        ("aten::relu6_", "aten.hardtanh_.default"),
        ("aten::__iand__", "aten.__iand__.default"),
        ("aten::_convolution", "aten.convolution.default"),
        ("my::relu6_", "my.relu6_.default"),
        ("a::b::two words", "a.b.two_words.default"),
        ("triton_poi_fused_0", "triton_poi_fused_0"),
    ],
)
def test_names_that_recordings_have(name: str, recorded: str) -> None:
    assert recorded_name(name) == recorded


BOOLS = ((8, 4), "bool")


@pytest.mark.parametrize(
    ("name", "arguments", "writes"),
    [
        ("aten::relu6_", [f(8, 4)], (0,)),
        ("aten::relu6", [f(8, 4)], ()),
        ("aten::__iand__", [BOOLS, BOOLS], (0,)),
        ("aten::__and__", [BOOLS, BOOLS], ()),
        ("aten::addcdiv_", [f(8, 4), f(8, 4), f(8, 4), "1"], (0,)),
        ("aten::addcdiv", [f(8, 4), f(8, 4), f(8, 4), "1"], ()),
    ],
)
def test_what_is_done_in_place_writes_its_input(
    name: str, arguments: list[Given], writes: tuple[int, ...]
) -> None:
    """Also by another name, and where the name does not end in an underscore."""
    found = read(name, signature(*arguments))
    assert found is not None
    assert found.event.writes == writes
    assert (found.event.outputs[0].storage == 0) is bool(writes)


def test_classes_and_types() -> None:
    assert class_of(recorded_name("aten::cudnn_convolution")) is OpClass.CONVOLUTION
    assert class_of(recorded_name("aten::miopen_batch_norm")) is OpClass.NORM
    assert element_type("c10::Float8_e4m3fnuz") == ("f8E4M3FNUZ", 1)
    assert element_type("BFloat16") == ("bf16", 2)
    assert element_type("Scalar") is None


def test_types_promote_as_in_pytorch() -> None:
    assert promoted([("bf16", True), ("f64", False)]) == "bf16"
    assert promoted([("i64", True), ("f64", False)]) == "f32"
    assert promoted([("bf16", True), ("f32", True)]) == "f32"
    assert promoted([("bf16", True), ("f16", True)]) == "f32"
    assert promoted([("i32", True), ("i64", False)]) == "i32"


@pytest.mark.parametrize(
    ("nest", "has_the_work"),
    [
        (["aten::linear", "aten::addmm"], "aten::addmm"),
        (["aten::to", "aten::_to_copy", "aten::copy_"], "aten::_to_copy"),
        (["aten::conv2d", "aten::convolution", "aten::_convolution", "aten::cudnn_convolution"],
         "aten::convolution"),
        (["aten::embedding", "aten::index_select"], "aten::embedding"),
        (["autograd::engine::evaluate_function: AddmmBackward0", "AddmmBackward0", "aten::mm"],
         "aten::mm"),
        (["vllm::all_reduce", "aten::copy_"], "aten::copy_"),
        (["vllm::moe_forward"], "vllm::moe_forward"),
        (["aten::scaled_dot_product_attention", "aten::_scaled_dot_product_flash_attention",
          "aten::_flash_attention_forward"], "aten::_scaled_dot_product_flash_attention"),
    ],
)  # fmt: skip
def test_the_operator_that_a_captured_program_has_is_chosen(
    nest: list[str], has_the_work: str
) -> None:
    assert nest[chosen(nest)] == has_the_work
