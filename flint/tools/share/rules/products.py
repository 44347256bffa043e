"""Rules of products of matrices, attention and reductions: sizes, operands, work."""

from __future__ import annotations

import re

import numpy as np

from flint.ir.arrays import Mask
from flint.ir.dims import AttentionDims, ProductDims, ReductionDims
from flint.ir.op_class import OpClass
from flint.ir.product_types import groups_of
from flint.ir.program import Int64s, Kind
from flint.tools.share.rules.view import ProgramView, Rule, Told

#: Algorithms of so many products of rounded numbers, as `flint.ir.product_types` names them.
_ALGORITHM = re.compile(r"(bf16|tf32|f16|f32|f64):[0-9]+$")
_SCORES = frozenset({OpClass.ATTENTION, OpClass.ATTENTION_BACKWARD})
_REDUCED = frozenset({OpClass.REDUCE, OpClass.SORT, OpClass.TOP_K, OpClass.SOFTMAX, OpClass.NORM})


def _has_dims(view: ProgramView) -> Mask:
    return np.asarray((view.program.dims > 0).all(axis=1))


def _product_dims(view: ProgramView) -> Told:
    about = view.of(OpClass.MATMUL) & view.works
    return Told(about & (view.elements > 0), _has_dims(view))


def _product_flops(view: ProgramView) -> Told:
    """What is added to a product is at most one operation an element."""
    d = ProductDims.of(view.program.dims)
    about = view.of(OpClass.MATMUL) & view.works & _has_dims(view)
    extra = view.program.flops - 2 * d.batch * d.m * d.n * d.k
    most = np.where(view.launched, view.elements, 0)
    return Told(about, (extra >= 0) & (extra <= most))


def _product_result(view: ProgramView) -> Told:
    d = ProductDims.of(view.program.dims)
    about = view.of(OpClass.MATMUL) & view.works & _has_dims(view)
    return Told(about, view.elements == d.batch * d.m * d.n * _groups(view, sums=True))


def _product_operands(view: ProgramView) -> Told:
    """Of (b, m, k) and (b, k, n) each is an operand, or both are the same one."""
    d = ProductDims.of(view.program.dims)
    about = view.of(OpClass.MATMUL) & view.works & _has_dims(view) & view.all_plain
    own = _groups(view, sums=False)
    found = [_reads(view, d.batch * d.m * d.k), _reads(view, d.batch * d.k * d.n * own)]
    few = (view.arity == 2) | ((view.arity == 1) & (d.m == d.n)) | view.launched
    return Told(about, found[0] & found[1] & few)


def _groups(view: ProgramView, *, sums: bool) -> Int64s:
    """How many matrices each product has as its result (`sums`) or as its second operand."""
    groups = [groups_of(name) for name in view.program.products]
    table = [g.number if g is not None and g.sums == sums else 1 for g in groups]
    return np.array(table, dtype=np.int64)[view.program.product]


def _reads(view: ProgramView, elements: Int64s) -> Mask:
    """Rows with an operand of so many elements."""
    return view.some(view.elements[view.read] == elements[view.owner])


def _product_bytes(view: ProgramView) -> Told:
    p = view.program
    about = view.of(OpClass.MATMUL) & view.works & view.all_plain & ~view.launched
    read = view.summed(view.type_bytes)
    again = (view.arity == 1) & (p.operand_bytes == 2 * read)
    return Told(about, (p.operand_bytes == read) | again)


def _product_type(view: ProgramView) -> Told:
    """The type in which a product multiplies is that of an operand, or an algorithm's.

    Complex ones name none.
    """
    p = view.program
    about = view.of(OpClass.MATMUL) & view.works & (view.elements > 0) & ~view.is_complex
    named = np.array([bool(n) for n in p.products], dtype=np.bool_)[p.product]
    base = [re.split("[:,]", name)[0] for name in p.products]
    is_of = np.array([[d == b for d in p.dtypes] for b in base], dtype=np.bool_)
    of_operand = view.some(is_of[p.product[view.owner], p.dtype[view.read]])
    of_operand |= np.array([bool(_ALGORITHM.match(n)) for n in p.products], dtype=np.bool_)[
        p.product
    ]
    return Told(about, named & (of_operand | ~view.all_plain | view.launched))


