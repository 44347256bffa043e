"""The captures that profiles are compared with are what `flint capture` still makes of their scripts."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from flint.cli.inputs import load_workload
from flint.ir.workload import Workload
from flint.tools.change.diff.difference import Side, compare

pytest.importorskip("torch")
FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "compare_models"
#: Of another version the models are written in another way.
TRANSFORMERS = "4.53.3"


def _transformers() -> str:
    try:
        return version("transformers")
    except PackageNotFoundError:
        return ""


needs_transformers = pytest.mark.skipif(
    _transformers() != TRANSFORMERS, reason=f"needs transformers {TRANSFORMERS}"
)
HUGGINGFACE = ("huggingface.py", "--mesh", "1", "--steps", "0")


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "command", "arguments"),
    [
        ("resnet-18", ("resnet_ddp.py", "--mesh", "8"), ()),
        *(
            pytest.param(name, HUGGINGFACE, ("--model", name), marks=needs_transformers, id=name)
            for name in ("bert-small", "qwen1.5-0.5b", "vit")
        ),
    ],
)
def test_captures_are_as_kept(
    name: str, command: tuple[str, ...], arguments: tuple[str, ...], tmp_path: Path
) -> None:
    script, *options = command
    subprocess.run(
        [sys.executable, "-m", "flint", "capture", str(FOLDER / script), "--world", "-q", *options,
         "-o", str(tmp_path / "captured"), "--", *arguments],
        check=True,
    )  # fmt: skip
    kept, made = Workload.load(FOLDER / f"{name}.flint"), load_workload(tmp_path / "captured")
    assert compare(Side.of(kept), Side.of(made)).is_equal
