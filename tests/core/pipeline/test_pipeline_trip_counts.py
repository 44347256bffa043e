"""Loops inside stages whose bound depends on data."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("jax")
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import flint
from tests.auto_mesh import auto_mesh

MESH = auto_mesh((2, 2), ("pipe", "data"))


def shaped(*shape: int, spec: P = P()) -> jax.ShapeDtypeStruct:  # noqa: B008 - immutable
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(MESH, spec))


def until_large(w: Any, x: Any) -> Any:
    return jax.lax.while_loop(lambda x: jnp.sum(x) < 1e9, lambda x: x @ w, x)


PIPELINE = flint.Pipeline(
    stages=[flint.Stage(until_large, shaped(8, 8), name) for name in ("first", "second")],
    inputs=(shaped(8, 8, spec=P("data")),),
    microbatches=2,
)


def test_trip_counts_reach_the_stages() -> None:
    trace = flint.trace(PIPELINE, MESH, trip_counts={"loop0": 5})
    # Two microbatches of four rows, two of them on a device; 5 products each.
    assert [c.matmul_flops for c in trace.summary().classes] == [2 * 5 * 2 * 2 * 8 * 8] * 2


def test_without_them_the_loop_is_named() -> None:
    with pytest.raises(flint.FlintError, match=r"loop0 in first depends on data") as caught:
        flint.trace(PIPELINE, MESH)
    assert caught.value.code == "FL403"
