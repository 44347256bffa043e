"""Random programs against what XLA's GPU compiler made of them (`python -m benchmarks.differential`).

The compiler's side is recorded, of programs that were equal then: they stay equal.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax", reason="the programs are JAX's")

from benchmarks.differential.__main__ import bytes_of, captured
from benchmarks.differential.programs import program
from tests.recorded import recorded_version_only

pytestmark = recorded_version_only
KEPT: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "differential_xla_gpu.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("kept", KEPT, ids=lambda kept: str(kept["seed"]))
def test_collectives_are_the_compilers(kept: dict[str, Any]) -> None:
    example = program(kept["seed"], kept["family"])
    assert example.name == kept["name"], "the generator changed: record the programs again"
    assert bytes_of(captured(example, "xla-gpu")) == kept["bytes"]
