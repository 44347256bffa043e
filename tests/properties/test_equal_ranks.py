"""Running one rank for all that are alike gives what running every rank gives, to the nanosecond."""

from __future__ import annotations

import tempfile
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flint.backends.chakra import write
from flint.backends.chakra.reading.trace_files import Membership, find_traces
from flint.backends.chakra.writing import writer
from flint.backends.cost.astrasim import run
from flint.backends.cost.astrasim.disturbance import UNDISTURBED, Disturbance
from flint.backends.cost.astrasim.files import read_fabric
from flint.backends.cost.astrasim.grouping import find_grouping
from flint.backends.cost.astrasim.step import NeverEndsError
from flint.ir.mesh import Mesh
from flint.ir.program import Program
from flint.ir.workload import Workload
from tests.chakra_traces import layered_program
from tests.late_ranks import tangled
from tests.random_programs import programs

LATE = Disturbance(((3, 1.5),))


def said(folder: Path, disturbance: Disturbance) -> object:
    """What a run says of each rank, or which ranks never end."""
    try:
        step = run.simulate_traces(folder, folder / "network.yml", disturbance=disturbance)
    except NeverEndsError as error:
        return error.stuck
    spent = [
        [(s.kind, len(s.members), s.count, s.busy_ns, s.waited_ns) for s in rank]
        for rank in step.spent
    ]
    return step.end_ns, step.compute_ns, step.kernels, spent


def assert_alike(folder: Path, disturbance: Disturbance) -> None:
    grouped = said(folder, disturbance)
    with mock.patch.object(run, "find_grouping", lambda *_: None):
        assert grouped == said(folder, disturbance)


@settings(max_examples=12)
@given(programs(Mesh.parse("data=4,model=4"), max_rows=30), st.booleans(), st.booleans())
def test_programs_take_the_same(program: Program, dims: bool, ring: bool) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "out"
        write(Workload.single(program), folder, groups="dims" if dims else "names")
        if ring:
            network = folder / "network.yml"
            network.write_text(network.read_text().replace("Switch, Switch", "Ring, Ring"))
        for disturbance in (UNDISTURBED, LATE):
            assert_alike(folder, disturbance)


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_tangles_take_the_same(
    seed: int, ordered: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not ordered:
        monkeypatch.setattr(writer, "in_one_order", lambda programs, lowered, *_: list(lowered))
    write(Workload.single(tangled(seed)), tmp_path / "out")
    for disturbance in (UNDISTURBED, LATE, Disturbance(((0, 1.5), (1, 1.5)))):
        assert_alike(tmp_path / "out", disturbance)


def count_parts(folder: Path, disturbance: Disturbance = UNDISTURBED) -> int | None:
    traces, fabric = find_traces(folder), read_fabric(folder / "network.yml")
    membership = Membership(traces.world, traces.groups, fabric.sizes)
    found = find_grouping(traces, membership, fabric, disturbance)
    return None if found is None else len(found.firsts)


def test_ranks_are_grouped_where_they_can_be(tmp_path: Path) -> None:
    """A shift that does not wrap tells positions apart; a late rank those at its distances."""
    write(Workload.single(layered_program("data=4,model=2", layers=2)), tmp_path / "shift")
    assert count_parts(tmp_path / "shift") in range(2, 9)
    assert count_parts(tmp_path / "shift", Disturbance(jitter=0.1)) is None
    seed = next(s for s in range(99) if not tangled(s, 8).routes)
    write(Workload.single(tangled(seed, 8)), tmp_path / "alike")
    assert count_parts(tmp_path / "alike") == 1
    assert (count_parts(tmp_path / "alike", Disturbance(((0, 2.0),))) or 0) > 1
