"""The warning about mesh axes over which most of the work is done again by every device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import flint
from flint.backends.cost.estimate import estimate
from flint.cli.inputs import load_workload
from flint.cluster.named import load_cluster
from flint.requests.estimate import EstimateRequest

ROWS = P("data")
MESH = AbstractMesh((4, 2), ("data", "model"), (AxisType.Auto, AxisType.Auto))


def array(shape: tuple[int, ...], *spec: Any) -> Any:
    """An abstract array on MESH."""
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(MESH, P(*spec)))


def product(x: Any, w: Any) -> Any:
    return x @ w


def by_hand(w: Any, body: Callable[..., Any] = product, out: Any = ROWS) -> Any:
    """`body` in a shard_map in a loop: rows over "data", the second argument sharded by `w`."""
    mapped = jax.shard_map(body, mesh=MESH, in_specs=(ROWS, w), out_specs=out, check_vma=False)
    return lambda x, w: jax.lax.scan(lambda c, _: (mapped(c, w), None), x, length=3)[0]


def test_nothing_sharded() -> None:
    x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    (warning,) = flint.trace(product, "4x2", x, x).warnings
    assert warning.startswith(
        "no operation of this program is sharded over the mesh: every device along 'data' "
        "(4 devices) and 'model' (2 devices) does all of the work, 100% in dot"
    )
    assert "test_replicated_work.py:" in warning


def test_an_axis_that_nothing_uses() -> None:
    x, w = array((64, 64), "data"), array((64, 64))
    (warning,) = flint.trace(product, "4x2", x, w).warnings
    assert warning.startswith(
        "devices along 'model' (2 devices) do the same work: 100% of the FLOPs are not sharded "
        "over it, 100% in dot"
    )


def test_more_than_half_counts_and_half_does_not() -> None:
    x, w, v = array((64, 64), "data"), array((64, 64), None, "model"), array((64, 64))
    assert flint.trace(lambda x, w, v: (x @ w, x @ v), MESH, x, w, v).warnings == ()
    (warning,) = flint.trace(lambda x, w, v: (x @ w, x @ v, x @ (v + v)), MESH, x, w, v).warnings
    assert "'model' (2 devices) do the same work: 67% of the FLOPs" in warning


def test_loops_count_as_often_as_they_run() -> None:
    def step(x: Any, w: Any, v: Any) -> Any:
        return jax.lax.scan(lambda c, _: (c @ v, None), x, length=9)[0], x @ w

    x, w, v = array((64, 64), "data"), array((64, 64), None, "model"), array((64, 64))
    (warning,) = flint.trace(step, MESH, x, w, v).warnings
    assert "90% of the FLOPs" in warning and "90% in dot" in warning


@pytest.mark.parametrize(
    ("function", "specs"),
    [
        (product, (("data",), (None, "model"))),  # rows and columns
        (product, (("data", "model"), ("model",))),  # a sum over "model"
        (product, ((("data", "model"),), ())),  # rows over both
        (by_hand(P(None, "model"), out=P("data", "model")), (("data",), ())),  # named by a spec
        (by_hand(P(), lambda x, w: jax.lax.psum(x @ w, "model")), (("data",), ())),
        (by_hand(P(), lambda x, w: x @ w * jax.lax.axis_index("model")), (("data",), ())),
    ],
)
def test_what_is_split_is_not_warned_of(function: Any, specs: Any) -> None:
    x, w = array((64, 64), *specs[0]), array((64, 64), *specs[1])
    assert flint.trace(function, MESH, x, w).warnings == ()


def test_a_body_of_shard_map_that_knows_of_one_axis_only() -> None:
    x, w = array((64, 64), "data"), array((64, 64))
    (warning,) = flint.trace(by_hand(P()), MESH, x, w).warnings
    assert "devices along 'model' (2 devices) do the same work" in warning


def test_axes_of_one_device_are_no_axes() -> None:
    x, w = array((64, 64), "data"), array((64, 64))
    assert flint.trace(product, {"data": 4, "model": 1}, x, w).warnings == ()
    assert flint.trace(product, {"data": 1, "model": 1}, x, w).warnings == ()


def test_shardings_of_a_mesh_of_one_device_are_said_to_shard_nothing() -> None:
    import numpy as np

    one = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), MESH.axis_names)
    jitted = jax.jit(product, in_shardings=NamedSharding(one, P("data", "model")))
    x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    foreign, nothing = flint.trace(jitted, "8x4", x, x).warnings
    assert "over a mesh of data=1,model=1 instead of the capture's mesh" in foreign
    assert nothing.startswith("no operation of this program is sharded")


@pytest.mark.parametrize(
    ("rows", "columns", "share"),
    [("data", "model", 1.0), ("data", None, 0.5), (None, "model", 0.25), (None, None, 0.125)],
)
def test_products_that_devices_repeat_count_for_hfu_alone(
    rows: str | None, columns: str | None, share: float, tmp_path: Path
) -> None:
    """Five products of a step on all devices; traces on disk say the same."""
    x, w = array((512, 256), rows), array((256, 1024), None, columns)
    v = array((1024, 256), columns)
    loss = jax.grad(lambda w, v, x: ((jax.nn.relu(x @ w) @ v) ** 2).sum(), argnums=(0, 1))
    trace = flint.trace(loss, MESH, w, v, x)
    trace.save(tmp_path / "traces")
    found = estimate(load_workload(tmp_path / "traces"), EstimateRequest(load_cluster("h100-dgx")))
    assert found.model_flops == 5 * 2 * 512 * 256 * 1024
    assert found.model_flops == found.executed_flops * share
    assert ("that devices repeat" in found.to_text()) == (share < 1)


def test_products_in_a_shard_map_are_parts() -> None:
    """Types in its body are of a part: a device's products are its own, unless an axis repeats them."""
    x, w = array((512, 512), "data"), array((512, 512), None, "model")
    whole = flint.trace(by_hand(P()), MESH, x, array((512, 512)))
    parts = flint.trace(by_hand(P(None, "model"), lambda x, w: jnp.tile(x @ w, 2)), MESH, x, w)
    assert [t.workload.model_share for t in (whole, parts)] == [0.5, 1.0]