def _attention(view: ProgramView) -> Told:
    """Queries are an operand, and FLOPs are a whole number for each score."""
    d = AttentionDims.of(view.program.dims)
    about = view.of(_SCORES) & view.works & _has_dims(view) & view.all_plain
    scores = np.maximum(2 * d.heads * d.queries * d.keys, 1)
    holds = _reads(view, d.heads * d.queries * d.size) & (view.program.flops % scores == 0)
    return Told(about, holds & (view.program.flops >= scores * d.size))


def _convolution(view: ProgramView) -> Told:
    """m positions of n features in each of `batch` groups are the result."""
    d = ProductDims.of(view.program.dims)
    about = view.of(OpClass.CONVOLUTION) & view.works & _has_dims(view) & view.is_plain
    most = 2 * d.batch * d.m * d.n * d.k + np.where(view.launched, view.elements, 0)
    holds = (d.batch * d.m * d.n == view.elements) & (view.program.flops <= most)
    return Told(about, holds)


def _reduction_dims(view: ProgramView) -> Told:
    """Lists of norms that a framework launches have none."""
    about = view.of(OpClass.REDUCE) & view.works & (view.elements > 0) & (view.arity > 0)
    about &= ~view.launched | view.is_plain
    return Told(about, _has_dims(view))


def _reduction_result(view: ProgramView) -> Told:
    d = ReductionDims.of(view.program.dims)
    about = view.of(OpClass.REDUCE) & view.works & _has_dims(view)
    return Told(about, d.rows == view.elements)


def _reduction_operand(view: ProgramView) -> Told:
    """Windows keep the number of dimensions; then they may overlap or leave elements out."""
    d = ReductionDims.of(view.program.dims)
    about = view.of(OpClass.REDUCE) & view.works & _has_dims(view) & view.all_plain
    windows = view.some(view.rank[view.read] == view.rank[view.owner]) & (view.rank > 0)
    return Told(about & ~view.launched, windows | _reads(view, d.rows * d.reduced))


def _reduction_flops(view: ProgramView) -> Told:
    d = ReductionDims.of(view.program.dims)
    about = view.of(OpClass.REDUCE) & view.works & _has_dims(view)
    elements = np.maximum(d.rows * d.reduced, 1)
    return Told(about, (view.program.flops > 0) & (view.program.flops % elements == 0))


def _reduction_types(view: ProgramView) -> Told:
    p = view.program
    about = view.of(OpClass.REDUCE) & view.works & view.all_plain & ~view.launched
    same = p.dtype[view.read] == p.dtype[view.owner]
    return Told(about & (view.arity > 0), view.some(same))


def _work_has_flops(view: ProgramView) -> Told:
    classes = frozenset({OpClass.MATMUL, OpClass.REDUCE, OpClass.CONVOLUTION}) | _SCORES
    about = view.of(classes) & (view.program.kind == Kind.COMPUTE) & (view.elements > 0)
    return Told(about & (view.program.operand_bytes > 0), view.program.flops > 0)


RULES = (
    Rule("product-sizes", "a product has its sizes (batch, m, n, k)", _product_dims),
    Rule("product-flops", "a product has 2 x batch x m x n x k FLOPs", _product_flops),
    Rule("product-result", "the result of a product has batch x m x n elements", _product_result),
    Rule(
        "product-operands",
        "operands of a product have batch x m x k and batch x k x n elements",
        _product_operands,
    ),
    Rule("product-bytes", "a product reads its operands", _product_bytes),
    Rule("product-type", "a product has the type that it multiplies in", _product_type),
    Rule("attention", "attention has a query for each of its sizes", _attention),
    Rule("convolution", "the result of a convolution has its sizes", _convolution),
    Rule("reduction-sizes", "a reduction has its sizes (rows, reduced)", _reduction_dims),
    Rule(
        "reduction-result",
        "the result of a reduction has as many elements as rows",
        _reduction_result,
    ),
    Rule(
        "reduction-operand",
        "an operand of a reduction has rows x reduced elements",
        _reduction_operand,
    ),
    Rule(
        "reduction-flops",
        "FLOPs of a reduction are a whole number for each element",
        _reduction_flops,
    ),
    Rule("reduction-types", "a reduction keeps the type of an operand", _reduction_types),
    Rule("work", "products and reductions have FLOPs", _work_has_flops),
)
