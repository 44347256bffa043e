"""Work of recorded PyTorch operators, from shapes alone."""

from __future__ import annotations

import pytest

from flint.frontends.torch_world.program.work import work_of
from tests.recordings import event, tensor, update


def t(*shape: int, dtype: str = "f32", storage: int = 0):
    return tensor(storage, *shape, dtype=dtype)


@pytest.mark.parametrize(
    ("op", "inputs", "output", "flops", "dims"),
    [
        ("aten.mm", [t(4, 3), t(3, 5)], t(4, 5, storage=9), 120, (1, 4, 5, 3)),
        ("aten.addmm", [t(5), t(4, 3), t(3, 5)], t(4, 5, storage=9), 140, (1, 4, 5, 3)),
        ("aten.bmm", [t(2, 4, 3), t(2, 3, 5)], t(2, 4, 5, storage=9), 240, (2, 4, 5, 3)),
        ("aten.mv", [t(4, 3), t(3)], t(4, storage=9), 24, (1, 4, 1, 3)),
        ("aten.linear", [t(2, 4, 3), t(5, 3)], t(2, 4, 5, storage=9), 240, (1, 8, 5, 3)),
        ("aten._grouped_mm", [t(8, 3), t(2, 3, 5), t(2)], t(8, 5, storage=9), 240, (1, 8, 5, 3)),
        ("aten._grouped_mm", [t(3, 8), t(8, 5), t(2)], t(2, 3, 5, storage=9), 240, (1, 3, 5, 8)),
    ],
)
def test_products_of_matrices(op, inputs, output, flops, dims):
    work = work_of(event(op, inputs, [output]))
    assert (work.flops, work.dims) == (flops, dims)


def test_grouped_products_say_how_many_groups_they_have():
    """Rows of each group with its matrix, or a result for each group."""
    rows = work_of(event("aten._grouped_mm", [t(8, 3), t(2, 3, 5), t(2)], [t(8, 5, storage=9)]))
    sums = work_of(event("aten._grouped_mm", [t(3, 8), t(8, 5), t(2)], [t(2, 3, 5, storage=9)]))
    batched = work_of(event("aten._grouped_mm", [t(2, 4, 3), t(2, 3, 5)], [t(2, 4, 5)]))
    assert [w.product for w in (rows, sums, batched)] == ["f32:groups2", "f32:sums2", "f32"]


@pytest.mark.parametrize(
    ("suffix", "extra", "products"), [("", [], 2), ("_backward", [t(2, 4, 8, 16)], 5)]
)
def test_attention_is_its_products_over_the_whole_square(suffix, extra, products):
    q, kv = t(2, 4, 8, 16), t(2, 2, 8, 16)  # grouped queries: keys have fewer heads
    op = f"aten._scaled_dot_product_flash_attention{suffix}"
    work = work_of(event(op, [*extra, q, kv, kv], [t(2, 4, 8, 16, storage=9)]))
    assert work.flops == products * 2 * (2 * 4 * 8) * 8 * 16
    assert work.dims == (1, 64, 8, 16)


def test_convolution_forward_and_backward_count_the_same_products():
    x, w, y = t(2, 3, 8, 8), t(6, 3, 3, 3), t(2, 6, 8, 8, storage=9)
    forward = work_of(event("aten.convolution", [x, w], [y], attributes={"groups": 1}))
    assert forward.flops == 2 * (2 * 8 * 8) * 6 * 27
    assert forward.dims == (1, 128, 6, 27)
    mask = {"output_mask": [False, True, False]}
    one = work_of(event("aten.convolution_backward", [y, x, w], [w], attributes=mask))
    both = work_of(event("aten.convolution_backward", [y, x, w], [x, w]))
    assert (one.flops, both.flops) == (forward.flops, 2 * forward.flops)


def test_transposed_convolution_slides_over_its_input():
    x, w, y = t(1, 4, 5, 5), t(4, 2, 3, 3), t(1, 2, 7, 7, storage=9)
    work = work_of(event("aten.convolution", [x, w], [y], attributes={"transposed": True}))
    assert work.flops == 2 * 25 * 4 * 18


