"""Profiles of eight ranks of one real job, against an independent reading of the same files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flint
from flint.ir.program import Kind
from flint.tracing import Trace

DATA = Path(__file__).resolve().parents[2] / "benchmarks" / "data" / "kineto_dlrm"
FILES = [DATA / f"rank{rank}of8.json.gz" for rank in range(8)]
#: The clocks of these ranks are one; whole microseconds, and ends that differ by up to 7 of them.
CLOCK_NS = 10_000


def _collectives(path: Path) -> list[tuple[int, int]]:
    """Start and end of each kernel of NCCL, in ns, in order."""
    events: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    found = [e for e in events if e["cat"] == "kernel" and e["name"].startswith("nccl")]
    return sorted((e["ts"] * 1000, (e["ts"] + e["dur"]) * 1000) for e in found)


@pytest.fixture(scope="module")
def trace() -> Trace:
    return flint.import_profiles(*FILES)


def test_every_rank_has_a_class_and_the_collectives_of_the_files(trace: Trace) -> None:
    assert [c.ranks for c in trace.workload.classes] == [(rank,) for rank in range(8)]
    for program in trace.workload.programs:
        kinds = [program.row(i) for i in np.flatnonzero(program.kind == Kind.COLLECTIVE)]
        names = [r.collective.name for r in kinds]
        assert (names.count("ALL_TO_ALL"), names.count("ALL_REDUCE")) == (5, 3)
        assert {r.group.size(trace.mesh) for r in kinds if r.group} == {8}


def test_a_collective_takes_as_long_as_from_the_last_start_to_the_end(trace: Trace) -> None:
    ranks = [_collectives(path) for path in FILES]
    for number in range(8):
        spans = [r[number] for r in ranks]
        transfer_ns = min(end for _, end in spans) - max(start for start, _ in spans)
        for program in trace.workload.programs:
            row = np.flatnonzero(program.kind == Kind.COLLECTIVE)[number]
            assert program.measured_ns[row] == pytest.approx(transfer_ns, abs=CLOCK_NS)


def test_the_replay_has_the_time_of_each_rank(trace: Trace) -> None:
    found = trace.estimate("a100-80-dgx")
    assert trace.workload.measured_by is not None
    for rank, measured in zip(found.classes, trace.workload.measured_by.classes, strict=True):
        assert rank.end_ns == pytest.approx(measured.span_ns, rel=0.03)


def test_ranks_that_come_early_wait(trace: Trace) -> None:
    """Rank 1 is the first at the first all-to-all, and rank 7 the last, by 7.5 ms."""
    said = trace.estimate("a100-80-dgx").to_json()["measured"]
    shares = [c["attribution"]["waiting_ns"] for c in said["classes"]]
    waited = [sum(end - start for start, end in _collectives(path)) for path in FILES]
    assert np.argmax(shares) == np.argmax(waited) == 1
    assert shares[7] < shares[1] / 4
