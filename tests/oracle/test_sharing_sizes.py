"""Resizing a captured workload gives what capturing the model with those sizes gives, column by column."""

from __future__ import annotations

from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from flint import capturing
from flint.ir.mesh import AxisRef, Mesh
from flint.ir.program import COLUMNS
from flint.ir.workload import Workload
from flint.passes.work.totals import totals
from flint.requests.capture import CaptureRequest
from flint.tools.share.sizes import Expression, Sizes
from flint.tools.share.totals import comm_bytes_by_label
from tests.long import long_but

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
#: Sequences with which no constant of the program is another one's value: those would be one row.
SMALL = ("model=8b", "seq=1536", "num_layers=4")
#: Another width, number of heads, inner size, sequence and depth.
OTHER = ("model=70b", "seq=768", "num_layers=6")
_TABLES = {"shape": "shapes"}


@cache
def capture(mesh: str, settings: tuple[str, ...]) -> Workload:
    model = str(EXAMPLES / "llama_jax.py")
    options = CaptureRequest(model, mesh, settings=settings)
    return capturing.capture(options).workload


def sizes_seen(sizes: Sizes, other: Workload) -> dict[int, int]:
    """Values of variables in a capture whose rows are the same: where a dimension is a variable alone."""
    found: dict[int, int] = {}
    program = other.programs[0]
    for row, shape in enumerate(program.shape.tolist()):
        for expression, size in zip(sizes.dimension(row), program.shapes[shape], strict=True):
            value = variable_of(expression, size, other.mesh)
            if value is not None:
                found.setdefault(*value)
    return found


def variable_of(expression: Expression, size: int, mesh: Mesh) -> tuple[int, int] | None:
    if len(expression.terms) != 1:
        return None
    (factors, coefficient), *_ = expression.terms
    variables = [f for f in factors if isinstance(f, int)]
    if len(variables) != 1:
        return None
    axes = [mesh.axis_size(f) for f in factors if isinstance(f, AxisRef)]
    return variables[0], size // (coefficient * int(np.prod(axes)))


def different(one: Workload, other: Workload) -> list[str]:
    """Columns that differ, shapes by what they are; names and scopes are not sizes."""
    found = []
    for number, (a, b) in enumerate(zip(one.programs, other.programs, strict=True)):
        for column in COLUMNS:
            x, y = getattr(a, column), getattr(b, column)
            if column in _TABLES:
                entries = [getattr(p, _TABLES[column]) for p in (a, b)]
                if [entries[0][i] for i in x.tolist()] == [entries[1][i] for i in y.tolist()]:
                    continue
            if not np.array_equal(x, y):
                rows = np.flatnonzero((x != y).reshape(len(a), -1).any(axis=1))[:3]
                found.append(f"{number} {column}: {[str(a.row(r)) for r in rows]}")
        if [r.trip_count for r in a.regions] != [r.trip_count for r in b.regions]:
            found.append(f"{number} trips")
    return found


# With FSDP the partitioner chooses by sizes what it gathers twice, so that rows differ.
@pytest.mark.parametrize(
    ("mesh", "parallel"),
    long_but([("4x4", "tp"), ("8x2", "tp+sp")], product(("4x4", "8x2"), ("tp", "tp+sp"))),
)
def test_other_sizes_and_meshes_are_what_is_captured_with_them(mesh: str, parallel: str) -> None:
    sizes = Sizes.of(capture("4x4", (*SMALL, f"parallel={parallel}")))
    other = capture(mesh, (*OTHER, f"parallel={parallel}"))
    found = sizes.resized(sizes_seen(sizes, other), mesh=other.mesh)
    assert different(found, other) == []
    for one, two in zip(found.programs, other.programs, strict=True):
        assert totals(one) == totals(two)
        assert comm_bytes_by_label(one) == comm_bytes_by_label(two)


def test_rows_of_a_resized_workload_fit_what_they_read() -> None:
    sizes = Sizes.of(capture("4x4", SMALL))
    values = {v.number: v.value + 1 + v.number for v in sizes.variables}
    found = sizes.resized(values)
    found.verify()
    assert sizes.unexplained == Sizes.of(found).unexplained == frozenset()
