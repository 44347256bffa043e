"""torch.export works where Flint is installed.

It imports SymPy, and SymPy imports `flint` hoping for python-flint, whose `__version__` it reads to
choose an implementation of integers.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

EXPORT = """
import torch

class Affine(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 8)

    def forward(self, x):
        return torch.relu(self.linear(x))

rows = torch.export.Dim("rows", min=2, max=64)
program = torch.export.export(Affine(), (torch.zeros(3, 4),), dynamic_shapes=({0: rows},))
import flint
import sympy
assert hasattr(flint, "Mesh") and not hasattr(flint, "__version__")
print(sympy.external.gmpy.GROUND_TYPES, [n.op for n in program.graph.nodes].count("call_function"))
"""

SYMPY = """
import flint
import sympy
assert flint.Mesh
print(sympy.external.gmpy.GROUND_TYPES, sympy.factor("x**2 - 1"))
"""


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


pytestmark = pytest.mark.long


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_torch_export_with_a_dynamic_dimension_runs_beside_flint() -> None:
    ground_types, calls = run(EXPORT).split()
    assert ground_types != "flint"
    assert int(calls) >= 2


@pytest.mark.skipif(find_spec("sympy") is None, reason="sympy is not installed")
def test_sympy_does_not_take_flint_for_python_flint() -> None:
    ground_types, *rest = run(SYMPY).split()
    assert ground_types != "flint"
    assert rest == ["(x", "-", "1)*(x", "+", "1)"]