def test_elementwise_counts_what_it_stores():
    y = t(4, 5, storage=9)
    assert work_of(event("aten.add.Tensor", [t(4, 5), t(5)], [y])).flops == 20
    assert work_of(update("aten.mul_.Scalar", [t(4, 5)])).flops == 20
    assert work_of(event("aten.silu", [t(4, 5)], [y])).flops == 40
    assert work_of(event("aten._to_copy", [t(4, 5)], [y])).flops == 0


def test_lists_of_tensors_count_together():
    a, b = t(3, storage=1), t(5, storage=2)
    event_ = event("aten._foreach_add_.Scalar", [a, b], [], writes=(1, 2))
    assert work_of(event_).flops == 8
    norms = [t(storage=3), t(storage=4)]
    assert work_of(event("aten._foreach_norm.Scalar", [a, b], norms)).flops == 16


def test_reductions_and_rows():
    y = t(4, storage=9)
    total = work_of(event("aten.sum.dim_IntList", [t(4, 5)], [y]))
    assert (total.flops, total.dims) == (20, (1, 4, 1, 5))
    softmax = work_of(event("aten._softmax", [t(4, 5)], [t(4, 5, storage=9)]))
    assert (softmax.flops, softmax.dims) == (100, (1, 4, 1, 5))


def test_lookups_read_rows_and_not_tables():
    out = t(7, 16, storage=9)
    lookup = work_of(event("aten.embedding", [t(1000, 16), t(7, dtype="i64")], [out]))
    assert (lookup.flops, lookup.operand_bytes) == (0, 7 * 16 * 4 + 7 * 8)
    taken = work_of(event("aten.index.Tensor", [t(1000, 16), t(7, dtype="i64")], [out]))
    assert taken.operand_bytes == 7 * 16 * 4 + 7 * 8


def test_scatter_touches_its_updates():
    table, rows, update_ = t(1000, 16), t(7, dtype="i64", storage=1), t(7, 16, storage=2)
    added = work_of(update("aten.index_add_", [table, rows, update_]))
    assert (added.flops, added.result_bytes) == (112, 448)
    assert added.operand_bytes == 448 * 2 + 56
    put = work_of(update("aten.index_put_", [table, rows, update_]))
    assert (put.flops, put.operand_bytes) == (0, 448 + 56)


def test_fused_optimizer_counts_parameters_once():
    lists = [t(6, storage=s) for s in range(4)] + [t(storage=5)]
    assert work_of(event("aten._fused_adamw_", lists, writes=(0, 2, 3))).flops == 14 * 6


def test_unknown_operators_are_unpriced_and_never_free():
    assert work_of(event("mylib.mystery", [t(4)], [t(4, storage=9)])).unpriced
    assert work_of(event("aten._brand_new", [t(4)], [t(4, storage=9)])).unpriced
    assert not work_of(event("aten.cat", [t(4)], [t(4, storage=9)])).unpriced


