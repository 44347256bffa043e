"""Random numbers: torch's shapes and types, the right distribution, and no communication."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import flint
from flint.frontends.torch_ops.registry import find_op
from flint.frontends.torch_ops.tensors import random
from flint.ir.program import Kind
from tests.auto_mesh import auto_mesh
from tests.oracle.torch_op_cases import Case, Comparison, bools, cases, names_without_a_case, t

X, CHANCE = t(4, 5), t(4, 5, low=0.0, high=1.0)


def drawn(op: str, *args: Any, over: str = "f32", results: int = 1, **options: Any) -> list[Case]:
    """Cases whose values nobody can predict."""
    return [*cases(f"aten::{op}", *args, over=over, undefined=tuple(range(results)), **options)]


LIKE = {"f32 bf16 f64": {}, "i64": {"dtype": torch.float16}}
CASES = [
    *drawn("native_dropout", X, 0.3, True, over="f32 bf16", results=2),
    *cases("aten::native_dropout", X, 1.0, True),
    *cases("aten::native_dropout", X, 0.5, False),
    *cases("aten::native_dropout", X, 0.0, True),
    *cases("aten::native_dropout_backward", X, bools(4, 5), 2.0, over="f32 bf16"),
    *drawn("rand", [2, 3]),
    *drawn("rand", [2, 3], dtype=torch.bfloat16),
    *drawn("rand.generator", [2], generator=None),
    *drawn("randn", [2, 3], dtype=torch.float64),
    *drawn("randn.generator", [], generator=None),
    *(c for over, o in LIKE.items() for c in drawn("rand_like", X, over=over, **o)),
    *drawn("rand_like.generator", X, generator=None),
    *(c for over, o in LIKE.items() for c in drawn("randn_like", X, over=over, **o)),
    *drawn("randn_like.generator", X, generator=None),
    *drawn("randint", 9, [3]),
    *drawn("randint.generator", 9, [3], generator=None, dtype=torch.int32),
    *drawn("randint.low", 2, 9, [3], dtype=torch.float32),
    *drawn("randint.low_generator", 2, 9, [3], generator=None),
    *drawn("randint_like", X, 9, over="f32 i32"),
    *drawn("randint_like.generator", X, 9, generator=None),
    *drawn("randint_like.low_dtype", X, 2, 9, dtype=torch.int64),
    *drawn("randint_like.low_generator_dtype", X, 2, 9, generator=None),
    *drawn("randperm", 7),
    *drawn("randperm.generator", 7, generator=None, dtype=torch.int32),
    *drawn("normal.float_float", 1.0, 2.0, [3, 2]),
    *drawn("normal.Tensor_float", X, 2.0, over="f32 bf16"),
    *drawn("normal.float_Tensor", 2.0, CHANCE),
    *drawn("normal.Tensor_Tensor", t(4, 1), CHANCE),
    *drawn("normal_functional", X, 1.0, 2.0, over="f32 bf16"),
    *drawn("uniform", X, -1.0, 1.0, over="f32 bf16"),
    *drawn("exponential", X, 2.0, over="f32 bf16"),
    *drawn("bernoulli.p", X, 0.3, over="f32 bf16"),
    *drawn("bernoulli.Tensor", X, t(5, low=0.0, high=1.0)),
    *drawn("multinomial", t(3, 6, low=0.1), 2, over="f32 bf16"),
    *drawn("multinomial", t(3, 6, low=0.1), 8, True),
]
COMPARISON = Comparison(CASES)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_torch(case: Case) -> None:
    COMPARISON.check(case)


def test_every_operator_has_a_case() -> None:
    assert names_without_a_case(CASES, random) == []


def test_distributions() -> None:
    """Means and limits of 10,000 numbers; the standard error of a mean is 1 % of a deviation."""

    def draw(ones: Any) -> list[Any]:
        def run(op: str, *args: Any, **options: Any) -> Any:
            return find_op(f"aten::{op}")(*args, **options)

        weights = jnp.asarray([1.0, 0.0, 3.0])
        return [
            run("rand", ones.shape),
            run("randn", ones.shape),
            run("randint.low", 2, 5, ones.shape),
            run("native_dropout", ones, 0.2, True)[0],
            run("bernoulli.p", ones, 0.3),
            run("exponential", ones, 2.0),
            run("uniform", ones, -3.0, 1.0),
            run("multinomial", weights, ones.size, True),
            jnp.sort(run("randperm", ones.size)),
            jnp.sort(run("multinomial", ones[:50], 50)),
        ]

    with jax.enable_x64(True):
        found = [np.asarray(a) for a in jax.jit(draw)(jnp.ones(10_000, jnp.float32))]
    rand, randn, integers, dropped, chosen, waits, uniform, indices, every, all_of_them = found
    assert rand.min() >= 0 and rand.max() < 1 and abs(rand.mean() - 0.5) < 0.02
    assert abs(randn.mean()) < 0.06 and abs(randn.std() - 1) < 0.05
    assert set(integers.tolist()) == {2, 3, 4}
    assert set(dropped.tolist()) == {0.0, 1.25} and abs(dropped.mean() - 1) < 0.03
    assert abs(chosen.mean() - 0.3) < 0.03
    assert abs(waits.mean() - 0.5) < 0.03 and waits.min() >= 0
    assert uniform.min() >= -3 and uniform.max() <= 1 and abs(uniform.mean() + 1) < 0.08
    assert set(indices.tolist()) == {0, 2} and abs((indices == 2).mean() - 0.75) < 0.03
    assert every.tolist() == [*range(10_000)]
    assert all_of_them.tolist() == [*range(50)]


@pytest.mark.parametrize("spec", [P("data", "model"), P("model"), P()])
def test_dropout_of_a_sharded_tensor_stays_where_it_is(spec: P) -> None:
    """XLA's partitioner would let one of the devices that hold the same part draw it for all."""
    mesh = auto_mesh((2, 4), ("data", "model"))

    def step(x: Any) -> Any:
        x, _ = random.native_dropout(x, 0.1, True)
        return random.native_dropout(x, 0.1, True)[0]

    sharding = NamedSharding(mesh, spec)
    x = jax.ShapeDtypeStruct((8, 16), jnp.bfloat16, sharding=sharding)
    program = flint.trace(step, mesh, x).program
    rows = [program.row(i) for i in range(len(program))]
    assert [r for r in rows if r.kind is Kind.COLLECTIVE] == []
    draws = [r for r in rows if r.opcode == "hlo.rng"]
    # each device draws its part, twice, although the calls are equal
    count = math.prod(sharding.shard_shape(x.shape))
    assert [(r.result_bytes, r.flops) for r in draws] == [(count * 4, count * 10)] * 2


def test_numbers_that_jax_draws_are_drawn_once_and_sent_as_xla_does() -> None:
    mesh = auto_mesh((2, 4), ("data", "model"))

    def step(x: Any) -> Any:
        return x * jax.lax.rng_uniform(jnp.float32(0), jnp.float32(1), x.shape)

    x = jax.ShapeDtypeStruct((8, 16), jnp.float32, sharding=NamedSharding(mesh, P("data")))
    program = flint.trace(step, mesh, x).program
    assert program.comm_bytes[program.kind == Kind.COLLECTIVE].tolist() == [4 * 16 * 4]
