"""Products whose tensors want one mesh axis for two things, as XLA's partitioner settles them.

Names say where the axis is: A and N are dimensions of one operand and the result, K is summed, B is
in all three, - is nowhere.
"""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("jaxlib", reason="XLA's partitioner comes with jaxlib")

import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from tests.oracle.partitioner_comparison import compare
from tests.recorded import recorded_version_only
from tests.zoo import Example, one

pytestmark = [pytest.mark.long, recorded_version_only]
MODEL, GRID = {"model": 4}, {"data": 4, "model": 4}
#: Specs of lhs (A, K), rhs (K, N) and result (A, N) by where the axis is.
LHS = {"-": (), "A": ("model",), "K": (None, "model")}
RHS = {"-": (), "K": ("model",), "N": (None, "model")}
RESULT = {"-": P(), "A": P("model"), "N": P(None, "model")}
#: Sizes of A, K and N. Only for "K -> -" they decide.
SQUARE, LONG, SMALL = (64, 64, 64), (64, 512, 64), (512, 512, 16)
CASES = [
    ("K", "-", "-", SQUARE),
    ("-", "K", "-", SQUARE),
    ("K", "-", "-", LONG),
    ("K", "-", "A", LONG),
    ("K", "-", "N", LONG),
    ("A", "-", "N", LONG),
    ("A", "-", "-", (64, 512, 16)),
    ("A", "K", "N", SMALL),
    ("A", "K", "-", SMALL),
    ("A", "N", "-", SMALL),
    ("K", "N", "-", SMALL),
    ("K", "N", "A", SMALL),
    ("K", "K", "A", SQUARE),
]


@pytest.mark.parametrize(("lhs", "rhs", "result", "sizes"), CASES)
def test_one_axis(lhs: str, rhs: str, result: str, sizes: tuple[int, int, int]) -> None:
    a, k, n = sizes

    def product(x: Any, w: Any) -> Any:
        return lax.with_sharding_constraint(x @ w, RESULT[result]) * 2

    arguments = ((a, k), *LHS[lhs]), ((k, n), *RHS[rhs])
    found = compare(Example("product", MODEL, one(product, *arguments), RESULT[result]))
    assert found.shardy.normal == found.xla.normal
    assert found.shardy.normal, "nothing is communicated: the case shows nothing"


@pytest.mark.parametrize("sizes", [(16, 16, 256, 16), (16, 256, 16, 256)])
@pytest.mark.parametrize(
    ("rhs", "result"), [("model", P()), (None, P()), ("model", P(None, "model"))]
)
def test_an_axis_of_the_batch(sizes: tuple[int, ...], rhs: Any, result: P) -> None:
    b, a, k, n = sizes

    def product(x: Any, w: Any) -> Any:
        return lax.with_sharding_constraint(jnp.einsum("bij,bjk->bik", x, w), result) * 2

    arguments = ((b, a, k), "model"), ((b, k, n), rhs)
    found = compare(Example("product", MODEL, one(product, *arguments), result))
    assert found.shardy.normal == found.xla.normal


@pytest.mark.parametrize("sizes", [(64, 64, 64), (512, 64, 64), (64, 512, 64)])
def test_beside_another_axis_its_share_counts(sizes: tuple[int, int, int]) -> None:
    a, k, n = sizes

    def product(x: Any, w: Any) -> Any:
        return lax.with_sharding_constraint(x @ w, P("data")) * 2

    arguments = ((a, k), "data"), ((k, n), "model")
    found = compare(Example("product", GRID, one(product, *arguments), P("data")))
    assert found.shardy.normal == found.xla.normal


def test_a_sum_is_made_where_its_result_is() -> None:
    def step(x: Any, y: Any) -> Any:
        return lax.with_sharding_constraint(x + y, P(None, "model")) * 2

    arguments = ((64, 64), "model"), ((64, 64), None, "model")
    found = compare(Example("sum", MODEL, one(step, *arguments), P(None, "model")))
    assert found.shardy.plain == found.xla.plain
