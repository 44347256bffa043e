"""Communication on two streams over one tier at the same time: how long, and who."""

from __future__ import annotations

from flint.backends.cost.network.placement import NetworkPlacement
from flint.backends.cost.notes import Congestion, congestion, congestion_notes
from flint.backends.cost.simulate.timeline import Timeline, simulate
from flint.cluster.models import Cluster
from flint.ir.program import Kind, RegionKind
from tests.timeline_steps import MESH, STREAMS, Steps


def timeline(gap: float) -> Timeline:
    """A send of 30 ns, and two all-reduces of 20 ns with a kernel of `gap` ns between them."""
    steps = Steps()
    first = steps.compute(10)
    steps.message(Kind.SEND, 30, 1, first)
    reduced = steps.collective(20, first)
    steps.collective(20, steps.compute(gap, reduced))
    return simulate([steps.work()], STREAMS)


def found(gap: float, cluster: str = "h100-dgx") -> list[Congestion]:
    placement = NetworkPlacement(MESH, Cluster.load(cluster))
    return list(congestion(timeline(gap).classes[0], placement))


def test_the_time_that_both_are_busy() -> None:
    assert [(c.tier, c.one, c.other, c.time_ns) for c in found(5)] == [
        ("nvlink", "all_reduce over data", "message over pipe", 25)  # 10 to 30, 35 to 40
    ]
    assert [c.time_ns for c in found(1000)] == [20]


def test_a_note_says_what_share_of_the_step_it_is() -> None:
    placement = NetworkPlacement(MESH, Cluster.load("h100-dgx"))
    (note,) = congestion_notes(timeline(5), placement)
    assert note.startswith("nvlink carries all_reduce over data and message over pipe")
    assert "(45.5% of the step)" in note
    assert congestion_notes(timeline(100_000), placement) == []


def test_different_tiers_do_not_disturb_each_other() -> None:
    placement = NetworkPlacement(MESH, Cluster.load("h100-dgx"), {"pipe": "ib", "data": "nvlink"})
    assert list(congestion(timeline(5).classes[0], placement)) == []


def test_a_branch_that_is_not_taken_disturbs_nobody() -> None:
    steps = Steps()
    first = steps.compute(10)
    steps.builder.begin_region(RegionKind.BRANCH, 0, name="case", choice=1)
    steps.collective(20, first)
    steps.builder.end_region()
    steps.message(Kind.SEND, 30, 1, first)
    placement = NetworkPlacement(MESH, Cluster.load("h100-dgx"))
    assert list(congestion(simulate([steps.work()], STREAMS).classes[0], placement)) == []
