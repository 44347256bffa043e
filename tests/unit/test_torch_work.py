"""Work of recorded PyTorch operators, from shapes alone."""

from __future__ import annotations

import pytest

from flint.frontends.torch_world.work import work_of
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
