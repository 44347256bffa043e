"""Indexing, embeddings and sorting are those of torch."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from flint.errors import FlintError
from flint.frontends.torch_ops.nn import embedding
from flint.frontends.torch_ops.registry import find_op
from flint.frontends.torch_ops.tensors import indexing, sorting
from tests.oracle.torch_op_cases import (
    Case,
    Comparison,
    bools,
    cases,
    exactly,
    ints,
    names_without_a_case,
    t,
)

GRAD = {"grad": True}
X = t(4, 5, 6)

COLUMNS = exactly([[1], [2]], "i64")
I3 = exactly([0, 3, -1], "i64")
DISTINCT = exactly([2, 0, 3], "i64")
AGAIN = exactly([2, 0, 2], "i64")
MASK = exactly([[True, False, True], [False, False, True]], "bool")
REDUCTIONS = ("sum", "prod", "mean", "amax", "amin")


def without_ties(*shape: int) -> object:
    """Integers in random order, so that maxima, order and places are unique."""
    count = int(torch.tensor(shape).prod())
    order = torch.randperm(count, generator=torch.Generator().manual_seed(count))
    return exactly(order.reshape(shape).tolist())


PUT = "aten::index_put"
INDEXED = [
    *(
        c
        for indices in (
            [I3],
            [None, I3],
            [None, None, exactly([[1, 5], [0, -2]], "i64")],
            [I3, None, exactly([0, 1, 2], "i64")],
            [COLUMNS, I3],
            [None, COLUMNS, I3],
            [I3, I3, I3],
            [exactly(2, "i64")],
        )
        for c in cases("aten::index.Tensor", X, indices, grad=True)
    ),
    *cases("aten::index.Tensor", X, [I3], over="bf16 i64 bool c64"),
    *cases("aten::index.Tensor", X, [ints(3, high=3, dtype="i32")]),
    *(
        c
        for add in (False, True)
        for c in (
            *cases(PUT, X, [DISTINCT], t(3, 5, 6), add, over="f32 bf16 i64", grad=True),
            *cases(PUT, X, [None, DISTINCT], t(6), add, grad=True),
            *cases(PUT, X, [DISTINCT, None, DISTINCT], t(3, 5), add, grad=True),
        )
    ),
    *cases("aten::index_put", X, [AGAIN], t(3, 5, 6), True, **GRAD),
    *cases("aten::_index_put_impl", X, [DISTINCT], t(5, 6), True),
    *cases("aten::index_put", bools(4, 3), [DISTINCT], exactly(True, "bool"), False),
    # masks: the values are the same wherever they hold
    *cases("aten::index_put", t(2, 3), [MASK], t(), over="f32 i64"),
    *cases("aten::index_put", t(2, 3), [MASK], t(1), True),
    *cases("aten::index_put", t(2, 3, 4), [MASK], t(4)),
    *cases("aten::index_put", t(2, 3, 4), [MASK], t(1, 4)),
    *cases("aten::index_put", t(5, 2, 3), [None, MASK], t()),
    *cases("aten::put", X, DISTINCT, t(3), False, **GRAD),
    *cases("aten::put", X, AGAIN, t(3), True),
]
SLICES = [
    *cases("aten::index_select", X, 1, ints(3, high=4), over="f32 bf16 i64", **GRAD),
    *cases("aten::index_select", X, -1, ints(3, high=4, dtype="i32")),
    *cases("aten::index_select", X, 0, exactly(2, "i64")),
    *cases("aten::index_select", t(), 0, exactly([0], "i64")),
    *(
        c
        for kind in ("prod", "mean", "amax", "amin")
        for own in (True, False)
        for c in cases("aten::index_reduce", t(4, 5), 0, AGAIN, t(3, 5), kind, include_self=own)
    ),
]
ALONG = [
    *cases("aten::gather", X, 1, ints(4, 2, 6, high=4), over="f32 bf16 i64", **GRAD),
    *cases("aten::gather", X, -1, ints(2, 5, 3, high=4), **GRAD),
    *cases("aten::gather", t(3, 7), 1, ints(3, 1, high=6), **GRAD),
    *cases("aten::gather", t(5), 0, exactly(3, "i64")),
    *cases("aten::gather", t(), 0, exactly([0, 0], "i64")),
    *(
        c
        for own, index in ((True, AGAIN), (False, exactly([1, 0, 1], "i64")))
        for kind in REDUCTIONS
        for c in cases(
            "aten::scatter_reduce.two", t(4), 0, index, t(3), kind, include_self=own, over="f32 i64"
        )
    ),
    *cases("aten::scatter_reduce.two", t(4, 3), 0, ints(2, 3, high=3), t(2, 4), "amax"),
    *cases("aten::scatter_reduce.two", t(4, 3), 0, ints(2, 3, high=3), t(2, 3), "sum", **GRAD),
    *cases("aten::scatter_add", X, 1, ints(4, 7, 6, high=4), t(4, 7, 6), over="f32 bf16", **GRAD),
    *cases("aten::scatter_add", X, 1, ints(2, 7, 6, high=4), t(3, 8, 6)),
    *cases("aten::scatter_add", X, 1, ints(4, 7, 6, high=4), t(4, 7, 6), over="i64"),
    *cases("aten::scatter.src", t(4, 3), 0, exactly([[2, 0, 1]], "i64"), t(2, 3), over="f32 i64"),
    *cases("aten::scatter.src", t(4, 3), 0, exactly([[2, 0, 1]], "i64"), t(1, 3), **GRAD),
    *cases("aten::scatter.src", t(), 0, exactly(0, "i64"), t()),
    *cases("aten::scatter.value", t(4, 3), 1, ints(4, 2, high=2), 1.5, over="f32 bf16", **GRAD),
    *cases("aten::scatter.value", t(4, 3), 1, ints(4, 1, high=2), 1, over="i64 bool"),
    *cases("aten::scatter.value", t(4, 3), 1, ints(0, high=2), 1),
    *(
        c
        for kind in ("add", "multiply")
        for c in (
            *cases("aten::scatter.reduce", t(4), 0, AGAIN, t(3), reduce=kind),
            *cases("aten::scatter.value_reduce", t(4), 0, AGAIN, 2.5, reduce=kind),
        )
    ),
]
MASKS = [
    *cases("aten::masked_scatter", t(2, 3), MASK, t(5), over="f32 i64", **GRAD),
    *cases("aten::masked_scatter", t(2, 3), exactly([True, False, True], "bool"), t(2, 2)),
]
TABLES = [
    *cases("aten::embedding", t(7, 4), ints(2, 3, high=6), over="f32 bf16", **GRAD),
    *cases("aten::embedding", t(7, 4), ints(2, 3, high=6, dtype="i32"), 2),
    *(
        c
        for padding, scaled in ((-1, False), (2, False), (-1, True))
        for c in cases(
            "aten::embedding_dense_backward",
            t(2, 3, 4),
            exactly([[1, 2, 5], [2, 2, 0]], "i64"),
            7,
            padding,
            scaled,
            over="f32 bf16",
        )
    ),
]
NUMBERS = exactly([3, 1, 4, 1, 5, 2, 6], "i64")
OFFSETS = exactly([0, 2, 2, 5], "i64")
WITH_LAST = exactly([0, 2, 2, 5, 7], "i64")


def bags(weight, indices, offsets, scale, mode, sparse, weights, last, padding):  # type: ignore[no-untyped-def]
    """PyTorch's bags on the CPU; what the gradients need in the shapes of accelerators."""
    out, *rest = torch.ops.aten._embedding_bag(
        weight, indices, offsets, scale, mode, sparse, weights, last, padding
    )
    starts = offsets[: len(offsets) - last]
    bag_of = torch.searchsorted(starts, torch.arange(len(indices)), right=True) - 1
    counted = (indices != padding).long()
    sizes = torch.zeros(len(offsets), dtype=torch.long).index_add(0, bag_of, counted)
    return out, bag_of, sizes, rest[2] if mode == 2 else torch.zeros(0, dtype=torch.long)


