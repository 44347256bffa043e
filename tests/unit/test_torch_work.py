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
