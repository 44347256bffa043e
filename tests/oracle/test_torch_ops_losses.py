"""Losses against torch, forward and backward, and over classes that are sharded."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import flint
from flint.frontends.torch_ops.nn import losses
from flint.ir.program import Kind
from tests.auto_mesh import auto_mesh
from tests.oracle.torch_op_cases import Case, Comparison, cases, exactly, names_without_a_case, t

NONE, MEAN, SUM = 0, 1, 2
CLOSE = (1e-4, 1e-5)
SCORES, TARGET = t(4, 5), exactly([1, -100, 0, 4], "i64")
WEIGHT = t(5, low=0.1)
ONE, TOTAL = exactly(0.5), exactly(2.5)
NLL, NLL_BACK = "aten::nll_loss_forward", "aten::nll_loss_backward"

CASES = [
    *(
        case
        for reduction in (NONE, MEAN, SUM)
        for case in [
            *cases(NLL, SCORES, TARGET, None, reduction, -100, over="f32 bf16"),
            *cases(NLL, SCORES, TARGET, WEIGHT, reduction, -100, tolerance=CLOSE),
        ]
    ),
    *cases(NLL, t(5), exactly(3, "i64"), None, MEAN, -100),
    *cases(NLL_BACK, t(4), SCORES, TARGET, WEIGHT, NONE, -100, ONE, over="f32 bf16"),
    *cases(NLL_BACK, ONE, SCORES, TARGET, WEIGHT, MEAN, -100, TOTAL, over="f32 bf16"),
    *cases(NLL_BACK, ONE, SCORES, TARGET, None, SUM, -100, TOTAL),
    *cases(NLL_BACK, ONE, t(5), exactly(3, "i64"), None, MEAN, -100, exactly(1.0)),
]
COMPARISON = Comparison(CASES)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_torch(case: Case) -> None:
    COMPARISON.check(case)


def test_every_operator_has_a_case() -> None:
    assert names_without_a_case(CASES, losses) == []


def test_classes_may_be_sharded() -> None:
    """Only one number for each row crosses the devices that share the classes."""
    mesh = auto_mesh((2, 4), ("data", "model"))

    def step(scores: Any, target: Any) -> Any:
        loss, total = losses.nll_loss_forward(scores, target, None, MEAN, -100)
        return loss, losses.nll_loss_backward(loss, scores, target, None, MEAN, -100, total)

    def shaped(shape: tuple[int, ...], dtype: Any, *spec: Any) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*spec)))

    scores = shaped((8, 1024), jnp.float32, "data", "model")
    with jax.enable_x64(True):
        targets = shaped((8,), jnp.int64, "data")
        shardings = (None, NamedSharding(mesh, P("data", "model")))
        program = flint.trace(step, mesh, scores, targets, out_shardings=shardings).program
    rows = [program.row(i) for i in range(len(program))]
    moved = [(str(r.group), r.comm_bytes) for r in rows if r.kind is Kind.COLLECTIVE]
    # 4 rows over the classes, then two sums over the rows
    assert sorted(moved) == [("data", 4), ("data", 4), ("model", 4 * 4)]