# operator, inputs, outputs, attributes: FLOPs and dims
COUNTED = [
    ("aten.dot", [t(6), t(6)], [t()], {}, 12, (1, 1, 1, 6)),
    ("aten.baddbmm", [t(2, 4, 5), t(2, 4, 3), t(2, 3, 5)], [t(2, 4, 5)], {}, 280, (2, 4, 5, 3)),
    ("aten.addmv", [t(4), t(4, 3), t(3)], [t(4)], {}, 28, (1, 4, 1, 3)),
    ("aten.matmul", [t(2, 4, 3), t(3, 5)], [t(2, 4, 5)], {}, 240, (1, 8, 5, 3)),
    ("aten.linear", [t(2, 4, 3), t(5, 3), t(5)], [t(2, 4, 5)], {}, 280, (1, 8, 5, 3)),
    ("aten.linear", [t(2, 4, 1), t(5, 1)], [t(2, 4, 5)], {}, 80, (1, 8, 5, 1)),
    ("aten.linear", [t(2, 3), t(3)], [t(2)], {}, 12, (1, 2, 1, 3)),
    ("aten._grouped_mm", [t(2, 4, 3), t(2, 3, 5)], [t(2, 4, 5)], {}, 240, (2, 4, 5, 3)),
    (
        "aten.convolution", [t(2, 4, 8), t(6, 2, 3), t(6)], [t(2, 6, 6)], {"groups": 2},
        2 * 12 * 6 * 6 + 72, (2, 12, 3, 6),
    ),
    (
        "aten.convolution_backward", [t(2, 6, 6), t(2, 4, 8), t(6, 2, 3)],
        [t(2, 4, 8), t(6, 2, 3), t(6)], {"groups": 2}, 2 * 2 * 12 * 6 * 6 + 72, (2, 12, 3, 6),
    ),
    (
        "aten.convolution_backward", [t(2, 6, 6), t(2, 4, 8), t(6, 4, 3)], [t(2, 4, 8)],
        {"output_mask": [True, False, False]}, 2 * 12 * 6 * 12, (1, 12, 6, 12),
    ),
    (
        "aten.convolution_backward", [t(2, 6, 6), t(2, 4, 8), t(6, 4, 3)], [t(6)],
        {"output_mask": [False, False, True]}, 72, (1, 12, 6, 12),
    ),
    (  # each of the 10 positions of the input meets the weight's 6 features
        "aten.convolution_backward", [t(2, 3, 7), t(2, 6, 5), t(6, 3, 3)], [t(2, 6, 5)],
        {"transposed": True, "output_mask": [True, False, False]},
        2 * 10 * 6 * 9, (1, 10, 6, 9),
    ),
    (  # values are wider than keys
        "aten._scaled_dot_product_cudnn_attention", [t(2, 4, 8, 16), t(2, 2, 6, 16), t(2, 2, 6, 24)],
        [t(2, 4, 8, 24)], {}, 2 * 64 * 6 * 40, (1, 64, 6, 16),
    ),
    (
        "aten._scaled_dot_product_cudnn_attention_backward",
        [t(2, 4, 8, 24), t(2, 4, 8, 16), t(2, 2, 6, 16), t(2, 2, 6, 24)],
        [t(2, 4, 8, 16)], {}, 2 * 64 * 6 * (3 * 16 + 2 * 24), (1, 64, 6, 16),
    ),
    (
        "aten._flash_attention_forward", [t(2, 8, 4, 16), t(2, 6, 2, 16), t(2, 6, 2, 16)],
        [t(2, 8, 4, 16)], {}, 2 * 64 * 6 * 32, (1, 64, 6, 16),
    ),
    (  # three sequences packed into 20 tokens, of at most 9 keys
        "aten._flash_attention_forward", [t(20, 4, 16), t(20, 2, 16), t(20, 2, 16)],
        [t(20, 4, 16)], {"max_k": 9}, 2 * 80 * 9 * 32, (1, 80, 9, 16),
    ),
    (
        "aten._efficient_attention_backward",
        [t(2, 8, 4, 16), t(2, 8, 4, 16), t(2, 6, 2, 16), t(2, 6, 2, 16)],
        [t(2, 8, 4, 16)], {"max_seqlen_k": 7}, 2 * 64 * 7 * 80, (1, 64, 7, 16),
    ),
    ("aten.sum", [t(4, 5)], [t()], {}, 20, (1, 1, 1, 20)),
    ("aten.aminmax", [t(4, 5)], [t(5), t(5)], {}, 40, (1, 5, 1, 4)),
    ("aten.var_mean", [t(4, 5)], [t(4), t(4)], {}, 60, (1, 4, 1, 5)),
    ("aten.logsumexp", [t(4, 5)], [t(4)], {}, 80, (1, 4, 1, 5)),
    ("aten.huber_loss", [t(4, 5), t(4, 5)], [t()], {}, 100, (1, 1, 1, 20)),
    ("aten.binary_cross_entropy", [t(4, 5), t(4, 5)], [t()], {}, 140, (1, 1, 1, 20)),
    ("aten._softmax", [t(4, 5, 6)], [t(4, 5, 6)], {"dim": 1}, 600, (1, 24, 1, 5)),
    ("aten._softmax", [t(4, 5, 6)], [t(4, 5, 6)], {"dim": -3}, 600, (1, 30, 1, 4)),
    ("aten._softmax_backward_data", [t(4, 5), t(4, 5)], [t(4, 5)], {"dim": 0}, 80, (1, 5, 1, 4)),
    ("aten._log_softmax", [t()], [t()], {"dim": 0}, 5, (1, 1, 1, 1)),
    (
        "aten.native_layer_norm", [t(2, 3, 4, 5), t(4, 5), t(4, 5)], [t(2, 3, 4, 5)],
        {"normalized_shape": [4, 5]}, 7 * 120, (1, 6, 1, 20),
    ),
    (
        "aten.native_layer_norm_backward", [t(2, 3, 4), t(2, 3, 4)], [t(2, 3, 4)],
        {"normalized_shape": [4]}, 14 * 24, (1, 6, 1, 4),
    ),
    ("aten._fused_rms_norm", [t(2, 3, 4), t(4)], [t(2, 3, 4)], {}, 96, (1, 6, 1, 4)),
    ("aten._fused_rms_norm_backward", [t(2, 3, 4)], [t(2, 3, 4)], {}, 240, (1, 6, 1, 4)),
    ("aten.native_batch_norm", [t(2, 3, 4), t(3)], [t(2, 3, 4)], {}, 168, (1, 3, 1, 8)),
    ("aten.native_batch_norm_backward", [t(2, 3, 4)], [t(2, 3, 4)], {}, 336, (1, 3, 1, 8)),
    ("aten.native_batch_norm", [t(6)], [t(6)], {}, 42, (1, 1, 1, 6)),
    ("aten.sort", [t(4, 5)], [t(4, 5)], {"dim": 0}, 40, (1, 5, 1, 4)),
    ("aten.sort", [t(4, 5)], [t(4, 5)], {}, 60, (1, 4, 1, 5)),
    ("aten.median", [t(4, 5)], [t(4)], {"dim": 1}, 60, (1, 4, 1, 5)),
    ("aten.topk", [t(4, 100)], [t(4, 6), t(4, 6)], {}, 400 * 3, (1, 4, 1, 100)),
    ("aten.topk", [t(8, 5)], [t(3, 5), t(3, 5)], {"dim": 0}, 80, (1, 5, 1, 8)),
    ("aten.topk", [t(6, 1)], [t(6, 1), t(6, 1)], {}, 6, (1, 6, 1, 1)),
    ("aten.topk", [t(6, 0)], [t(6, 0), t(6, 0)], {}, 0, (1, 0, 1, 1)),
    ("aten.sort", [t(6, 0)], [t(6, 0)], {}, 0, (1, 0, 1, 1)),
    ("aten.sum", [t(6, 0)], [t(6)], {}, 0, (1, 6, 1, 1)),
    ("aten.sum", [t(0, 6)], [t(0)], {"dim": 1}, 0, (1, 1, 1, 1)),
    ("aten.linear", [t(2, 4, 0), t(5, 0)], [t(2, 4, 5)], {}, 0, (1, 0, 5, 0)),
    ("aten.cumsum", [t(4, 5)], [t(4, 5)], {"dim": 0}, 20, (0, 0, 0, 0)),
    ("aten.bincount", [t(20), t(20)], [t(7)], {}, 20, (0, 0, 0, 0)),
    ("aten.logcumsumexp", [t(4, 5)], [t(4, 5)], {}, 80, (0, 0, 0, 0)),
    ("aten.searchsorted", [t(9), t(4, 5)], [t(4, 5)], {}, 20 * 4, (0, 0, 0, 0)),
    ("aten.bucketize", [t(4, 5), t(1)], [t(4, 5)], {}, 20, (0, 0, 0, 0)),
    ("aten._fft_c2c", [t(2, 8, 16)], [t(2, 8, 16)], {"dim": [2]}, 5 * 256 * 4, (1, 16, 1, 16)),
    ("aten._fft_c2c", [t(2, 8, 16)], [t(2, 8, 16)], {"dim": [1, 2]}, 5 * 256 * 7, (8, 2, 1, 16)),
    ("aten._fft_r2c", [t(2, 8, 16)], [t(2, 8, 9)], {"dim": [2]}, 5 * 256 * 4, (1, 16, 1, 16)),
    ("aten._fft_c2r", [t(2, 8, 9)], [t(2, 8, 16)], {}, 5 * 256 * 4, (1, 16, 1, 16)),
    ("aten.native_dropout", [t(4, 5)], [t(4, 5)], {}, 260, (0, 0, 0, 0)),
    ("aten.native_dropout_backward", [t(4, 5), t(4, 5)], [t(4, 5)], {}, 40, (0, 0, 0, 0)),
    ("aten.embedding_dense_backward", [t(7, 16), t(7)], [t(9, 16)], {}, 112, (1, 7, 1, 16)),
    (
        "aten.max_pool2d_with_indices", [t(2, 3, 8, 8)], [t(2, 3, 4, 4)],
        {"kernel_size": [2, 3]}, 96 * 6, (0, 0, 0, 0),
    ),
    ("aten.avg_pool2d", [t(2, 3, 8, 8)], [t(2, 3, 4, 4)], {"kernel_size": 2}, 384, (0, 0, 0, 0)),
    (
        "aten.avg_pool2d_backward", [t(2, 3, 4, 4), t(2, 3, 8, 8)], [t(2, 3, 8, 8)],
        {"kernel_size": [2, 2]}, 384, (0, 0, 0, 0),
    ),
    ("aten._adaptive_avg_pool2d", [t(2, 3, 8, 8)], [t(2, 3, 1, 1)], {}, 384, (0, 0, 0, 0)),
    (
        "aten.upsample_bilinear2d_backward", [t(2, 8, 8)], [t(2, 4, 4)], {}, 11 * 128,
        (0, 0, 0, 0),
    ),
    ("aten.gelu", [t(4, 5)], [t(4, 5)], {}, 100, (0, 0, 0, 0)),
    ("aten.silu_backward", [t(4, 5), t(4, 5)], [t(4, 5)], {}, 120, (0, 0, 0, 0)),
    ("aten.addcmul", [t(4, 5), t(4, 5), t(4, 5)], [t(4, 5)], {}, 60, (0, 0, 0, 0)),
    ("aten._amp_update_scale", [t(), t()], [t()], {}, 2, (0, 0, 0, 0)),
    ("fsdp.all_gather_copy_in", [t(4, 5)], [t(4, 5)], {}, 0, (0, 0, 0, 0)),
]  # fmt: skip


