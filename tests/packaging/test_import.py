"""`import flint` is light, its public names are known, and it is told apart from python-flint."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import flint

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("jax", "jaxlib", "torch", "numpy", "pydantic", "networkx", "google.protobuf")
PUBLIC = [
    "Anonymized", "Answer", "Calibration", "Cluster", "CostEstimate", "Difference",
    "Disaggregated", "Estimate", "FlintError", "Grown", "Hint", "KernelCall", "Layers",
    "MeasuredComparison", "Mesh", "OpClass", "Pipeline", "Program", "Proposal", "Stage", "Step",
    "StepHints", "Synthetic", "TorchStep", "Trace", "Workload", "WorldStep", "anonymize",
    "calibrate", "constrained", "cost_of", "entry", "explore", "grow", "import_profiles", "learn",
    "propose", "sharded", "synth", "torch_op", "trace", "trace_distributed",
]  # fmt: skip


def heavy_modules_after(statement: str, *, missing: str = "") -> list[str]:
    """Which of HEAVY a new interpreter has loaded after `statement`.

    `missing` is replaced by an empty module that only looks heavy.
    """
    code = f"""
import sys, types
def pretend(name):
    sys.modules[name] = types.ModuleType(name)
{f"pretend({missing!r})" if missing else ""}
{statement}
print(*(m for m in {HEAVY!r} if m in sys.modules))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    "statement",
    [
        "import flint",
        "from flint import Step, entry, FlintError",
        "import flint.cli",
        "import flint.passes, flint.frontends, flint.backends",
    ],
)
def test_importing_loads_no_heavy_library(statement: str) -> None:
    assert heavy_modules_after(statement) == []


def test_what_waits_for_recordings_loads_no_torch() -> None:
    statement = (
        "import flint.frontends.torch_distributed, flint.frontends.torch_world.program.op_classes"
    )
    assert "torch" not in heavy_modules_after(statement)


@pytest.mark.parametrize("name", HEAVY)
def test_the_check_above_sees_each_heavy_library(name: str) -> None:
    assert name in heavy_modules_after("import flint", missing=name)


def test_the_check_above_sees_a_real_import() -> None:
    assert heavy_modules_after("from flint import Mesh") == ["numpy"]


def test_help_loads_no_heavy_library() -> None:
    statement = """
import contextlib, io
from flint.cli import app
with contextlib.redirect_stdout(io.StringIO()) as shown:
    app(["--help"], prog_name="flint", standalone_mode=False)
assert "capture" in shown.getvalue()
"""
    assert heavy_modules_after(statement) == []


def test_public_names_are_exactly_these() -> None:
    assert flint.__all__ == PUBLIC
    assert dir(flint) == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_exists_and_has_a_docstring(name: str) -> None:
    assert getattr(flint, name).__doc__


@pytest.mark.parametrize("first", ["trace", "Trace"])
def test_names_are_their_own_in_whichever_order_they_are_asked_for(first: str) -> None:
    """`flint.trace` is a function, though its package has a module of that name."""
    code = f"import flint; flint.{first}; print(*((n, getattr(flint, n).__name__) for n in flint.__all__))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == " ".join(str((name, name)) for name in PUBLIC)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'tracer'"):
        _ = flint.tracer  # type: ignore[attr-defined]


def test_there_is_no_version_that_sympy_could_take_for_python_flint() -> None:
    assert not hasattr(flint, "__version__")


@pytest.mark.cold
def test_module_runs_and_prints_a_version() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "flint", "--version"],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    assert done.stdout.startswith("flint ")
