"""Products in which one mesh axis splits different dimensions."""

import pytest

import flint
from flint.ir.program import Collective, Kind
from tests.auto_mesh import auto_mesh

jax = pytest.importorskip("jax")
jnp = jax.numpy
P = jax.sharding.PartitionSpec
MESH = {"data": 2, "model": 4}


def collectives(fn, operands, result):
    mesh = auto_mesh(tuple(MESH.values()), tuple(MESH))

    def on(spec):
        return jax.sharding.NamedSharding(mesh, spec)

    arguments = [
        jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=on(spec)) for shape, spec in operands
    ]
    program = flint.trace(fn, MESH, *arguments, out_shardings=on(result)).program
    rows = [program.row(int(i)) for i in (program.kind == Kind.COLLECTIVE).nonzero()[0]]
    return [(r.collective, str(r.group), r.comm_bytes) for r in rows]


def test_a_large_weight_is_gathered_for_few_tokens() -> None:
    # 8 tokens and a weight of 1024 x 512: moving tokens would be cheaper, XLA gathers all the same
    operands = [((8, 1024), P("data")), ((1024, 512), P("data"))]
    assert collectives(jnp.dot, operands, P("data")) == [
        (Collective.ALL_GATHER, "data", 512 * 512 * 2)
    ]


def test_its_gradient_is_reduce_scattered() -> None:
    def product(x, dy):
        return jnp.einsum("bi,bj->ij", x, dy)

    operands = [((8, 1024), P("data")), ((8, 512), P("data"))]
    assert collectives(product, operands, P("data")) == [
        (Collective.REDUCE_SCATTER, "data", 1024 * 512 * 2)
    ]


def test_a_column_parallel_weight_keeps_its_columns() -> None:
    operands = [((8, 1024), P("data")), ((1024, 512), P("data", "model"))]
    assert collectives(jnp.dot, operands, P("data", "model")) == [
        (Collective.ALL_GATHER, "data", 512 * 128 * 2)
    ]


def test_inside_a_loop() -> None:
    def layers(x, weights):
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)[0]

    operands = [((8, 256), P("data")), ((3, 256, 256), P(None, "data"))]
    assert collectives(layers, operands, P("data")) == [
        (Collective.ALL_GATHER, "data", 128 * 256 * 2)
    ]