@pytest.mark.parametrize(("op", "inputs", "outputs", "attributes", "flops", "dims"), COUNTED)
def test_work_of_one_operator(op, inputs, outputs, attributes, flops, dims):
    outputs = [tensor(90 + n, *o.shape, dtype=o.dtype) for n, o in enumerate(outputs)]
    work = work_of(event(op, inputs, outputs, attributes=attributes))
    assert (work.flops, work.dims, work.unpriced) == (flops, dims, False)


@pytest.mark.parametrize(
    ("op", "lists", "attributes", "per_element"),
    [
        ("aten._fused_adamw_", 4, {}, 14),
        ("aten._fused_adam_", 4, {}, 13),
        ("aten._fused_adam_", 5, {"amsgrad": True}, 13),
        ("aten._fused_adamw_", 5, {"amsgrad": True}, 14),
        ("aten._fused_adagrad_", 3, {}, 6),
        ("aten._fused_sgd_", 2, {}, 2),
        ("aten._fused_sgd_", 3, {"momentum": 0.9}, 4),
    ],
)
def test_optimizers_count_each_parameter_once(op, lists, attributes, per_element):
    """Two parameters of 6 and 10 elements, with gradients, state and steps."""
    given = [t(n, storage=s) for s in range(lists) for n in (6, 10)] + [
        t(storage=50),
        t(storage=51),
    ]
    work = work_of(event(op, given, writes=(0,), attributes=attributes))
    assert work.flops == per_element * 16


