"""Operations that are alike are looked at once, and rows are as if each had been."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flint
from flint.ir.program import COLUMNS, TABLES, Kind, Program

jax = pytest.importorskip("jax")
jnp = jax.numpy

from flint.passes.extract.plain import Alike, Alikes
from flint.passes.extract.tensors import Operation
from tests.auto_mesh import auto_mesh

P = jax.sharding.PartitionSpec
MESH = {"data": 4, "model": 2}


def layers(x: Any, weights: list[Any]) -> Any:
    """The same layer again and again, with slices, windows and products that differ."""
    for n, w in enumerate(weights):
        y = jnp.einsum("bd,df->bf", x, w) if n % 2 else jnp.einsum("bd,fd->bf", x, w)
        y = jnp.concatenate([y[:, n + 1 :], y[:, : n + 1]], axis=1)
        y = jnp.sort(y, axis=n % 2) + jnp.roll(y, n, axis=0)
        x = x + jnp.cumsum(jax.nn.softmax(y, axis=-1), axis=n % 2)
    return jnp.argmax(x, axis=0)


def captured() -> Program:
    mesh = auto_mesh(tuple(MESH.values()), tuple(MESH))

    def shaped(shape: tuple[int, ...], *spec: Any) -> Any:
        sharding = jax.sharding.NamedSharding(mesh, P(*spec))
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)

    weights = [shaped((64, 64), "data", "model") for _ in range(6)]
    return flint.trace(
        layers, MESH, shaped((32, 64), "data", None), weights, partitioner="shardy"
    ).program


def test_rows_are_as_if_each_operation_had_been_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    once = captured()
    really = Alikes.of
    seen: list[Operation] = []

    def anew(self: Alikes, o: Operation) -> Alike:
        seen.append(o)
        return really(Alikes(self.mesh), o)

    monkeypatch.setattr(Alikes, "of", anew)
    each = captured()
    assert len(seen) == np.count_nonzero(each.kind == Kind.COMPUTE)
    for name in COLUMNS:
        assert np.array_equal(getattr(once, name), getattr(each, name)), name
    for name in TABLES:
        assert getattr(once, name) == getattr(each, name), name


def test_they_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[Any, ...]] = []
    really = Alikes._find

    def noted(self: Alikes, o: Operation, rule: Any) -> Alike:
        found.append((o.name, str(rule), *map(id, (*o.operands, *o.results))))
        return really(self, o, rule)

    monkeypatch.setattr(Alikes, "_find", noted)
    program = captured()
    assert len(found) == len(set(found)) < 0.7 * np.count_nonzero(program.kind == Kind.COMPUTE)