def bag_gradient(grad, indices, offsets, bag_of, sizes, places, *rest):  # type: ignore[no-untyped-def]
    """PyTorch's gradient through its own bags, as the cases of all modes have no places."""
    rows, scaled, mode, _, weights, padding = rest
    table = torch.zeros(rows, grad.shape[1], dtype=grad.dtype)
    if mode == 2:
        for bag, places_of_bag in enumerate(places.tolist()):
            for column, row in enumerate(places_of_bag):
                table[row, column] += grad[bag, column] if sizes[bag] else 0
        return table
    shared = grad / sizes.clamp(min=1).unsqueeze(1) if mode == 1 else grad
    rows_of = shared[bag_of] * (1 if weights is None else weights.unsqueeze(1))
    rows_of = rows_of * (indices != padding).unsqueeze(1)
    if scaled:
        rows_of = rows_of / torch.bincount(indices)[indices].unsqueeze(1)
    return table.index_add(0, indices, rows_of.to(grad.dtype))


BAG_OF = exactly([0, 0, 2, 2, 2, 3, 3], "i64")
SIZES = exactly([2, 0, 3, 2], "i64")
PLACES = exactly([[3, 1, 3], [-1, -1, -1], [4, 5, 1], [2, 2, 6]], "i64")


def dense_bag_gradient(grad, indices, *rest):  # type: ignore[no-untyped-def]
    *sizes, rows, scaled, mode, weights, padding = rest
    return bag_gradient(grad, indices, None, *sizes, rows, scaled, mode, False, weights, padding)


