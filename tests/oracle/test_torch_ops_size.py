"""Operators become few operations: users read them, and work is counted from them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from flint.frontends.torch_ops.table import load_table
from tests.oracle.torch_op_cases import Case, cases, exactly, ints, operations, t

load_table()
X = t(2, 3, 4)
I64 = ints(2, 3, high=3)
END = 2**63 - 1

#: A call, and the primitives that it is traced to; constants are not listed.
SMALL = {
    "broadcast_in_dim add": cases("aten::add.Tensor", X, t(4)),
    "add": cases("aten::add.Tensor", X, 1.5, over="bf16"),
    "mul": [
        *cases("aten::mul.Tensor", X, X, over="bf16"),
        *cases("aten::mul.Scalar", X, 2.0, over="bf16"),
        *cases("aten::mul.Tensor", X, 2.0, over="bf16"),
    ],
    "integer_pow": cases("aten::pow.Tensor_Scalar", X, 2, over="bf16"),
    "rsqrt": cases("aten::pow.Tensor_Scalar", X, -0.5),
    "max": [*cases("aten::clamp", X, 0.0, float("inf")), *cases("aten::relu", X)],
    "": [
        *cases("aten::_to_copy", X, dtype=torch.float32),
        *cases("aten::clone", X, memory_format=torch.contiguous_format),
        *cases("aten::view", X, [2, 3, 4]),
        *cases("aten::expand", X, [2, -1, 4]),
        *cases("aten::permute", X, [0, 1, 2]),
        *cases("aten::slice.Tensor", X, 0, 0, END),
        *cases("aten::full", [2, 3], 1.0),
        *cases("aten::sum.dim_IntList", t(1, 3), [0], True),
    ],
    "convert_element_type": cases("aten::_to_copy", X, dtype=torch.bfloat16),
    "logistic mul": cases("aten::silu", X, over="bf16"),
    "mul erf add mul mul": cases("aten::gelu", X, over="bf16"),
    "select_n": cases("aten::where.self", t(2, 3, 4, dtype="bool"), X, 0.5),
    "reshape": [
        *cases("aten::view", X, [6, -1]),
        *cases("aten::unsqueeze", X, 0),
        *cases("aten::squeeze.dims", t(2, 1, 3), [1]),
        *cases("aten::sum.dim_IntList", t(1, 3), [0]),
    ],
    "broadcast_in_dim": cases("aten::expand", t(3, 1), [2, 3, 4]),
    "broadcast_in_dim reshape": cases("aten::repeat", t(2, 3), [2, 1]),
    "transpose": cases("aten::permute", X, [0, 2, 1]),
    "slice": cases("aten::slice.Tensor", X, 2, 1, END, 2),
    "slice squeeze": cases("aten::select.int", X, 1, -1),
    "pad": [
        *cases("aten::slice_backward", t(2, 3, 2), [2, 3, 4], 2, 0, END, 2),
        *cases("aten::constant_pad_nd", X, [0, 1]),
    ],
    "broadcast_in_dim pad": cases("aten::select_backward", t(2, 4), [2, 3, 4], 1, 0),
    "dynamic_update_slice": cases("aten::slice_scatter", X, t(2, 3, 2), 2, 0, 2),
    "concatenate": cases("aten::cat", [X, X], -1),
    "reduce_sum": cases("aten::sum.dim_IntList", X, [0, 1], over="bf16"),
    "reduce_sum div": cases("aten::mean", X),
    "reduce_max broadcast_in_dim sub exp reduce_sum broadcast_in_dim div": cases(
        "aten::_softmax", X, -1, False, over="bf16"
    ),
    "exp reduce_sum broadcast_in_dim mul sub": cases(
        "aten::_log_softmax_backward_data", X, X, -1, torch.float32
    ),
    "broadcast_in_dim gather": [
        *cases("aten::embedding", t(7, 4), I64),
        *cases("aten::gather", t(2, 5), 1, I64),
    ],
    "lt add select_n convert_element_type broadcast_in_dim gather": cases(
        "aten::index.Tensor", t(7, 4), [I64]
    ),
    "broadcast_in_dim scatter-add": cases("aten::scatter_add", t(2, 5), 1, I64, t(2, 3)),
    "reshape reshape broadcast_in_dim scatter-add": cases(
        "aten::embedding_dense_backward", t(2, 3, 4), I64, 7, -1, False
    ),
    "top_k convert_element_type": cases("aten::topk", X, 2),
    "iota sort": cases("aten::sort", exactly([2.0, 1.0])),
    "iota": cases("aten::arange.start_step", 0, 5),
}
CASES = [(case, names) for names, listed in SMALL.items() for case in listed]


@pytest.mark.parametrize(("case", "names"), CASES, ids=[str(case) for case, _ in CASES])
def test_few_operations(case: Case, names: str) -> None:
    assert " ".join(operations(case)) == names
