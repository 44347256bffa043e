"""Traces of Flint end however late ranks are, and no broken ones are called good that hang.

`python -m benchmarks.liveness` does the same at length.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings

from flint.backends.chakra import check, write
from flint.backends.chakra.writing import writer
from flint.backends.cost.astrasim.disturbance import Disturbance
from flint.ir.mesh import Mesh
from flint.ir.program import Program
from flint.ir.workload import Workload
from tests.late_ranks import count_outcomes, hangs, late_hangs, tangled
from tests.random_programs import programs


@settings(max_examples=15)
@given(programs(Mesh.parse("data=4,model=2"), max_rows=40))
def test_no_program_hangs_when_ranks_are_late(program: Program) -> None:
    with tempfile.TemporaryDirectory() as place:
        assert late_hangs(program, Path(place) / "out", seed=len(program), count=3) == 0


@pytest.mark.parametrize("seed", range(8))
def test_no_tangle_hangs_when_ranks_are_late(seed: int, tmp_path: Path) -> None:
    assert late_hangs(tangled(seed), tmp_path / "out", seed, count=6) == 0


def test_without_an_order_tangles_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the properties above would find; the check says of all that it depends on times."""
    monkeypatch.setattr(writer, "in_one_order", lambda programs, lowered, *_: list(lowered))
    late = 0
    for seed in range(8):
        folder = tmp_path / str(seed)
        write(Workload.single(tangled(seed)), folder)
        report = check(folder)
        assert report.proved != "any-times"
        assert report.ok == (not hangs(folder, Disturbance()))
        late += report.ok and any(hangs(folder, Disturbance(jitter=0.2, seed=n)) for n in range(3))
    assert late > 0


def test_no_broken_traces_that_hang_are_good(tmp_path: Path) -> None:
    found = count_outcomes(range(40), tmp_path, count=3)
    assert found["found"] > 10 and found["any-times"] > 2, found
