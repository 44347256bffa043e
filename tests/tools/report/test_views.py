"""What is shown of an estimate adds up to its numbers."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from flint.backends.cost.estimate import Estimate
from flint.backends.cost.memory.over_time import TIME_POINTS, memory_over_time
from flint.cli import app
from flint.errors import FlintError
from flint.ir.program import Kind
from flint.tools.report.views.breakdown import (
    by_axes,
    by_kind,
    by_phase,
    by_resource,
    row_times,
    scope_tree,
)
from flint.tools.report.views.communication import communication
from flint.tools.report.views.pipeline import GAP_SHARE, PipelineLane, pipeline_schedule
from flint.tools.report.views.roofline import roofline
from flint.tools.report.views.slices import timeline_slices
from tests.estimates import layers, pipelined, zoo

CASES: dict[str, Callable[[], Estimate]] = {
    "layers": layers,
    "pipelined": pipelined,
    "unrolled, on TPUs": lambda: zoo("llama_fsdp_unrolled").estimate("v5p"),
    "flash, blocking": lambda: zoo("llama_fsdp_tp").estimate(
        "h100-dgx", profile="xla-gpu+flash", policy="blocking"
    ),
    "joined": lambda: zoo("llama_fsdp_tp").estimate("h100-dgx", policy="xla"),
}
near = pytest.approx


@pytest.fixture(params=list(CASES), scope="module")
def estimated(request: pytest.FixtureRequest) -> Estimate:
    return CASES[request.param]()


def test_slices_run_as_long_as_shares(estimated: Estimate) -> None:
    for number, c in enumerate(estimated.classes):
        program = estimated.timeline.classes[number].work.program
        busy: dict[tuple[str, str, str], float] = defaultdict(float)
        found = timeline_slices(estimated, number)
        assert (found.left_out, found.left_out_ns) == (0, 0)
        for s in found.slices:
            assert s.stream in found.streams
            assert 0 <= s.start_ns <= s.start_ns + s.duration_ns <= c.end_ns + 0.01
            if program.kind[s.row] != Kind.RECV:
                busy[s.kind, s.over, s.phase] += s.duration_ns
        said = {(s.kind, s.over, s.phase): s.busy_ns for s in c.shares if s.busy_ns}
        assert busy == near(said, abs=0.5)


def test_the_critical_path_goes_through_slices_that_make_up_the_step(estimated: Estimate) -> None:
    """What of the path is no slice of a class is a launch that was late, or a wait for a message."""
    found = [timeline_slices(estimated, n).slices for n in range(len(estimated.classes))]
    most = sum(s.duration_ns for slices in found for s in slices if s.critical)
    assert most >= sum(s.total_ns for s in estimated.critical_path) - 1
    if len(found) == 1:
        assert most == near(estimated.step_time_ns, abs=1)


def test_slices_that_are_left_out_are_counted_and_short(estimated: Estimate) -> None:
    every, some = timeline_slices(estimated, 0), timeline_slices(estimated, 0, limit=7)
    assert (len(some.slices), some.left_out) == (7, len(every.slices) - 7)
    assert set(some.slices) <= set(every.slices)
    starts = [s.start_ns for s in some.slices]
    assert starts == sorted(starts)
    rest = [s.duration_ns for s in every.slices if s not in set(some.slices)]
    assert max(rest) <= min(s.duration_ns for s in some.slices)
    assert some.left_out_ns == near(sum(rest), abs=0.5)


def test_the_highest_point_of_the_memory_curve_is_the_peak(estimated: Estimate) -> None:
    for number, c in enumerate(estimated.classes):
        found = memory_over_time(estimated, number)
        assert max(p.num_bytes for p in found.points) == found.peak_bytes == c.memory.peak_bytes
        assert len(found.points) <= TIME_POINTS + 1
        times = [p.start_ns for p in found.points]
        assert times[0] == 0
        assert times == sorted(set(times))
        assert found.peak_ns in times
        assert times[-1] < c.end_ns
        shown = sum(b.num_bytes * b.count for b in found.buffers)
        shown += found.breakdown.get("fragmentation", 0)  # of no buffer
        assert shown + found.left_out_bytes == sum(found.breakdown.values()) == found.peak_bytes


def test_the_peak_is_where_the_kernels_of_its_source_run() -> None:
    """Memory is laid out on other rows than those that are timed: they are matched by source."""
    for found in (layers(), zoo("llama_fsdp_unrolled").estimate("v5p")):
        memory = memory_over_time(found, 0)
        at = found.classes[0].memory.at
        running = [
            s
            for s in timeline_slices(found, 0).slices
            if s.start_ns - 20_000 <= memory.peak_ns <= s.start_ns + s.duration_ns + 20_000
        ]
        assert at.scope in {s.scope for s in running}


def test_parts_add_up_to_the_step(estimated: Estimate) -> None:
    for number, c in enumerate(estimated.classes):
        for parts in (by_kind(c), by_phase(c), by_resource(c)):
            assert sum(p.exposed_ns for p in parts) == near(c.end_ns, abs=0.5)
        tree, times = scope_tree(estimated, number), row_times(estimated.timeline.classes[number])
        assert tree.exposed_ns + sum(times.idle_ns.values()) == near(c.end_ns, abs=0.5)
        assert tree.exposed_ns == near(tree.own_ns + sum(p.exposed_ns for p in tree.parts), abs=0.5)
        exposed = sum(s.exposed_ns for s in c.shares if s.over)
        assert sum(p.exposed_ns for p in by_axes(c)) == near(exposed, abs=0.1)


def test_communication_adds_up_to_its_shares(estimated: Estimate) -> None:
    for number, c in enumerate(estimated.classes):
        busy: dict[tuple[str, str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
        for row in communication(estimated, number):
            busy[row.kind, row.over, row.phase][0] += row.busy_ns
            busy[row.kind, row.over, row.phase][1] += row.exposed_ns
        for s in c.shares:
            if s.over:
                assert busy.pop((s.kind, s.over, s.phase)) == near(
                    [s.busy_ns, s.exposed_ns], abs=0.5
                )
        assert all(times == [0, 0] for times in busy.values())


def test_communication_says_why() -> None:
    rows = communication(layers(), 0)
    gathers = [r for r in rows if r.kind == "all_gather" and r.over == "data"]
    assert gathers
    assert all("whole for " in r.cause for r in gathers)
    assert 8 in {r.group_size for r in gathers}
    assert all(r.location.startswith("zoo.py:") for r in gathers)
    assert [r.exposed_ns for r in rows] == sorted((r.exposed_ns for r in rows), reverse=True)


def test_roofline_has_every_kernel_once(estimated: Estimate) -> None:
    number = estimated.slowest_class
    found, c = roofline(estimated, number), estimated.classes[number]
    assert sum(p.total_ns for p in found.points) == near(
        sum(s.busy_ns for s in c.shares if not s.over and s.busy_ns), abs=1
    )
    assert sum(p.count for p in found.points) == sum(
        s.count for s in c.shares if not s.over and s.busy_ns
    )
    peak = max(found.peak_flops_per_s.values())
    assert all(p.flops_per_s <= peak for p in found.points)
    assert estimated.dtype in found.peak_flops_per_s


def _passes(lane: PipelineLane) -> list[tuple[str, int]]:
    """The passes of a lane, those that are in several boxes once."""
    return list(dict.fromkeys((b.work[0], b.microbatch) for b in lane.boxes))


def test_a_pipeline_runs_its_schedule() -> None:
    found = pipeline_schedule(pipelined())
    assert found is not None
    assert (found.schedule, found.microbatches, len(found.lanes)) == ("1f1b", 4, 2)
    first, second = found.lanes
    assert _passes(first)[:8] == [
        ("f", 0), ("f", 1), ("b", 0), ("f", 2), ("b", 1), ("f", 3), ("b", 2), ("b", 3),
    ]  # fmt: skip
    assert _passes(second)[:3] == [("f", 0), ("b", 0), ("f", 1)]
    for lane, timeline in zip(found.lanes, pipelined().timeline.classes, strict=True):
        ends = [b.end_ns for b in lane.boxes]
        assert all(b.start_ns >= before for b, before in zip(lane.boxes[1:], ends, strict=False))
        on = timeline.work.stream[timeline.work.nodes.row] == 0
        computing = np.sum((timeline.end_ns - timeline.start_ns)[on])
        assert lane.idle_ns + computing == near(found.end_ns, abs=0.1)
        drawn = sum(b.end_ns - b.start_ns for b in lane.boxes)
        assert computing - 1 <= drawn <= computing + GAP_SHARE * found.end_ns * on.sum()
    assert pipeline_schedule(layers()) is None


def test_views_in_json_are_those_that_are_asked_for() -> None:
    plain = layers().to_json()
    memory = plain["classes"][0]["memory"]
    assert max(size for _, size in memory["over_time"]) == memory["peak_bytes"]
    assert not {"slices", "roofline", "scopes", "communication"} & plain["classes"][0].keys()
    views = ["slices", "roofline", "communication", "scopes", "pipeline"]
    whole = json.loads(json.dumps(pipelined().to_json(views=views, rank_class="pipe 1")))
    assert set(views[:4]) <= whole["classes"][1].keys()
    assert not set(views[:4]) & whole["classes"][0].keys()
    assert [lane["name"] for lane in whole["pipeline"]["lanes"]] == [
        "pipe 0: embed, layers 0-1",
        "pipe 1: layers 2-3, head",
    ]
    with pytest.raises(FlintError, match=r"no view 'slice'.*slices") as caught:
        layers().to_json(views=["slice"])
    assert caught.value.code == "FL504"


def test_views_are_for_json_documents(tmp_path: Path) -> None:
    path = tmp_path / "step.flint"
    layers().workload.save(path)
    asked = ["estimate", str(path), "-c", "h100-dgx", "--view", "roofline"]
    refused = CliRunner().invoke(app, asked)
    assert refused.exit_code == 2
    assert "FL218" in refused.stderr
    document = json.loads(CliRunner().invoke(app, [*asked, "--json", "--class", "0"]).stdout)
    assert document["schema"] == "flint.estimate/1"
    assert len(document["classes"][0]["roofline"]["points"]) == len(roofline(layers(), 0).points)
