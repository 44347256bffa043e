"""Models of some kinds go both ways in: benchmarks/torch_coverage.py, on those that are quick.

That all kinds are exported, gradients included, is in tests/oracle/test_torch_numeric_models.py.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("torch")
pytest.importorskip("jax")

from tests.long import long_but
from tests.torch_zoo import KINDS

ROOT = Path(__file__).parents[2]
KINDS_HERE = ("llama_plain", "mixtral_like", "bert_like", "mamba_like", "dlrm_bag", "unet", "lstm")


@cache
def coverage() -> ModuleType:
    path = ROOT / "benchmarks" / "torch_coverage.py"
    spec = importlib.util.spec_from_file_location("torch_coverage", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ATTEMPTS = [(name, route) for name in KINDS_HERE for route in ("annotated", "world")]


@pytest.mark.parametrize(("name", "route"), long_but(ATTEMPTS[2:4], ATTEMPTS))
def test_a_training_step_is_captured(name: str, route: str) -> None:
    _, operations, collectives, result = coverage().attempt(KINDS[name], route)
    assert result == "ok"
    assert int(operations) > 100 and int(collectives) >= 2
