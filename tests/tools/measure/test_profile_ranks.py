"""Profiles of several ranks: clocks that differ, collectives that belong together, ranks that miss."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from flint.cli import app
from flint.cluster.models import Cluster
from flint.errors import FlintError
from flint.ir.op_class import OpClass
from flint.ir.program import Kind
from flint.ir.workload import Workload
from flint.tools.measure.fitting.networks import call_of, measured_calls
from flint.tools.measure.fitting.traces import trace_rows
from flint.tools.measure.profiles.build import workload_of
from flint.tracing import Trace
from tests.rank_profiles import Collective, Item, Job, Kernel, partition, run

WORLD = 4


def replayed(workload: Workload) -> list[dict[str, Any]]:
    """Start and end of all rows of each class: collectives begin when all members are there."""
    programs = workload.programs
    owner = workload.class_of_ranks()
    state = [
        {"begin": np.zeros(len(p)), "end": np.zeros(len(p)), "last": {}, "at": 0} for p in programs
    ]
    waiting: dict[Any, dict[int, tuple[int, float]]] = {}
    turns: list[dict[Any, int]] = [{} for _ in programs]
    moved = True
    while moved:
        moved = False
        for number, (p, s) in enumerate(zip(programs, state, strict=True)):
            while s["at"] < len(p):
                row = s["at"]
                if any(np.isnan(s["end"][d]) for d in p.dependencies(row)):
                    break
                stream = int(p.stream[row])
                ready = max([0.0, *(s["end"][d] for d in p.dependencies(row))])
                ready = max(ready, s["last"].get(stream, 0.0))
                s["begin"][row] = ready
                if p.kind[row] != Kind.COLLECTIVE:
                    s["end"][row] = s["last"][stream] = ready + p.measured_ns[row]
                    s["at"] += 1
                    moved = True
                    continue
                rank = workload.measured_by.classes[number].rank  # type: ignore[union-attr]
                groups = p.groups[int(p.group[row])].members(p.mesh)
                members = next(tuple(int(r) for r in g) for g in groups if rank in g)
                classes = sorted({int(owner[r]) for r in members})
                key = (members, turns[number].get(members, 0))
                arrived = waiting.setdefault(key, {})
                if number not in arrived:
                    arrived[number] = (row, ready)
                    moved = True
                if len(arrived) < len(classes):
                    break
                over = max(t for _, t in arrived.values()) + p.measured_ns[row]
                s["end"][row] = s["last"][stream] = over
                turns[number][members] = key[1] + 1
                s["at"] += 1
                moved = True
    assert all(s["at"] == len(p) for p, s in zip(programs, state, strict=True)), "it hangs"
    return state


def all_starts(
    workload: Workload, number: int, state: list[dict[str, Any]]
) -> np.ndarray[Any, Any]:
    p = workload.programs[number]
    rows = (p.kind >= Kind.COMPUTE) & (p.op != OpClass.HOST)
    return np.asarray(np.sort(state[number]["begin"][rows]))


def truth(job: Job) -> list[np.ndarray[Any, Any]]:
    return [np.sort([start for _, start, _, _ in r.kernels]) for r in job.ranks]


kernels = st.builds(
    Kernel,
    st.tuples(*[st.floats(2_000, 60_000)] * WORLD),
    st.tuples(*[st.floats(0, 30_000)] * WORLD),
)
collectives = st.builds(
    Collective,
    st.sampled_from([partition(WORLD, 4, 1), partition(WORLD, 2, 1), partition(WORLD, 2, 2)]),
    st.sampled_from(["allreduce", "_allgather_base", "_reduce_scatter_base"]),
    st.integers(1, 4096),
    st.floats(5_000, 80_000),
    st.booleans(),
)
schedules = st.lists(st.one_of(kernels, kernels, collectives), min_size=3, max_size=24)
#: One collective of all ranks, so that all clocks can be compared.
MEETING = Collective(partition(WORLD, 4, 1))
START = Kernel((10_000.0,) * WORLD, (0.0,) * WORLD)


@pytest.mark.long
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(schedules, st.lists(st.floats(-1e8, 1e8), min_size=WORLD, max_size=WORLD))
def test_any_schedule_plays_back_with_one_clock(items: list[Item], clocks: list[float]) -> None:
    items = [START, *items, MEETING]
    job = run(WORLD, items, clocks, profiled=list(range(WORLD)))
    workload = workload_of(job.profiles)
    workload.verify()
    counts = {int((p.kind == Kind.COLLECTIVE).sum()) for p in workload.programs}
    assert counts == {sum(isinstance(i, Collective) for i in items)}
    state = replayed(workload)
    found = [all_starts(workload, number, state) for number in range(WORLD)]
    expected = truth(job)
    first, begun = min(t.min() for t in expected), min(t.min() for t in found)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one - begun, other - first, atol=2_500)


def test_clocks_are_aligned_and_said() -> None:
    items: list[Item] = [START, *[START, MEETING] * 5]
    job = run(WORLD, items, [0.0, 5e7, -3e7, 1e3], profiled=[0, 1, 2, 3])
    workload = workload_of(job.profiles)
    assert any("differed by up to 50.000 ms" in w for w in workload.metadata["warnings"])
    by = workload.measured_by
    assert by is not None
    assert max(c.span_ns for c in by.classes) < 1e6


def test_steps_at_other_times_without_a_collective_begin_together() -> None:
    hour = 3.6e12
    job = run(2, [START], [0.0, hour], profiled=[0, 1])
    workload = workload_of(job.profiles)
    by = workload.measured_by
    assert by is not None
    assert max(c.span_ns for c in by.classes) < 1e6
    assert any("1 steps at other times" in w for w in workload.metadata["warnings"])


def test_a_profile_without_shapes_says_so() -> None:
    job = run(1, [START], [0.0], profiled=[0])
    (profile,) = job.profiles
    operators = profile.operators
    silent = replace(operators, signature=np.full_like(operators.signature, -1))
    workload = workload_of([replace(profile, operators=silent)])
    assert len(operators.name)
    assert any("record_shapes=True" in w for w in workload.metadata.get("warnings", ()))


def test_waiting_is_told_from_transfer() -> None:
    late = Kernel((10_000.0, 500_000.0, 10_000.0, 10_000.0), (0.0,) * WORLD)
    job = run(WORLD, [START, late, MEETING], [0.0] * WORLD, profiled=[0, 1, 2, 3])
    workload = workload_of(job.profiles)
    for p in workload.programs:
        assert p.measured_ns[p.kind == Kind.COLLECTIVE].tolist() == [20_000]
    alone = workload_of(job.profiles[:1]).programs[0]
    assert alone.measured_ns[alone.kind == Kind.COLLECTIVE][0] > 400_000


def test_axes_come_from_groups() -> None:
    items: list[Item] = [START, Collective(partition(8, 2, 1)), Collective(partition(8, 4, 2))]
    kernel = Kernel((10_000.0,) * 8, (0.0,) * 8)
    job = run(8, [kernel, *items[1:]], [0.0] * 8, profiled=list(range(8)))
    workload = workload_of(job.profiles)
    assert workload.mesh.sizes == (4, 2)
    groups = [str(g) for g in workload.programs[0].groups]
    assert groups == ["axis1", "axis0"]


def test_groups_that_no_axes_have_stay_lists() -> None:
    odd = Collective(((0, 3), (1, 2)))
    job = run(WORLD, [START, odd], [0.0] * WORLD, profiled=[0, 1, 2, 3])
    workload = workload_of(job.profiles)
    workload.verify()
    assert {g.ranks for p in workload.programs for g in p.groups} == {((0, 3), (1, 2))}


def test_ranks_without_a_profile_are_said_and_have_a_class() -> None:
    job = run(WORLD, [START, MEETING], [0.0] * WORLD, profiled=[0, 3])
    workload = workload_of(job.profiles)
    workload.verify()
    assert any("2 of 4 ranks have a profile" in w for w in workload.metadata["warnings"])
    assert workload.class_of_ranks().tolist()[0] == 0
    assert workload.class_of_ranks().tolist()[3] == 1


def test_ranks_that_files_do_not_say_are_those_of_their_order() -> None:
    job = run(WORLD, [START, MEETING], [0.0] * WORLD, profiled=[0, 1, 2, 3])
    silent = [replace(p, rank=-1) for p in job.profiles]
    workload = workload_of(silent)
    assert any("do not name their rank" in w for w in workload.metadata["warnings"])
    assert [c.name for c in workload.classes] == ["rank 0", "rank 1", "rank 2", "rank 3"]


def test_a_collective_that_one_rank_lacks_becomes_a_kernel() -> None:
    job = run(WORLD, [START, MEETING, MEETING], [0.0] * WORLD, profiled=[0, 1, 2, 3])
    short = run(WORLD, [START, MEETING], [0.0] * WORLD, profiled=[1])
    workload = workload_of([job.profiles[0], short.profiles[0], *job.profiles[2:]])
    workload.verify()
    replayed(workload)
    assert any("no partner" in w for w in workload.metadata["warnings"])
    assert {int((p.kind == Kind.COLLECTIVE).sum()) for p in workload.programs} == {1}


@pytest.mark.parametrize(
    ("change", "code"),
    [({"rank": 0}, "FL812"), ({"world_size": 8}, "FL813"), ({"format": "xplane"}, "FL813")],
)
def test_profiles_that_do_not_fit_are_refused(change: dict[str, Any], code: str) -> None:
    job = run(WORLD, [START, MEETING], [0.0] * WORLD, profiled=[0, 1])
    with pytest.raises(FlintError) as raised:
        workload_of([job.profiles[0], replace(job.profiles[1], **change)])
    assert raised.value.code == code


@pytest.mark.long
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(schedules, st.lists(st.floats(-1e8, 1e8), min_size=WORLD, max_size=WORLD))
def test_the_estimate_is_the_time_that_it_took(items: list[Item], clocks: list[float]) -> None:
    """Groups over one axis meet apart: each rank is a class of its own."""
    job = run(WORLD, [START, *items, MEETING], clocks, profiled=list(range(WORLD)))
    estimate = Trace(workload_of(job.profiles)).estimate("h100-dgx")
    took = max(end for rank in job.ranks for _, _, end, _ in rank.kernels)
    assert estimate.step_time_ns == pytest.approx(took, rel=0.005)


def test_traces_of_all_ranks_pass_their_check(tmp_path: Path) -> None:
    pair = Collective(partition(WORLD, 2, 2), "_allgather_base")
    job = run(WORLD, [START, pair, START, MEETING], [0.0] * WORLD, profiled=[0, 1, 2, 3])
    Trace(workload_of(job.profiles)).save(tmp_path / "traces")
    result = CliRunner().invoke(app, ["check", str(tmp_path / "traces")])
    assert result.exit_code == 0, result.output


def test_collectives_between_nodes_are_measurements_of_the_tier_between_nodes() -> None:
    """Two nodes of 8: groups of neighbors are inside one, groups of equal places are of two ranks."""
    items: list[Item] = [Collective(partition(16, 8, 1)), Collective(partition(16, 2, 8))]
    job = run(16, items, [0.0] * 16, profiled=list(range(16)))
    cluster = Cluster.load("h100-dgx")
    rows = trace_rows(workload_of(list(job.profiles)), cluster.chip).collectives
    calls, left_out = measured_calls(rows, cluster)
    assert not left_out and {t: {c.size for c in m.calls} for t, m in calls.items()} == {
        0: {8},
        1: {2},
    }
    uneven = replace(rows[0], members=tuple(range(3, 14)), ranks=11)
    assert isinstance(call_of(uneven, cluster), str)