I64 = "i64"
# operator, inputs, outputs, fields: FLOPs, bytes read and bytes written
MOVED = [
    ("aten.embedding", [t(9, 16), t(7, dtype=I64)], [t(7, 16)], {}, (0, 448 + 56, None)),
    (
        "aten._embedding_bag", [t(9, 16), t(7, dtype=I64), t(3, dtype=I64)], [t(3, 16)], {},
        (112, 7 * 64 + 56 + 24, None),
    ),
    (
        "aten.index", [t(9, 16), t(7, dtype=I64), t(7, dtype=I64)], [t(7)], {},
        (0, 28 + 112, None),
    ),
    ("aten.gather", [t(9, 16), t(9, 2, dtype=I64)], [t(9, 2)], {}, (0, 72 + 144, None)),
    (  # a value for each of 7 rows
        "aten.index_put_", [t(9, 16), t(7, dtype=I64), t(storage=2)], [t(9, 16)], {"writes": (0,)},
        (0, 56 + 4, 448),
    ),
    (
        "aten.index_put_", [t(9, 16), t(7, dtype=I64), t(7, 16, storage=2)], [t(9, 16)],
        {"writes": (0,), "attributes": {"accumulate": True}}, (112, 56 + 448 + 448, 448),
    ),
    (  # a mask may name every element
        "aten.index_put_", [t(9, 16), t(9, 16, dtype="i1"), t(storage=2)], [t(9, 16)],
        {"writes": (0,)}, (0, 144 + 4, 576),
    ),
    (
        "aten.scatter_add_", [t(9, 16), t(3, 16, dtype=I64), t(3, 16, storage=2)], [t(9, 16)],
        {"writes": (0,)}, (48, 384 + 192 + 192, 192),
    ),
    (
        "aten.scatter_reduce_", [t(9, 16), t(3, 16, dtype=I64), t(3, 16, storage=2)], [t(9, 16)],
        {"writes": (0,)}, (48, 384 + 192 + 192, 192),
    ),
    (  # one number for all of them
        "aten.scatter_", [t(9, 16), t(3, 16, dtype=I64)], [t(9, 16)], {"writes": (0,)},
        (0, 384, 192),
    ),
    (  # into a copy: all of it is written
        "aten.scatter_add", [t(9, 16), t(3, 16, dtype=I64), t(3, 16, storage=2)],
        [t(9, 16, storage=9)], {}, (48, None, None),
    ),
    ("aten.rand", [], [t(4, 5, storage=9)], {}, (200, 0, None)),
    ("aten.uniform_", [t(4, 5, dtype="bf16")], [t(4, 5, dtype="bf16")], {"writes": (0,)}, (100, 0, None)),
    (
        "aten.nll_loss_forward", [t(7, 100), t(7, dtype=I64)], [t(), t()], {},
        (7, 7 * 4 + 56, None),
    ),
    (
        "aten.nll_loss_backward", [t(), t(7, 100), t(7, dtype=I64)], [t(7, 100)], {},
        (7, 0, None),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("op", "inputs", "outputs", "fields", "expected"), MOVED)
def test_bytes_of_what_reads_or_writes_parts(op, inputs, outputs, fields, expected):
    outputs = [o if o.storage or fields.get("writes") else tensor(90, *o.shape) for o in outputs]
    work = work_of(event(op, inputs, outputs, **fields))
    assert (work.flops, work.operand_bytes, work.result_bytes) == expected
    assert work.in_place == (expected[2] is not None)


def _record(function):
    """The operators of `function` on meta tensors as events, and PyTorch's own count of each."""
    torch = pytest.importorskip("torch")
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves
    from torch.utils.flop_counter import flop_registry

    found = []

    def seen(values):
        tensors = [v for v in tree_leaves(values) if isinstance(v, torch.Tensor)]
        return [tensor(id(x.untyped_storage()), *x.shape) for x in tensors]

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            kwargs = kwargs or {}
            out = func(*args, **kwargs)
            names = [a.name for a in func._schema.arguments]
            plain = {**dict(zip(names, args, strict=False)), **kwargs}
            attributes = {n: v for n, v in plain.items() if not isinstance(v, torch.Tensor)}
            if func._overloadpacket in flop_registry:
                count = flop_registry[func._overloadpacket]
                theirs = count(*args, **kwargs, out_val=out)
                e = event(str(func), seen((args, kwargs)), seen(out), attributes=attributes)
                found.append((e, theirs))
            return out

    with Mode(), torch.device("meta"):
        function(torch)
    assert found
    return found


def _products(torch):
    a, b = torch.empty(4, 6), torch.empty(6, 5)
    torch.mm(a, b)
    torch.bmm(torch.empty(2, 4, 6), torch.empty(2, 6, 5))
    x = torch.empty(2, 7, 6, requires_grad=True)
    torch.nn.functional.linear(x, torch.empty(3, 6, requires_grad=True)).sum().backward()


def _convolutions(torch):
    for groups, transposed in ((1, False), (2, False), (1, True), (2, True)):
        make = torch.nn.ConvTranspose2d if transposed else torch.nn.Conv2d
        layer = make(4, 6, 3, stride=2, padding=1, groups=groups, bias=False)
        data = torch.empty(2, 4, 9, 9, requires_grad=True)
        out = layer(data)
        if groups == 1:  # PyTorch's counter forgets the groups of a weight's gradient
            out.sum().backward()


def _attentions(torch):
    q = torch.empty(2, 4, 8, 16, requires_grad=True)
    flash = torch.ops.aten._scaled_dot_product_flash_attention
    flash(q, q, q, is_causal=True)[0].sum().backward()
    efficient = torch.ops.aten._scaled_dot_product_efficient_attention
    efficient(q, q, q, None, True)[0].sum().backward()


@pytest.mark.parametrize("function", [_products, _convolutions, _attentions])
def test_products_count_what_pytorch_counts(function):
    for e, theirs in _record(function):
        assert work_of(e).flops == theirs, e.op


@pytest.mark.parametrize(
    ("op", "inputs", "outputs", "attributes", "rows", "row"),
    [
        ("aten.embedding", [t(9, 16), t(7, dtype=I64)], [t(7, 16)], {}, 7, 16),
        ("aten.index.Tensor", [t(9, 4, 16), t(7, dtype=I64)], [t(7, 4, 16, storage=9)], {}, 7, 64),
        ("aten.index_select", [t(9, 4, 16), t(2, dtype=I64)], [t(9, 2, 16, storage=9)], {"dim": 1}, 18, 16),
        ("aten.gather", [t(9, 16), t(9, 2, dtype=I64)], [t(9, 2, storage=9)], {"dim": 1}, 18, 1),
        (
            "aten.index_put_", [t(9, 4, 16), t(7, dtype=I64), t(7, 4, 16, storage=2)],
            [t(9, 4, 16)], {}, 7, 64,
        ),
        (
            "aten.index_add_", [t(9, 4, 16), t(2, dtype=I64), t(9, 2, 16, storage=2)],
            [t(9, 4, 16)], {"dim": -2}, 18, 16,
        ),
        (
            "aten.scatter_add_", [t(9, 16), t(3, 16, dtype=I64), t(3, 16, storage=2)],
            [t(9, 16)], {"dim": 0}, 48, 1,
        ),
    ],
)  # fmt: skip
def test_looked_up_rows_and_how_long_they_are(op, inputs, outputs, attributes, rows, row) -> None:
    work = work_of(event(op, inputs, outputs, attributes=attributes))
    assert work.dims == (1, rows, 1, row)
