"""The policy `blocking`: collectives and what is sent take the time of the compute stream."""

from __future__ import annotations

import pytest

pytest.importorskip("jax")

import flint
from flint.ir.program import Kind
from tests.jax_pipelines import MESH, pipeline


def test_computation_waits_for_what_it_sends() -> None:
    trace = flint.trace(pipeline(), MESH)
    blocking = trace.estimate("h100-dgx", policy="blocking")
    assert blocking.step_time_ns > trace.estimate("h100-dgx").step_time_ns
    for track in blocking.timeline.classes:
        sent = track.work.program.kind == Kind.SEND
        assert sent.any() and (track.work.stream[sent] == 0).all()
        assert (track.work.stream[track.work.program.kind == Kind.RECV] > 0).all()
