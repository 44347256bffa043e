"""Lookups in sharded tables and their gradients, small ones on both sides of XLA's decisions."""

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
DATA, GRID, PAIR = {"data": 8}, {"data": 4, "model": 4}, {"data": 2}


def looked_up(table: Any, ids: Any) -> Any:
    return table[ids] * 2


def summed(size: int) -> Any:
    return lambda ids, u: jnp.zeros((size, u.shape[-1])).at[ids].add(u)


def tokens(batch: int = 16) -> tuple[Any, ...]:
    return (batch, 32), "data", jnp.int32


def updates(batch: int = 16) -> tuple[Any, ...]:
    return (batch, 32, 64), "data"


LOOKUPS: dict[str, tuple[Any, ...]] = {
    # the table is gathered while that takes less memory than an exchange of activations
    "few rows": (DATA, looked_up, P("data"), ((16, 64), None, "data"), tokens()),
    "more rows": (DATA, looked_up, P("data"), ((64, 64), None, "data"), tokens()),
    "many tokens": (DATA, looked_up, P("data"), ((32, 64), None, "data"), tokens(128)),
    "few rows by vocabulary": (DATA, looked_up, P("data"), ((256, 64), "data"), tokens()),
    "many rows by vocabulary": (DATA, looked_up, P("data"), ((4096, 64), "data"), tokens()),
    "both": (GRID, looked_up, P("data"), ((256, 64), "model", "data"), tokens()),
    "both, many rows": (GRID, looked_up, P("data"), ((4096, 64), "model", "data"), tokens()),
    "both, few rows": (GRID, looked_up, P("data"), ((32, 64), "model", "data"), tokens(128)),
    "hidden over both": (
        GRID,
        looked_up,
        P("data"),
        ((256, 64), None, ("data", "model")),
        tokens(),
    ),
    "sequence too": (GRID, looked_up, P("data", "model"), ((1024, 64), "model"), tokens()),
}
SUMS: dict[str, tuple[Any, ...]] = {
    "few rows": (DATA, summed(48), P(None, "data"), tokens(), updates()),
    "more rows": (DATA, summed(64), P(None, "data"), tokens(), updates()),
    "few rows by vocabulary": (DATA, summed(256), P("data"), tokens(), updates()),
    "many rows by vocabulary": (DATA, summed(4096), P("data"), tokens(), updates()),
}
TABLE = (1024, 64), "data"
#: What XLA knows before it partitions: where a slice begins, and what has no elements.
KNOWN: dict[str, tuple[Any, ...]] = {
    "slice": (PAIR, lambda x: lax.dynamic_slice_in_dim(x, 100, 16), P(), TABLE),
    "slice past the end": (PAIR, lambda x: lax.dynamic_slice_in_dim(x, 2000, 16), P(), TABLE),
    "slice before the start": (PAIR, lambda x: lax.dynamic_slice(x, (-5, 3), (16, 8)), P(), TABLE),
    "row past the end": (PAIR, lambda x: x[5000], P(), TABLE),
    "nothing, row written, clipped": (
        DATA,
        lambda x: x.at[5000].set(1.0, mode="clip"),
        P("data"),
        TABLE,
    ),
    "nothing, largest 0": (DATA, lambda x: lax.top_k(x, 0)[0], P(), ((8, 1024), None, "data")),
    "nothing, no rows": (
        DATA,
        lambda x: jnp.sort(x[:0], axis=1) @ x.T,
        P(),
        ((1024, 64), None, "data"),
    ),
    "nothing, no tokens": (DATA, lambda x: x[jnp.zeros(0, jnp.int32)] * 2, P(), TABLE),
}
CASES = {f"lookup, {k}": v for k, v in LOOKUPS.items()} | {f"sum, {k}": v for k, v in SUMS.items()}
CASES |= KNOWN


@pytest.mark.parametrize("name", CASES)
def test_split_as_by_xla(name: str) -> None:
    mesh, function, out, *arguments = CASES[name]
    found = compare(Example(name, mesh, one(function, *arguments), out))
    assert found.shardy.normal == found.xla.normal
    assert bool(found.shardy.normal) != name.startswith("nothing"), "the case shows nothing"
