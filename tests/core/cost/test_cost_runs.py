"""Following runs of a stream gives the times of following each node, to the last bit."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import flint
from flint.backends.cost.estimate import estimate
from flint.backends.cost.simulate.timeline import POLICIES, Timeline, simulate
from flint.cluster.named import load_cluster
from flint.errors import FlintError
from flint.ir.workload import Workload
from flint.requests.estimate import EstimateRequest
from tests.jax_pipelines import MESH, pipeline


@cache
def _pipelined(schedule: str, chunks: int) -> Workload:
    return flint.trace(pipeline(schedule=schedule, chunks=chunks), MESH).workload


def _same(one: Timeline, other: Timeline) -> bool:
    pairs = zip(one.classes, other.classes, strict=True)
    return all(
        np.array_equal(a.start_ns, b.start_ns) and np.array_equal(a.end_ns, b.end_ns)
        for a, b in pairs
    )


@pytest.mark.parametrize(("schedule", "chunks"), [("1f1b", 1), ("zb-v", 2)])
def test_runs_end_when_their_nodes_do(schedule: str, chunks: int) -> None:
    workload, cluster = _pipelined(schedule, chunks), load_cluster("h100-dgx")
    for policy in POLICIES.values():
        timeline = estimate(workload, EstimateRequest(cluster, policy=policy)).timeline
        works = [c.work for c in timeline.classes]
        assert any(w.peers for w in works), "classes that wait for each other"
        assert _same(timeline, simulate(works, timeline.streams, policy, every_node=True))


def test_messages_that_never_come_are_said_as_before() -> None:
    """A class whose sender sends nothing waits for ever, whichever way it is followed."""
    timeline = estimate(_pipelined("1f1b", 1), EstimateRequest(load_cluster("h100-dgx"))).timeline
    works = [c.work for c in timeline.classes]
    works[1] = replace(works[1], peers=dict.fromkeys(works[1].peers, 1))
    said = set()
    for every_node in (False, True):
        with pytest.raises(FlintError) as found:
            simulate(works, timeline.streams, every_node=every_node)
        said.add(found.value.message)
    assert len(said) == 1 and "wait for each other" in said.pop()
