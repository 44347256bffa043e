"""Work of single HLO instructions, calculated by hand: FLOPs, sizes, bytes that cross the edge."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jaxlib", reason="XLA's parser of HLO text is in jaxlib")
import ml_dtypes

from flint.ir.mesh import Mesh
from flint.ir.product_types import algorithm_type
from flint.ir.program import Flag, Row
from flint.passes.hlo import shapes
from flint.passes.hlo.module import decode_module
from flint.passes.partition.xla_child import parse_text
from tests.hlo_programs import hlo_to_program

BODIES = """
add { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b) }
squares { a = f32[] parameter(0)
  b = f32[] parameter(1)
  d = f32[] multiply(b, b)
  ROOT c = f32[] add(a, d) }
second { a = f32[] parameter(0)
  ROOT b = f32[] parameter(1) }
less { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = pred[] compare(a, b), direction=LT }
ge { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = pred[] compare(a, b), direction=GE }
less2 { a = f32[] parameter(0)
  b = f32[] parameter(1)
  p = s32[] parameter(2)
  q = s32[] parameter(3)
  ROOT c = pred[] compare(a, b), direction=LT }
"""
VALUES = {
    "x": "f32[6,20]", "w": "f32[20,7]", "xs": "bf16[2,3,5,20]", "ws": "bf16[2,3,20,7]",
    "t": "f32[2,3,20]", "i": "s32[4,1]", "n": "s32[]", "rows": "f32[4,20]", "zero": "f32[]",
    "images": "f32[2,8,9,4]", "kernel": "f32[3,2,2,6]", "groups": "f32[3,20,7]", "sizes": "s32[3]",
    "matrices": "f32[3,6,6]", "right": "f32[3,6,4]", "heads": "bf16[2,3,5,16]",
    "keys": "bf16[2,3,7,16]", "wide": "bf16[2,3,7,24]", "of": "f32[20]", "complex": "c64[2,8,16]",
    "real": "f32[2,8,16]", "half": "c64[2,8,9]", "places": "s32[6,20]", "none": "f32[6,0]",
    "nothing": "f32[0,7]", "column": "f32[6,1]", "row": "f32[1,7]", "batches": "f32[4,8,9,3]",
    "features": "f32[3,2,3,6]", "scale": "f32[20]", "hot": "bf16[9,3,5,16]",
    "cold": "bf16[9,7,3,16]", "flat": "bf16[6,16]", "filters": "f32[6,3,2,2]",
    "outputs": "f32[2,6,8,6]", "row6": "f32[3,5]",
}  # fmt: skip

# instruction: FLOPs, dims, bytes read and written
WORK: dict[str, tuple[int, tuple[int, ...], int, int]] = {
    "f32[6,7] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}": (
        2 * 6 * 7 * 20, (1, 6, 7, 20), 4 * (120 + 140), 4 * 42,
    ),
    (
        "bf16[2,3,5,7] dot(xs, ws), lhs_batch_dims={0,1}, rhs_batch_dims={0,1}, "
        "lhs_contracting_dims={3}, rhs_contracting_dims={2}"
    ): (2 * 6 * 5 * 7 * 20, (6, 5, 7, 20), 2 * (600 + 840), 2 * 210),
    (
        "f32[2,3,3,7] dot(t, groups), lhs_contracting_dims={2}, rhs_contracting_dims={1}"
    ): (2 * 6 * 21 * 20, (1, 6, 21, 20), 4 * (120 + 420), 4 * 126),
    (
        "f32[6,7] ragged-dot(x, groups, sizes), lhs_contracting_dims={1}, "
        "rhs_contracting_dims={1}, lhs_ragged_dims={0}, rhs_group_dims={0}"
    ): (2 * 6 * 7 * 20, (1, 6, 7, 20), 4 * (120 + 420 + 3), 4 * 42),
    (
        "f32[3,20,20] ragged-dot(x, x, sizes), lhs_contracting_dims={0}, "
        "rhs_contracting_dims={0}, lhs_ragged_dims={0}"
    ): (2 * 6 * 20 * 20, (1, 20, 20, 6), 4 * (240 + 3), 4 * 1200),
    (
        "f32[2,6,8,6] convolution(images, kernel), window={size=3x2}, feature_group_count=2, "
        "dim_labels=b01f_01io->b01f"
    ): (2 * 96 * 6 * 12, (2, 96, 3, 12), 4 * (576 + 72), 4 * 576),
    (
        "f32[2,3,4,6] convolution(images, kernel), window={size=3x2 stride=2x2}, "
        "feature_group_count=2, dim_labels=b01f_01io->b01f"
    ): (2 * 24 * 6 * 12, (2, 24, 3, 12), 4 * (576 + 72), 4 * 144),
    (
        "f32[2,4,7,6] convolution(images, kernel), window={size=3x2 rhs_dilate=2x2}, "
        "feature_group_count=2, dim_labels=b01f_01io->b01f"
    ): (2 * 56 * 6 * 12, (2, 56, 3, 12), 4 * (576 + 72), 4 * 336),
    "f32[6,7] dot(column, row), lhs_contracting_dims={1}, rhs_contracting_dims={0}": (
        2 * 6 * 7, (1, 6, 7, 1), 4 * 13, 4 * 42,
    ),
    "f32[6,7] dot(none, nothing), lhs_contracting_dims={1}, rhs_contracting_dims={0}": (
        0, (1, 0, 0, 0), 0, 4 * 42,
    ),
    (  # each half of the batch has its own half of the features
        "f32[2,6,8,6] convolution(batches, features), window={size=3x2}, batch_group_count=2, "
        "dim_labels=b01f_01io->b01f"
    ): (2 * 96 * 6 * 18, (2, 96, 3, 18), 4 * (864 + 108), 4 * 576),
    (
        "f32[6,20] batch-norm-inference(x, scale, scale, scale, scale), epsilon=0.1, "
        "feature_index=1"
    ): (8 * 120, (0, 0, 0, 0), 4 * (120 + 80), 4 * 120),
    "f32[6] reduce(x, zero), dimensions={1}, to_apply=add": (
        120, (1, 6, 1, 20), 4 * 121, 4 * 6,
    ),
    "f32[20] reduce(x, zero), dimensions={0}, to_apply=squares": (
        2 * 120, (1, 20, 1, 6), 4 * 121, 4 * 20,
    ),
    "f32[] reduce(x, zero), dimensions={0,1}, to_apply=add": (
        120, (1, 1, 1, 120), 4 * 121, 4,
    ),
    "f32[3,5] reduce-window(x, zero), window={size=2x4 stride=2x4}, to_apply=squares": (
        2 * 15 * 8, (1, 15, 1, 8), 4 * 121, 4 * 15,
    ),
    (  # a running sum of each row: one addition for each element
        "f32[6,20] reduce-window(x, zero), window={size=1x20 pad=0_0x19_0}, to_apply=add"
    ): (120, (1, 120, 1, 1), 4 * 121, 4 * 120),
    (  # the sum of a whole row at each place, as TPU programs write softmax: one for each row
        "f32[6,20] reduce-window(x, zero), window={size=1x39 pad=0_0x19_19}, to_apply=add"
    ): (120, (1, 120, 1, 1), 4 * 121, 4 * 120),
    # Slices that a TPU copied ahead lie side by side: their names are joined, nothing moves.
    'f32[12,20] custom-call(x, x), custom_call_target="ConcatBitcast"': (
        0, (0, 0, 0, 0), 0, 4 * 240,
    ),
    (
        "f32[6,20] select-and-scatter(x, row6, zero), window={size=2x4 stride=2x4}, select=ge, "
        "scatter=add"
    ): (15 * 9, (0, 0, 0, 0), 4 * (120 + 15 + 1), 4 * 120),
    "f32[6,20] sort(x), dimensions={1}, to_apply=less": (
        120 * 5, (1, 6, 1, 20), 4 * 120, 4 * 120,
    ),
    "f32[6,20] sort(x), dimensions={0}, to_apply=less": (
        120 * 3, (1, 20, 1, 6), 4 * 120, 4 * 120,
    ),
    "(f32[6,20], s32[6,20]) sort(x, places), dimensions={1}, to_apply=less2": (
        120 * 5, (1, 6, 1, 20), 8 * 120, 8 * 120,
    ),
    "(f32[6,5], s32[6,5]) topk(x), k=5, largest=true": (
        120 * 3, (1, 6, 1, 20), 4 * 120, 8 * 30,
    ),
    "c64[2,8,16] fft(complex), fft_type=FFT, fft_length={16}": (
        5 * 256 * 4, (1, 16, 1, 16), 8 * 256, 8 * 256,
    ),
    "c64[2,8,16] fft(complex), fft_type=FFT, fft_length={8,16}": (
        5 * 256 * 7, (8, 2, 1, 16), 8 * 256, 8 * 256,
    ),
    "c64[2,8,9] fft(real), fft_type=RFFT, fft_length={16}": (
        5 * 256 * 4, (1, 16, 1, 16), 4 * 256, 8 * 144,
    ),
    "f32[2,8,16] fft(half), fft_type=IRFFT, fft_length={16}": (
        5 * 256 * 4, (1, 16, 1, 16), 8 * 144, 4 * 256,
    ),
    "f32[3,6,6] cholesky(matrices), lower=true": (
        3 * 72, (0, 0, 0, 0), 4 * 108, 4 * 108,
    ),
    (
        "f32[3,6,4] triangular-solve(matrices, right), left_side=true, lower=true, "
        "transpose_a=NO_TRANSPOSE"
    ): (72 * 6, (0, 0, 0, 0), 4 * (108 + 72), 4 * 72),
    (
        'f32[3,6,4] custom-call(matrices, right), custom_call_target="__cublas$triangularSolve"'
    ): (72 * 6, (0, 0, 0, 0), 4 * (108 + 72), 4 * 72),
    '(f32[6,5], s32[6,5]) custom-call(x), custom_call_target="__gpu$TopK"': (
        120 * 3, (1, 6, 1, 20), 4 * 120, 8 * 30,
    ),
    '(f32[3,6,6], s32[3]) custom-call(matrices), custom_call_target="hipsolver_potrf_ffi"': (
        3 * 72, (0, 0, 0, 0), 4 * 108, 4 * 111,
    ),
    "f32[6,20] exponential(x)": (120, (0, 0, 0, 0), 4 * 120, 4 * 120),
    "f32[6,20] add(x, x)": (120, (0, 0, 0, 0), 4 * 120, 4 * 120),
    "bf16[6,20] convert(x)": (0, (0, 0, 0, 0), 4 * 120, 2 * 120),
    "f32[20,6] transpose(x), dimensions={1,0}": (0, (0, 0, 0, 0), 4 * 120, 4 * 120),
    "f32[6,4] slice(x), slice={[0:6], [3:19:4]}": (0, (0, 0, 0, 0), 4 * 24, 4 * 24),
    "f32[2,20] dynamic-slice(x, n, n), dynamic_slice_sizes={2,20}": (
        0, (0, 0, 0, 0), 4 * 40, 4 * 40,
    ),
    "f32[6,20] dynamic-update-slice(x, rows, n, n)": (0, (0, 0, 0, 0), 4 * 80, 4 * 80),
    (
        "f32[4,20] gather(x, i), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, "
        "index_vector_dim=1, slice_sizes={1,20}"
    ): (0, (1, 4, 1, 20), 4 * 80 + 4 * 4, 4 * 80),
    (
        "f32[6,20] scatter(x, i, rows), update_window_dims={1}, inserted_window_dims={0}, "
        "scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add"
    ): (80, (1, 4, 1, 20), 2 * 4 * 80 + 4 * 4, 4 * 80),
    (
        "f32[6,20] scatter(x, i, rows), update_window_dims={1}, inserted_window_dims={0}, "
        "scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=second"
    ): (0, (1, 4, 1, 20), 2 * 4 * 80 + 4 * 4, 4 * 80),
    "f32[6,20] rng(zero, zero), distribution=rng_uniform": (
        10 * 120, (0, 0, 0, 0), 8, 4 * 120,
    ),
    (
        'bf16[2,3,5,16] custom-call(heads, keys, keys), custom_call_target="flint.attention"'
    ): (2 * 6 * 5 * 7 * 32, (6, 5, 7, 16), 2 * 16 * (30 + 42 + 42), 2 * 16 * 30),
    (  # (batch, sequence, heads, size) and (batch, heads, sequence, size)
        'bf16[9,3,5,16] custom-call(hot, cold, cold), custom_call_target="__cudnn$fmhaSoftmax"'
    ): (2 * 27 * 5 * 7 * 32, (27, 5, 7, 16), 2 * 16 * 9 * (15 + 21 + 21), 2 * 16 * 9 * 15),
    (
        'bf16[2,3,5,24] custom-call(heads, keys, wide), custom_call_target="__cudnn$fmhaSoftmax"'
    ): (2 * 6 * 5 * 7 * 40, (6, 5, 7, 16), 2 * (16 * 72 + 24 * 42), 2 * 24 * 30),
    (
        'bf16[2,3,5,16] custom-call(heads, keys, wide), '
        'custom_call_target="__cudnn$fmhaSoftmaxBackward"'
    ): (2 * 6 * 5 * 7 * (3 * 16 + 2 * 24), (6, 5, 7, 16), 2 * (16 * 72 + 24 * 42), 2 * 16 * 30),
}  # fmt: skip


def row_of(line: str) -> Row:
    given = [f"{name} = {shape} parameter({at})" for at, (name, shape) in enumerate(VALUES.items())]
    body = "\n".join([*given, f"ROOT r = {line}"])
    proto = parse_text(f"HloModule m\n{BODIES}\nENTRY e {{\n{body}\n}}\n".encode())
    program = hlo_to_program(proto, Mesh.parse("x=1"))
    (found,) = (
        row
        for row in map(program.row, range(len(VALUES), len(program)))
        if row.opcode != "hlo.ROOT" and not row.flags & Flag.VIEW
    )
    return found


@pytest.mark.parametrize("line", WORK)
def test_work_of_one_instruction(line: str) -> None:
    row = row_of(line)
    found = (row.flops, row.dims, row.operand_bytes, row.result_bytes)
    assert found == WORK[line]
    assert not row.flags & Flag.UNPRICED


@pytest.mark.parametrize(
    "call",
    [
        '(f32[2,6,8,6], u8[0]) custom-call(images, filters), custom_call_target="__cudnn$convForward"',
        (
            "(f32[2,8,9,4], u8[9]) custom-call(outputs, filters), "
            'custom_call_target="__cudnn$convBackwardInput"'
        ),
        (
            "(f32[6,3,2,2], u8[9]) custom-call(images, outputs), "
            'custom_call_target="__cudnn$convBackwardFilter"'
        ),
        (
            "(f32[2,6,8,6], u8[0]) custom-call(images, filters, scale), "
            'custom_call_target="__cudnn$convBiasActivationForward"'
        ),
    ],
)
def test_each_direction_of_a_convolution_of_cudnn_does_its_products(call: str) -> None:
    row = row_of(f"{call}, window={{size=3x2}}, dim_labels=b01f_o01i->b01f, feature_group_count=2")
    assert (row.flops, row.dims) == (2 * 96 * 6 * 12, (2, 96, 3, 12))
    assert not row.flags & Flag.UNPRICED


def met(size: int, inputs: int, outputs: int, window: dict[str, int]) -> int:
    """Pairs of a position and a window element that meet an element of a dilated, padded input."""
    stride, low = window.get("stride", 1), window.get("low", 0)
    base, wide = window.get("lhs_dilate", 1), window.get("rhs_dilate", 1)
    real = {low + base * i for i in range(inputs)}
    return sum(stride * o + wide * e in real for o in range(outputs) for e in range(size))


@pytest.mark.parametrize(
    "window",
    [
        {"low": 2, "high": 8},
        {"low": 9, "high": 1, "stride": 2},
        {"lhs_dilate": 2},
        {"lhs_dilate": 3, "stride": 2, "low": 2, "high": 1},
        {"rhs_dilate": 4, "low": 9, "high": 3},
        {"rhs_dilate": 2, "lhs_dilate": 2, "stride": 3, "low": 4, "high": 3},
        {"low": -1, "high": -2, "lhs_dilate": 2},
    ],
)
def test_convolutions_with_holes_count_what_meets(window: dict[str, int]) -> None:
    """Along one dimension of 8 elements; that of 9 has thin padding, which counts."""
    stride, base, wide = (window.get(name, 1) for name in ("stride", "lhs_dilate", "rhs_dilate"))
    low, high = window.get("low", 0), window.get("high", 0)
    outputs = (7 * base + 1 + low + high - 2 * wide - 1) // stride + 1
    written = f"size=3x2 stride={stride}x1 pad={low}_{high}x1_0 lhs_dilate={base}x1"
    row = row_of(
        f"f32[2,{outputs},9,6] convolution(images, kernel), feature_group_count=2, "
        f"window={{{written} rhs_dilate={wide}x1}}, dim_labels=b01f_01io->b01f"
    )
    used = met(3, 8, outputs, window)
    assert row.flops == 2 * 2 * 9 * 6 * 2 * used * 2  # batch, other outputs, features, k
    k = -(-12 * used // (3 * outputs))
    assert row.dims == (2, 2 * outputs * 9, 3, k)


def test_results_that_are_updated_in_place_say_so() -> None:
    for line in WORK:
        updates = line.split()[1].startswith(("dynamic-update-slice", "scatter"))
        assert bool(row_of(line).flags & Flag.IN_PLACE) == updates


#: Names in HLO text -> those of numpy and ml_dtypes.
NAMES = {
    "pred": "bool", "c64": "complex64", "c128": "complex128",
    **{f"s{n}": f"int{n}" for n in (2, 4, 8, 16, 32, 64)},
    **{f"u{n}": f"uint{n}" for n in (2, 4, 8, 16, 32, 64)},
    **{f"f{n}": f"float{n}" for n in (16, 32, 64)}, "bf16": "bfloat16",
    **{f"f8{kind}": f"float8_{kind}" for kind in (
        "e5m2", "e4m3fn", "e4m3b11fnuz", "e5m2fnuz", "e4m3fnuz", "e4m3", "e3m4", "e8m0fnu")},
    "f4e2m1fn": "float4_e2m1fn",
}  # fmt: skip


def bits(name: str) -> int:
    """By the libraries that define the types."""
    if name == "bool" or name.startswith("complex"):
        return 8 * np.dtype(name).itemsize
    kind: Any = getattr(ml_dtypes, name, name)
    return int((ml_dtypes.finfo if "float" in name else ml_dtypes.iinfo)(kind).bits)


@pytest.mark.parametrize("written", NAMES)
def test_types_have_the_bits_that_their_libraries_say(written: str) -> None:
    text = f"HloModule m\nENTRY e {{\nROOT p = {written}[3,5] parameter(0)\n}}\n"
    (shape,) = (
        instruction.shape
        for computation in decode_module(parse_text(text.encode())).proto.computations
        for instruction in computation.instructions
    )
    name = NAMES[written]
    assert shapes.first(shape) == (name, (3, 5))
    assert shapes.num_bytes(shape) == -(-15 * bits(name) // 8)


def test_no_type_is_left_out_here() -> None:
    """XLA's text of the types of one bit is read by newer versions only."""
    assert {name for name, _ in shapes.PRIMITIVES.values()} - set(NAMES.values()) == {
        "int1",
        "uint1",
    }
    assert shapes.PRIMITIVES[30] == ("int1", 1)
    assert shapes.PRIMITIVES[31] == ("uint1", 1)


