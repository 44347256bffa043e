"""Which scripts are JAX's, which chips JAX has, and how its devices stand."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

pytest.importorskip("jax")

from flint.errors import FlintError
from flint.frontends.jax_world.runtime.chips import answers_of
from flint.frontends.jax_world.runtime.devices import VirtualClient, torus_shape
from flint.frontends.jax_world.work import Weight, Weights
from flint.frontends.script_kind import ScriptKind, script_kind

SCRIPTS = {
    "import jax": ScriptKind.JAX,
    "def main():\n    from flax import nnx": ScriptKind.JAX,
    "import jax\nfrom torch.utils.data import DataLoader": ScriptKind.JAX,
    "import jax\nimport torch\nfrom torch.utils import data": ScriptKind.JAX,
    "import torch": ScriptKind.TORCH,
    "import torch.distributed as dist\nimport jax": ScriptKind.TORCH,
    "from torch import nn\nimport torch\nimport jax": ScriptKind.TORCH,
    "import beside": ScriptKind.JAX,
    "from inside.steps import train": ScriptKind.JAX,
    "import argparse": ScriptKind.TORCH,
    "import (": ScriptKind.TORCH,
}


@pytest.mark.parametrize("text", SCRIPTS)
def test_a_script_is_what_it_imports(tmp_path: Path, text: str) -> None:
    (tmp_path / "beside.py").write_text("import optax, beside")
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "steps.py").write_text("import jax.numpy as jnp")
    script = tmp_path / "train.py"
    script.write_text(text)
    assert script_kind(script) is SCRIPTS[text]


#: Files of a project whose launcher does not import JAX, and the launcher.
PROJECTS = [
    ({"project/__init__.py": "import jax"}, "from project import train", "run.py"),
    ({"project/train.py": "import jax"}, "from project import train", "run.py"),
    (
        {"project/__init__.py": "from .loop import train", "project/loop.py": "import jax"},
        "from project import train",
        "run.py",
    ),
    (
        {
            "project/__init__.py": "",
            "project/parts/__init__.py": "from ..model import step as train",
            "project/model.py": "from . import ops",
            "project/ops.py": "import jax",
        },
        "import project.parts.nothing",
        "run.py",
    ),
    ({"project/train.py": "import jax"}, "from project import train", "scripts/run.py"),
    ({"project/model.py": "import jax"}, "from project.model import step", "project/run.py"),
    ({"placed/inplace.py": "import jax"}, "import inplace", "scripts/run.py"),
]


@pytest.mark.parametrize(("files", "text", "script"), PROJECTS)
def test_a_launcher_is_what_its_project_imports(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: dict[str, str],
    text: str,
    script: str,
) -> None:
    """Beside the launcher, in the current folder, or on Python's path."""
    for name, inside in {**files, script: text}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(inside)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "placed"))
    assert script_kind(Path(script)) is ScriptKind.JAX


def test_chips_answer_as_their_drivers_do() -> None:
    h100, v5e = answers_of("h100"), answers_of("tpu-v5e")
    assert (h100.platform, h100.backend, h100.kind) == ("cuda", "gpu", "NVIDIA H100 80GB HBM3")
    assert h100.capability == "9.0"
    assert (v5e.platform, v5e.backend, v5e.kind) == ("tpu", "tpu", "TPU v5 lite")
    with pytest.raises(FlintError) as caught:
        answers_of("h1000")
    assert caught.value.code == "FL702"


@pytest.mark.parametrize(
    ("axes", "dimensions", "shape"),
    [
        ((64, 4), 3, (4, 8, 8)),
        ((512, 8), 3, (8, 16, 32)),
        ((4096,), 3, (16, 16, 16)),
        ((64, 4), 2, (1, 4, 64)),
        ((16, 16), 2, (1, 16, 16)),
        ((7,), 3, (1, 1, 7)),
        ((2, 2, 2, 2), 3, (2, 2, 4)),
    ],
)
def test_chips_stand_in_a_torus_that_the_mesh_can_be_laid_along(
    axes: tuple[int, ...], dimensions: int, shape: tuple[int, ...]
) -> None:
    assert torus_shape(math.prod(axes), dimensions, axes) == shape


def test_every_chip_of_a_torus_has_a_place_of_its_own() -> None:
    devices = VirtualClient(answers_of("v5p"), (64, 4)).devices()
    assert len({d.coords for d in devices}) == len(devices) == 256
    assert [max(d.coords[i] for d in devices) for i in range(3)] == [3, 7, 7]


def test_weights_count_products_as_often_as_they_run() -> None:
    import jax
    import jax.numpy as jnp

    def layer(x: object, w: object) -> object:
        return jnp.dot(x, w), None

    def function(x: object, ws: object) -> object:
        return jax.lax.scan(layer, x, ws)[0]

    x, ws = jax.ShapeDtypeStruct((8, 16), "f4"), jax.ShapeDtypeStruct((5, 16, 16), "f4")
    assert Weights().of(jax.make_jaxpr(function)(x, ws)) == Weight(5 * 2 * 8 * 16 * 16, 6)


def test_bytes_of_a_compiled_kernel_are_no_obstacle(tmp_path: Path) -> None:
    """Kernels that JAX compiles for GPUs while it lowers carry them in their configuration."""
    from flint.tracing import trace_file

    file = tmp_path / "kernel.mlir"
    file.write_text(
        """
        func.func public @main(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {
          %0 = stablehlo.custom_call @mosaic_gpu_v2(%x) {api_version = 4 : i32,
            mhlo.backend_config = {module = "\\FE\\FFELF", name = "kernel"}
          } : (tensor<8x4xf32>) -> tensor<8x4xf32>
          return %0 : tensor<8x4xf32>
        }
        """
    )
    summary = trace_file(file, "2").summary().to_text()
    assert "unpriced ops                custom_call.mosaic_gpu_v2 x1" in summary
