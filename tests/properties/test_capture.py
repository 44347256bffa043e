"""Properties of captured programs: what must hold for any model, sharding and mesh."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("jax")
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import flint
from flint.ir.program import Collective, Kind, Program
from flint.passes.work.totals import totals
from tests.auto_mesh import auto_mesh

BATCH, WIDTH = 64, 128  # divisible by every mesh below, so that shards are exact


@dataclass(frozen=True)
class Case:
    """A small network on a mesh: which axis shards which dimension of what."""

    sizes: tuple[int, int]
    inputs: tuple[str | None, str | None]
    weights: tuple[tuple[str | None, str | None], ...]
    activations: tuple[tuple[str | None, str | None] | None, ...]
    backward: bool

    def program(self, sizes: tuple[int, int] | None = None) -> Program:
        """Capture it, on other axis sizes if given."""
        mesh = auto_mesh(sizes or self.sizes, ("x", "y"))

        def sharded(shape: tuple[int, ...], spec: tuple[str | None, ...]) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, P(*spec)))

        def forward(weights: list[jax.Array], x: jax.Array) -> jax.Array:
            for weight, spec in zip(weights, self.activations, strict=True):
                x = jnp.maximum(x @ weight, 0)
                if spec is not None:
                    x = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(*spec)))
            return jnp.sum(x * x)

        function = jax.grad(forward) if self.backward else forward
        weights = [sharded((WIDTH, WIDTH), spec) for spec in self.weights]
        return flint.trace(function, mesh, weights, sharded((BATCH, WIDTH), self.inputs)).program


SPECS = st.sampled_from(
    [(None, None), ("x", None), (None, "x"), ("y", None), ("x", "y"), ("y", "x")]
)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Random networks of one to three layers on meshes of 2 to 32 devices."""
    layers = draw(st.integers(1, 3))
    return Case(
        sizes=(draw(st.sampled_from([2, 4])), draw(st.sampled_from([2, 4, 8]))),
        inputs=draw(SPECS),
        weights=tuple(draw(SPECS) for _ in range(layers)),
        activations=tuple(draw(st.none() | SPECS) for _ in range(layers)),
        backward=draw(st.booleans()),
    )


def matmul_flops(program: Program) -> int:
    """FLOPs of matrix products per device."""
    return totals(program).matmul_flops


@given(cases())
@settings(max_examples=25)
def test_no_work_is_lost(case: Case) -> None:
    """All devices together do at least the products of the unsharded program, each at most all."""
    layers = len(case.weights)
    whole = 2 * BATCH * WIDTH * WIDTH * (layers + (2 * layers - 1 if case.backward else 0))
    each = matmul_flops(case.program())
    assert each <= whole
    assert each * math.prod(case.sizes) >= whole


@given(cases())
@settings(max_examples=25)
def test_collectives_conserve_bytes(case: Case) -> None:
    """What a collective returns follows from what goes in, its kind and its group."""
    program = case.program()
    for index in np.flatnonzero(program.kind == Kind.COLLECTIVE):
        row = program.row(int(index))
        n = row.group.size(program.mesh) if row.group else 1
        expected = {
            Collective.ALL_GATHER: row.comm_bytes * n,
            Collective.REDUCE_SCATTER: row.comm_bytes // n,
        }.get(row.collective, row.comm_bytes)
        assert row.result_bytes == expected, row


@given(cases())
@settings(max_examples=10)
def test_a_mesh_of_one_device_along_each_axis_has_no_communication(case: Case) -> None:
    program = case.program((1, 1))
    assert not (program.kind >= Kind.COLLECTIVE).any()