@pytest.mark.parametrize(
    ("algorithm", "dtype", "products"),
    [
        ("dot_f16_f16_f16", "f16", 1),
        ("dot_f16_f16_f32", "f16", 1),
        ("dot_bf16_bf16_bf16", "bf16", 1),
        ("dot_bf16_bf16_f32", "bf16", 1),
        ("dot_bf16_bf16_f32_x3", "bf16", 3),
        ("dot_bf16_bf16_f32_x6", "bf16", 6),
        ("dot_bf16_bf16_f32_x9", "bf16", 9),
        ("dot_tf32_tf32_f32", "tf32", 1),
        ("dot_tf32_tf32_f32_x3", "tf32", 3),
        ("dot_f32_f32_f32", "f32", 1),
        ("dot_f64_f64_f64", "f64", 1),
    ],
)
def test_algorithms_say_what_is_multiplied(algorithm: str, dtype: str, products: int) -> None:
    """XLA's own text gives the number; a call of a library has the name in JSON."""
    numbers = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    expected = algorithm_type(dtype, products)
    assert row_of(f"f32[6,7] dot(x, w), {numbers}, algorithm={algorithm}").product == expected
    config = {
        "dot_dimension_numbers": {
            "lhs_contracting_dimensions": ["1"],
            "rhs_contracting_dimensions": ["0"],
        },
        "precision_config": {"algorithm": f"ALG_{algorithm.upper()}"},
    }
    call = f"backend_config={json.dumps({'gemm_backend_config': config})}"
    row = row_of(f'f32[6,7] custom-call(x, w), custom_call_target="__cublas$gemm", {call}')
    assert (row.product, row.dims) == (expected, (1, 6, 7, 20))
