"""Views of any program add up to its estimate, and any program has a page."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flint.backends.cost.estimate import estimate
from flint.backends.cost.memory.over_time import memory_over_time
from flint.cluster.models import Cluster
from flint.errors import FlintError
from flint.ir.program import Kind, Program
from flint.ir.workload import Workload
from flint.requests.estimate import EstimateRequest
from flint.tools.report.views.breakdown import by_kind, row_times, scope_tree
from flint.tools.report.views.communication import communication
from flint.tools.report.views.roofline import roofline
from flint.tools.report.views.slices import timeline_slices
from tests.pages import Page
from tests.random_programs import QUICK, programs

CLUSTER = Cluster.load("h100-dgx")


@given(
    programs(),
    st.sampled_from(["xla-gpu", "xla-tpu", "eager"]),
    st.sampled_from(["overlap", "fsdp", "in-order"]),
)
@QUICK
def test_views_add_up(program: Program, profile: str, policy: str) -> None:
    try:
        found = estimate(
            Workload.single(program),
            EstimateRequest(CLUSTER, profile=profile, policy=policy, unpriced_is_zero=True),
        )
    except FlintError as error:
        assert error.code in ("FL703", "FL705")  # axes that do not fit, types without a peak
        return
    (c,) = found.classes
    memory = memory_over_time(found, 0)
    assert max((p.num_bytes for p in memory.points), default=0) == c.memory.peak_bytes
    times = [p.start_ns for p in memory.points]
    assert times == sorted(times)
    slices = timeline_slices(found, 0, limit=1_000_000)
    rounded = 1 + 1e-3 * len(slices.slices)
    kernels = found.timeline.classes[0].work.program  # a transfer is its sender's
    busy = sum(s.duration_ns for s in slices.slices if kernels.kind[s.row] != Kind.RECV)
    assert busy == pytest.approx(sum(s.busy_ns for s in c.shares), abs=rounded)
    assert sum(p.exposed_ns for p in by_kind(c)) == pytest.approx(c.end_ns, abs=1)
    idle = sum(row_times(found.timeline.classes[0]).idle_ns.values())
    assert scope_tree(found, 0).exposed_ns + idle == pytest.approx(c.end_ns, abs=1)
    sent = [s for s in c.shares if s.over]
    rows = communication(found, 0)
    assert sum(r.exposed_ns for r in rows) == pytest.approx(sum(s.exposed_ns for s in sent), abs=1)
    assert all(p.total_ns >= 0 for p in roofline(found, 0).points)
    assert "notes" in Page.of(found.to_html()).ids()
