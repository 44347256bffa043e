"""A JAX step is captured the same in whatever form it is handed over."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.extend import backend
from jax.sharding import Mesh as DeviceMesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import flint
from flint.errors import FlintError
from flint.ir.program import Flag
from flint.tracing import Trace, trace_file
from tests.auto_mesh import auto_mesh

MESH = auto_mesh((8, 4), ("data", "model"))
#: A device multiplies 8 of 64 rows with 128 of 512 columns.
FLOPS = 2 * 8 * 256 * 128


def shaped(shape: tuple[int, ...], *spec: Any) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(MESH, P(*spec)))


W, X = shaped((256, 512), None, "model"), shaped((64, 256), "data", None)
PLAIN = (
    jax.ShapeDtypeStruct((256, 512), jnp.bfloat16),
    jax.ShapeDtypeStruct((64, 256), jnp.bfloat16),
)


def step(w: Any, x: Any) -> Any:
    return jnp.tanh(x @ w).sum()


def scaled(by: Any, w: Any, x: Any) -> Any:
    return by(step(w, x))


class Model:
    def __init__(self) -> None:
        self.scale = 2.0

    @functools.partial(jax.jit, static_argnums=0)
    def jitted(self, w: Any, x: Any) -> Any:
        return step(w, x) * self.scale

    def plain(self, w: Any, x: Any) -> Any:
        return step(w, x) * self.scale


class FilterJit:
    """As Equinox: lowers itself, takes arrays, and holds everything else static."""

    def __init__(self, fn: Callable[..., Any], donated: str = "") -> None:
        self.fn, self.donated = fn, donated

    def __call__(self, *args: Any) -> Any:
        leaves, tree = jax.tree.flatten(args)
        arrays = {str(i): leaf for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)}
        gone = {i: arrays.pop(i) for i in self.donated.split()}

        def inner(gone: dict[str, Any], kept: dict[str, Any]) -> Any:
            full = {**gone, **kept}
            values = [full.get(str(i), leaf) for i, leaf in enumerate(leaves)]
            return self.fn(*jax.tree.unflatten(tree, values))

        return jax.jit(inner, donate_argnums=0)(gone, arrays)

    def lower(self) -> None:
        raise AssertionError("not asked for")


def products(trace: Trace) -> int:
    found = trace.program.flops[trace.program.flops >= FLOPS // 8]
    return int(found.sum())


def communication(trace: Trace) -> list[tuple[str, int]]:
    rows = [trace.program.row(i) for i in range(len(trace.program))]
    return sorted((r.opcode, r.comm_bytes) for r in rows if r.comm_bytes)


def serialised() -> bytes:
    pytest.importorskip("flatbuffers")
    return bytes(export.export(jax.jit(step), platforms=["cuda"])(W, X).serialize())


FORMS: dict[str, Callable[[], Trace]] = {
    "partial": lambda: flint.trace(functools.partial(scaled, jnp.tanh), MESH, W, X),
    "partial of jit": lambda: flint.trace(
        functools.partial(jax.jit(scaled, static_argnums=0), jnp.tanh), MESH, W, X
    ),
    "partial of shapes": lambda: flint.trace(functools.partial(step, W), MESH, X),
    "partial twice": lambda: flint.trace(
        functools.partial(functools.partial(jax.jit(scaled, static_argnums=0), jnp.sin), W), MESH, X
    ),
    "method": lambda: flint.trace(Model().plain, MESH, W, X),
    "jitted method": lambda: flint.trace(Model().jitted, MESH, W, X),
    "static position": lambda: flint.trace(jax.jit(scaled, static_argnums=0), MESH, jnp.sin, W, X),
    "static name": lambda: flint.trace(
        jax.jit(scaled, static_argnames="by"), MESH, by=jnp.sin, w=W, x=X
    ),
    "filter_jit": lambda: flint.trace(FilterJit(scaled), MESH, jnp.sin, W, X),
    "pytree": lambda: flint.trace(jax.tree_util.Partial(step, W), MESH, X),
    "traced": lambda: flint.trace(jax.jit(step).trace(W, X), MESH),
    "lowered": lambda: flint.trace(
        jax.jit(step).trace(W, X).lower(lowering_platforms=("tpu",)), "8x4"
    ),
    "exported": lambda: flint.trace(export.export(jax.jit(step), platforms=["cuda"])(W, X), "8x4"),
    "bytes": lambda: flint.trace(serialised(), MESH),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str) -> None:
    expected = flint.trace(jax.jit(step), MESH, W, X)
    found = FORMS[form]()
    assert (products(found), communication(found)) == (products(expected), communication(expected))
    assert products(expected) // FLOPS == 1
    assert found.mesh == expected.mesh and found.warnings == ()


def test_an_exported_file_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "step.whatever"
    path.write_bytes(serialised())
    assert products(trace_file(path, "8x4")) // FLOPS == 1


def test_a_compiled_program_is_its_devices() -> None:
    compiled = jax.jit(lambda w, x: x @ w).lower(*PLAIN).compile()
    assert int(flint.trace(compiled, {"data": 1}).program.flops.sum()) >= 2 * 64 * 256 * 512
    with pytest.raises(FlintError, match="was compiled for 1 device") as caught:
        flint.trace(compiled, MESH)
    assert caught.value.code == "FL102"


def test_what_is_staged_takes_no_arguments() -> None:
    with pytest.raises(FlintError, match="arguments of flint.trace is given") as caught:
        flint.trace(jax.jit(step).trace(W, X), MESH, W, X)
    assert caught.value.code == "FL219"


def test_donated_arguments_of_a_wrapper() -> None:
    def update(w: Any, by: Any, unused: Any, x: Any) -> Any:
        return by(w) * 2, x.sum()

    def donated(fn: Any) -> list[str]:
        program = flint.trace(fn, MESH, W, jnp.sin, X, X).program
        rows = [program.row(i) for i in range(len(program))]
        return [r.scope or r.opcode for r in rows if Flag.DONATED & r.flags]

    assert donated(FilterJit(update)) == []
    assert len(donated(FilterJit(update, donated="0"))) == 1


def test_a_static_argument_that_nothing_declares() -> None:
    with pytest.raises(FlintError, match="argument by is <class") as caught:
        flint.trace(jax.jit(scaled), MESH, jnp.sin, W, X)
    assert caught.value.code == "FL104" and "static_argnames" in str(caught.value.help)


# pmap -----------------------------------------------------------------------------------------


def test_pmap_is_an_axis_of_its_name() -> None:
    def loss(w: Any, x: Any) -> Any:
        return jax.lax.psum(step(w, x), "batch")

    pmapped = jax.pmap(loss, axis_name="batch", in_axes=(None, 0))
    w, x = PLAIN[0], jax.ShapeDtypeStruct((8, 8, 256), jnp.bfloat16)
    for mesh in ("8", {"batch": 8}, {"data": 8}):
        trace = flint.trace(pmapped, mesh, w, x)
        assert trace.mesh.shape == {"batch": 8}
        assert products(trace) // FLOPS == 4  # all columns of 8 rows
        assert communication(trace) == [("hlo.all-reduce", 2)]
    assert flint.trace(jax.pmap(step, in_axes=(None, 0)), {"data": 8}, w, x).mesh.shape == {
        "data": 8
    }
    for mesh in ("4", "4x2"):
        with pytest.raises(FlintError, match="maps over one axis of 8 devices") as caught:
            flint.trace(pmapped, mesh, w, x)
        assert caught.value.code == "FL107"


# what JAX says of its devices -----------------------------------------------------------------


@pytest.mark.parametrize(("platform", "backend"), [("cuda", "gpu"), ("tpu", "tpu"), ("cpu", "cpu")])
def test_libraries_see_the_platform_and_the_size_of_the_mesh(platform: str, backend: str) -> None:
    seen = []

    def asking(w: Any, x: Any) -> Any:
        seen.append((jax.default_backend(), jax.device_count(), jax.local_device_count()))
        return step(w, x)

    assert flint.trace(asking, MESH, W, X, platform=platform).warnings == ()
    assert seen == [(backend, 32, 32)]
    assert jax.default_backend() == "cpu" and jax.device_count() == len(jax.devices())


@pytest.mark.parametrize("ask", [lambda: jax.devices()[0], lambda: backend.get_default_device()])
def test_asking_for_devices_is_said(ask: Callable[[], Any]) -> None:
    def asking(w: Any, x: Any) -> Any:
        return step(w, x) * (1.0 if ask().platform == "gpu" else 2.0)

    line = ask.__code__.co_firstlineno
    (said,) = flint.trace(asking, MESH, W, X).warnings
    assert f"test_jax_forms.py:{line}" in said and "this machine's CPU" in said


# meshes of this machine, and none -------------------------------------------------------------


def test_nothing_sharded_is_said() -> None:
    one = DeviceMesh(np.array(jax.devices()[:1]).reshape(1, 1), ("data", "model"))
    on_one = jax.jit(
        step, in_shardings=(NamedSharding(one, P(None, "model")), NamedSharding(one, P("data")))
    )
    for fn in (jax.jit(step), on_one):
        assert any(
            "no operation of this program is sharded" in w
            for w in flint.trace(fn, MESH, *PLAIN).warnings
        )


# GSPMD ----------------------------------------------------------------------------------------

_WRITE = """
import sys, jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
jax.config.update("jax_use_shardy_partitioner", False)
mesh = Mesh(np.array(jax.devices()).reshape(8, 4), ("data", "model"))
def shaped(shape, *spec):
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, P(*spec)))
step = lambda w, x: (jnp.tanh(x @ w) @ w.T).sum(0)
print(jax.jit(step).lower(shaped((256, 512), None, "model"), shaped((64, 256), "data", None)).as_text())
"""


def test_gspmd_goes_through_xlas_partitioner(tmp_path: Path) -> None:
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=32"}
    done = subprocess.run(
        [sys.executable, "-c", _WRITE], env={**os.environ, **flags}, capture_output=True, check=True
    )
    (tmp_path / "gspmd.mlir").write_bytes(done.stdout)
    trace = trace_file(tmp_path / "gspmd.mlir", {"data": 8, "model": 4})
    assert products(trace) == 2 * FLOPS
    # column sums over data, and partial sums of 8 rows of a product over model
    assert communication(trace) == [("hlo.all-reduce", 256 * 4), ("hlo.all-reduce", 8 * 256 * 2)]
    assert not trace.warnings
    assert trace.workload.metadata["partitioner"] == "xla"