BAGS = [
    *(
        c
        for mode in (0, 1, 2)
        for offsets, last in ((OFFSETS, False), (WITH_LAST, True))
        for padding in (-1, 1)
        for name in ("aten::_embedding_bag", "aten::_embedding_bag_forward_only")
        for c in cases(
            name,
            t(7, 3),
            NUMBERS,
            offsets,
            False,
            mode,
            False,
            None,
            last,
            padding,
            reference=bags,
            grad=padding < 0 and mode < 2,
        )
    ),
    *cases(
        "aten::_embedding_bag",
        t(7, 3),
        NUMBERS,
        OFFSETS,
        False,
        0,
        False,
        t(7),
        False,
        -1,
        reference=bags,
        grad=True,
    ),
    *cases(
        "aten::_embedding_bag",
        t(7, 3),
        NUMBERS,
        exactly([0], "i64"),
        False,
        1,
        False,
        None,
        False,
        -1,
        reference=bags,
    ),
    *(
        c
        for mode, scaled, weights, padding in (
            (0, False, None, -1),
            (0, False, t(7), -1),
            (0, True, None, -1),
            (1, False, None, -1),
            (1, False, None, 1),
            (2, False, None, -1),
        )
        for c in (
            *cases(
                "aten::_embedding_bag_dense_backward",
                t(4, 3),
                NUMBERS,
                BAG_OF,
                SIZES,
                PLACES,
                7,
                scaled,
                mode,
                weights,
                padding,
                reference=dense_bag_gradient,
                over="f32 bf16",
            ),
            *cases(
                "aten::_embedding_bag_backward",
                t(4, 3),
                NUMBERS,
                OFFSETS,
                BAG_OF,
                SIZES,
                PLACES,
                7,
                scaled,
                mode,
                False,
                weights,
                padding,
                reference=bag_gradient,
            ),
        )
    ),
    *(
        c
        for padding in (-1, 1)
        for c in cases(
            "aten::_embedding_bag_per_sample_weights_backward",
            t(4, 3),
            t(7, 3),
            NUMBERS,
            OFFSETS,
            BAG_OF,
            0,
            padding,
        )
    ),
]
U = without_ties(3, 5)
SORTED = exactly([[1, 3, 5, 7], [2, 4, 6, 8]])
ORDER = [
    *cases("aten::sort", U, over="f32 f64 i64 i32 u8"),
    *cases("aten::sort", U, 0, True, over="f32 i64 u8"),
    *cases("aten::sort", t(3, 5), grad=True),
    *cases("aten::sort", bools(1)),
    *cases("aten::sort", t()),
    *cases("aten::sort.stable", exactly([2, 1, 2, 1, 3]), stable=True, over="f32 i64"),
    *cases("aten::sort.stable", exactly([2, 1, 2, 1, 3]), stable=True, descending=True, dim=0),
    *cases("aten::topk", U, 2, over="f32 bf16 i64"),
    *cases("aten::topk", t(3, 5), 2, 0, grad=True),
    *cases("aten::topk", U, 3, -1, False, over="f32 i64 u8"),
    *cases("aten::topk", t(), 1),
    *cases("aten::kthvalue", U, 2, over="f32 i64"),
    *cases("aten::kthvalue", U, 2, 0, True),
    *cases("aten::kthvalue", t(), 1),
    *cases("aten::median.dim", U, 1, over="f32 i64"),
    *cases("aten::median.dim", without_ties(3, 4), -1, True),
    *cases("aten::median.dim", t(), 0),
    *cases("aten::median", U, over="f32 i64"),
    *cases("aten::searchsorted.Tensor", SORTED, exactly([[3, 0], [9, 5]]), over="f32 i64"),
    *cases("aten::searchsorted.Tensor", SORTED, exactly([[3, 0], [9, 4]]), right=True),
    *cases("aten::searchsorted.Tensor", exactly([1, 3, 5]), t(2, 3), out_int32=True),
    *cases("aten::searchsorted.Tensor", exactly([1, 3, 5]), exactly([3, 5]), side="right"),
    *cases(
        "aten::searchsorted.Tensor",
        exactly([[5, 1, 3]]),
        exactly([[3]]),
        sorter=exactly([[1, 2, 0]], "i64"),
    ),
    *cases("aten::searchsorted.Scalar", exactly([1, 3, 5]), 3),
    *cases("aten::bucketize.Tensor", t(2, 3), exactly([-1, 0, 1]), over="f32 i64"),
    *cases("aten::bucketize.Scalar", 2, exactly([-1, 0, 2]), right=True),
]
CASES = [*INDEXED, *SLICES, *ALONG, *MASKS, *TABLES, *BAGS, *ORDER]
REFUSED = {
    "aten::masked_select.default",
    "aten::nonzero.default",
    "aten::unique_consecutive.default",
    "aten::_unique2.default",
    "aten::unique_dim.default",
    "aten::repeat_interleave.Tensor",
}
COMPARISON = Comparison(CASES)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_torch(case: Case) -> None:
    COMPARISON.check(case)


def test_every_operator_has_a_case() -> None:
    assert set(names_without_a_case(CASES, indexing, embedding, sorting)) == REFUSED


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_results_of_unknown_size_are_refused(name: str) -> None:
    function = find_op(name)
    assert function is not None
    with pytest.raises(FlintError, match="depends on numbers") as refused:
        function(torch.zeros(3))
    assert refused.value.code == "FL228"
