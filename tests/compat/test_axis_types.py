"""Every way of saying how a step is sharded gives the same totals, on every JAX that is supported."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import flint
from flint.errors import FlintError
from flint.frontends.jax_step.meshes import abstract_mesh
from flint.ir.mesh import Mesh
from tests import axis_type_probes as probes

# By hand: two products of 64x32x128 on 32 devices are 2 * 2 * 64 * 32 * 128 / 32 = 32,768 FLOP, a
# relu between them 64 * 128 / 32 = 256. The second product contracts what "model" shards: its
# result, 8 rows of 32 floats, is summed over it. Backward there are three more products, and both
# gradients are summed over "data".
REDUCED = "all_reduce model 1 x 1,024 B"
FORWARD = f"33,024 FLOP; 9,216 B; {REDUCED}"
LINEAR = f"32,768 FLOP; 9,216 B; {REDUCED}"
GRADIENTS = "all_reduce data 2 x 4,096 B"
STACKED = "198,144 FLOP; 50,176 B; all_reduce model 6 x 1,024 B"
OTHERS = {
    "auto_out_shardings": "33,024 FLOP; 9,216 B; reduce_scatter model 1 x 1,024 B; "
    "all_gather data 1 x 256 B",
    "constraint_by_spec": LINEAR,
    "constraint_by_sharding": LINEAR,
    "mesh_set_around": LINEAR,
    "mesh_entered_around": LINEAR,
    "real_constraint_by_sharding": LINEAR,
    "gradient": f"82,944 FLOP; 9,216 B; {GRADIENTS}; {REDUCED}",
    "explicit_gradient": f"83,200 FLOP; 9,216 B; {GRADIENTS}; {REDUCED}",
    "rematerialised": f"66,304 FLOP; 9,216 B; {GRADIENTS}",
    "donated": f"84,992 FLOP; 9,216 B; {GRADIENTS}; {REDUCED}",
    "scanned": STACKED,
    "explicit_scanned": STACKED,
    "mapped": "528,384 FLOP; 24,576 B; all_reduce model 1 x 16,384 B",
    "shard_map_gradient": "49,664 FLOP; 9,216 B; all_reduce data 1 x 4,096 B",
    "shard_map_in_scan": "165,120 FLOP; 9,216 B; all_reduce model 5 x 1,024 B",
    "explicit_reshard": "32,768 FLOP; 9,216 B; all_to_all model 1 x 4,096 B; "
    "all_gather model 1 x 1,024 B",
    "real_closed_over": f"33,024 FLOP; 5,120 B; {REDUCED}",
    # JAX types arguments by what they are sharded by themselves, not by in_shardings of jax.jit,
    # and a function that is jitted inside (relu) is constrained to its types: replicated here.
    "explicit_in_shardings": "598,016 FLOP; 9,216 B; all_gather model 2 x 4,096 B; "
    "all_gather data 1 x 1,024 B",
    "real_explicit_in_shardings": "598,016 FLOP; 9,216 B; all_gather model 2 x 4,096 B; "
    "all_gather data 1 x 1,024 B",
    # Nothing is sharded: a mesh of one device has nothing to shard over.
    "jit_on_one_device": "1,056,768 FLOP; 40,960 B",
    "constraint_on_one_device": "1,048,576 FLOP; 40,960 B",
}


@pytest.mark.parametrize("name", probes.PROBES)
@pytest.mark.filterwarnings("ignore:.with mesh.*context manager:DeprecationWarning")
def test_totals_of_virtual_meshes(name: str) -> None:
    assert probes.totals(probes.PROBES[name]()) == OTHERS.get(name, FORWARD)


def test_totals_of_meshes_of_real_devices() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.axis_type_probes"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert found == {name: OTHERS.get(name, FORWARD) for name in probes.REAL_MESHES}


def test_the_mesh_comes_back_with_its_types() -> None:
    for types in (
        (AxisType.Auto, AxisType.Auto),
        (AxisType.Auto, AxisType.Explicit),
        (AxisType.Explicit, AxisType.Auto),
    ):
        given = AbstractMesh((8, 4), ("data", "model"), types)
        assert abstract_mesh(Mesh.parse(given)) == given
    nothing_said = abstract_mesh(Mesh.parse("8x4"))
    assert nothing_said.axis_types == (AxisType.Auto, AxisType.Auto)


def test_a_program_that_explicit_axes_refuse_is_captured_with_auto_and_says_so() -> None:
    (warning,) = probes.explicit_written_for_auto().warnings
    assert "explicit" in warning and "axis_types=(AxisType.Auto,)" in warning
    assert "axis_type_probes.py:" in warning


def test_explicit_axes_that_were_surely_meant_are_not_taken_as_auto() -> None:
    mesh = AbstractMesh((8, 4), ("data", "model"), (AxisType.Explicit, AxisType.Auto))
    x, w = probes.array(mesh, (64, 32), None, "data"), probes.array(mesh, (32, 16), "data")
    with pytest.raises(FlintError) as caught:
        flint.trace(lambda x, w: x @ w, "8x4", x, w)
    assert caught.value.code == "FL203" and "ambiguous" in caught.value.message


def test_types_of_an_entry(tmp_path: Path) -> None:
    from flint.frontends.model_file import Target, load_step

    (tmp_path / "model.py").write_text(
        "import flint\n"
        "@flint.entry(axes=('model', 'data'), axis_types=('explicit', 'auto'))\n"
        "def train(mesh):\n"
        "    return flint.Step(lambda: mesh.axis_types, name=str(mesh.axis_types))\n"
    )
    loaded = load_step(Target(tmp_path / "model.py"), "pipe=2,data=4,model=2")
    assert loaded.step.name == "(Auto, Auto, Explicit)"
    with pytest.raises(FlintError, match="do not fit the axes"):
        flint.entry(axes=("data",), axis_types=("auto", "explicit"))
    with pytest.raises(FlintError, match="do not fit the axes"):
        flint.entry(axes=("data",), axis_types="manual")


@pytest.mark.parametrize(
    ("probe", "code", "words"),
    [
        (
            lambda: probes.jit_in_shardings(
                AbstractMesh((4, 8), ("data", "model"), (AxisType.Auto,) * 2)
            ),
            "FL107",
            "over a mesh of data=4,model=8, but the mesh is data=8,model=4",
        ),
        (  # its devices are numbered otherwise
            lambda: probes.jit_out_shardings(
                AbstractMesh((4, 8), ("model", "data"), (AxisType.Auto,) * 2)
            ),
            "FL107",
            "over a mesh of model=4,data=8, but the mesh is data=8,model=4",
        ),
        (
            lambda: probes.shard_map_full(probes._one_device()),
            "FL203",
            "the mesh is data=8,model=4 with axes of type data: Auto, model: Auto",
        ),
        (
            lambda: probes.shard_map_full(probes.EXPLICIT),
            "FL203",
            "axis_types=(Explicit, Explicit)",
        ),
    ],
)
def test_another_mesh_is_refused_with_how_it_differs(
    probe: Callable[[], flint.Trace], code: str, words: str
) -> None:
    with pytest.raises(FlintError) as caught:
        probe()
    assert caught.value.code == code
    assert words in str(caught.value)


# what the user has set --------------------------------------------------------------------------


def _with_config(name: str, value: object, probe: Callable[[], flint.Trace]) -> flint.Trace:
    before = getattr(jax.config, name)
    jax.config.update(name, value)
    try:
        found = probe()
        assert getattr(jax.config, name) == value  # and it is as the user set it again
        return found
    finally:
        jax.config.update(name, before)


@pytest.mark.parametrize(
    ("name", "value"), [("jax_use_shardy_partitioner", False), ("jax_disable_jit", True)]
)
def test_settings_that_would_lose_shardings_do_not(name: str, value: object) -> None:
    assert probes.totals(_with_config(name, value, probes.auto)) == FORWARD


def test_numbers_are_as_wide_as_the_user_set_them() -> None:
    def total(x: jax.Array) -> jax.Array:
        return x.sum() + jnp.arange(8.0).sum()

    shape = jax.ShapeDtypeStruct((8,), jnp.float32, sharding=NamedSharding(probes.AUTO, P()))

    def capture() -> flint.Trace:
        return flint.trace(total, "8x4", shape)

    assert "float64" not in capture().program.dtypes
    assert "float64" in _with_config("jax_enable_x64", True, capture).program.dtypes


def test_environments_of_containers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    monkeypatch.setenv("JAX_USE_SHARDY_PARTITIONER", "0")
    code = "from tests.axis_type_probes import *; print(totals(auto()), jax.config.jax_platforms)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == f"{FORWARD} cuda"


def test_an_exported_module_with_old_shardings_is_refused() -> None:
    from jax import export

    def exported() -> export.Exported:
        sharding = NamedSharding(probes.AUTO, P("data"))
        function = jax.jit(lambda x: x * 2, in_shardings=sharding)
        return export.export(function, platforms=("cuda",))(probes.array(None, (64, 32)))

    jax.config.update("jax_use_shardy_partitioner", False)
    try:
        old = exported()
    finally:
        jax.config.update("jax_use_shardy_partitioner", True)
    x = probes.array(probes.AUTO, (64, 32), "data")
    with pytest.raises(FlintError, match="GSPMD") as caught:
        flint.trace(lambda x: old.call(x), "8x4", x)
    assert caught.value.code == "FL107"
