"""Small programs whose work and communication were derived on paper, away from Flint's rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import flint
from flint.backends.chakra.writing.expand import Nodes, expand
from flint.ir.program import Collective, Kind, Program
from flint.passes.work.totals import totals
from tests.auto_mesh import auto_mesh

jax = pytest.importorskip("jax")
jnp, lax = jax.numpy, jax.lax
P = jax.sharding.PartitionSpec
F32 = 4


def traced(fn: Callable[..., Any], mesh: dict[str, int], *arguments: Any) -> Program:
    """`arguments` are (shape, spec), float32."""
    abstract = auto_mesh(tuple(mesh.values()), tuple(mesh))
    shapes = [
        jax.ShapeDtypeStruct(s, jnp.float32, sharding=jax.sharding.NamedSharding(abstract, spec))
        for s, spec in arguments
    ]
    return flint.trace(fn, mesh, *shapes, platform="cpu").program


def communication(program: Program) -> dict[tuple[str, str], tuple[int, int]]:
    return {(c.kind, c.axes): (c.count, c.comm_bytes) for c in totals(program).communication}


MESH = {"data": 2, "model": 4}


def grouped_attention(q: Any, k: Any, v: Any) -> Any:
    batch, seq, _, size = q.shape
    q = q.reshape(batch, seq, k.shape[2], -1, size)
    scores = jax.nn.softmax(jnp.einsum("bsngk,btnk->bngst", q, k))
    return jnp.einsum("bngst,btnk->bsngk", scores, v)


def attention_gradient(q: Any, k: Any, v: Any) -> Any:
    return jax.grad(lambda *a: grouped_attention(*a).sum(), argnums=(0, 1, 2))(q, k, v)


HEADS = ((4, 32, 8, 16), P("data", None, "model"))
GROUPS = ((4, 32, 4, 16), P("data", None, "model"))


def test_grouped_query_attention() -> None:
    # One rank: 2 sequences, 2 query heads on 1 key head. Each product is 2 x (2 x 2) x 32 x 32 x 16.
    one = 2 * (2 * 2) * 32 * 32 * 16
    forward = traced(grouped_attention, MESH, HEADS, GROUPS, GROUPS)
    assert totals(forward).matmul_flops == 2 * one
    # The loss does not read the output's product: scores again, then one for each of dv, dw, dq, dk.
    assert totals(traced(attention_gradient, MESH, HEADS, GROUPS, GROUPS)).matmul_flops == 5 * one
    assert not communication(forward)


def test_two_contracted_dimensions_in_another_order() -> None:
    program = traced(
        lambda a, b: jnp.einsum("cabd,edfc->abef", a, b),
        MESH,
        ((16, 4, 8, 4), P("model", "data")),
        ((6, 4, 2, 16), P(None, None, None, "model")),
    )
    # a is 4 over data = 2; c is 16 over model = 4; every rank has a partial [2, 8, 6, 2].
    assert totals(program).matmul_flops == 2 * (2 * 8) * (6 * 2) * (4 * 4)
    assert communication(program) == {("all_reduce", "model"): (1, 2 * 8 * 6 * 2 * F32)}


def test_nested_loops_multiply_trips() -> None:
    def step(w: Any, x: Any) -> Any:
        def outer(c: Any, wi: Any) -> Any:
            return lax.fori_loop(0, 3, lambda _, d: d @ wi, c), None

        return lax.scan(outer, x, w)[0]

    program = traced(step, MESH, ((5, 64, 64), P(None, None, "model")), ((16, 64), P("data")))
    assert totals(program).matmul_flops == 15 * 2 * 8 * 64 * 16
    gathered = communication(program)["all_gather", "model"]
    assert gathered == (15, 15 * 8 * 16 * F32)


@pytest.mark.parametrize(("start", "stop", "step", "runs"), [(0, 6, 2, 3), (9, 0, -2, 5)])
def test_counters_that_skip(start: int, stop: int, step: int, runs: int) -> None:
    def fn(w: Any, x: Any) -> Any:
        def more(s: Any) -> Any:
            return s[0] < stop if step > 0 else s[0] > stop

        return lax.while_loop(more, lambda s: (s[0] + step, s[1] @ w), (start, x))[1]

    program = traced(fn, {"d": 1}, ((16, 16), P()), ((16, 16), P()))
    assert totals(program).matmul_flops == runs * 2 * 16**3


def fsdp_step(w: Any, x: Any) -> Any:
    def loss(w: Any) -> Any:
        layer = jax.checkpoint(lambda h, wi: (jnp.tanh(h @ wi), None))
        return jnp.sum(lax.scan(layer, x, w)[0] ** 2)

    return w - 0.1 * jax.grad(loss)(w)


def ancestors(nodes: Nodes) -> list[set[int]]:
    found: list[set[int]] = []
    for node in range(len(nodes)):
        direct = {int(d) for d in nodes.dependencies(node)}
        found.append(direct.union(*(found[d] for d in direct)))
    return found


def test_fsdp_waits_for_what_it_must_and_for_nothing_else() -> None:
    shape = (3, 16, 16), P(None, "data")
    program = traced(fsdp_step, {"data": 4}, shape, ((8, 16), P("data")))
    part, whole = 4 * 16 * F32, 16 * 16 * F32
    found = communication(program)
    # Gathered forward, and once more for recomputation and gradient together.
    assert found["all_gather", "data"] == (6, 6 * part)
    assert found["reduce_scatter", "data"] == (3, 3 * whole)
    # Products: forward, again, gradient of the weight, gradient of the input.
    assert totals(program).matmul_flops == 4 * 3 * 2 * 2 * 16 * 16
    nodes = expand(program)
    before = ancestors(nodes)
    kind = program.collective[nodes.row]
    gathers = np.flatnonzero(kind == Collective.ALL_GATHER)
    scatters = np.flatnonzero(kind == Collective.REDUCE_SCATTER)
    products = {int(n) for n in np.flatnonzero((program.dims[nodes.row] > 0).all(axis=1))}
    assert (len(gathers), len(scatters)) == (6, 3)
    assert all(not (before[g] & products) for g in gathers)  # any layer may be gathered early
    # The last layer's gradient waits for 3 products forward, 1 again, its own; then 3 more a layer.
    assert [len(before[s] & products) for s in scatters] == [5, 7, 9]
    last = max(n for n in range(len(nodes)) if program.kind[nodes.row[n]] == Kind.COMPUTE)
    assert set(scatters.tolist()) <= before[last]  # the update waits for every gradient
