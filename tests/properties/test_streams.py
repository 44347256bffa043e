"""Whatever streams kernels and collectives are on, times of all kinds make up the step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flint.backends.chakra.writing.expand import expand
from flint.backends.cost.simulate.critical_path import path
from flint.backends.cost.simulate.exposure import shares
from flint.backends.cost.simulate.timeline import POLICIES, ClassWork, simulate
from flint.ir.program import Kind, Program
from tests.random_programs import QUICK, programs
from tests.timeline_steps import STREAMS


@QUICK
@given(programs(), st.sampled_from(sorted(POLICIES)), st.integers(0, 2**32 - 1))
def test_exposures_and_the_critical_path_add_up(program: Program, policy: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    duration = random.integers(0, 5000, len(program)) / 1024
    beside = np.where(random.random(len(program)) < 0.3, len(STREAMS), 0)  # kernels
    communicates = program.kind >= Kind.COLLECTIVE
    stream = np.where(communicates, random.integers(1, 4, len(program)), beside)
    work = ClassWork(program, expand(program), duration, stream)
    timeline = simulate([work], STREAMS, POLICIES[policy])
    total = timeline.total_ns
    assert sum(s.exposed_ns for s in shares(timeline.classes[0])) == pytest.approx(total, abs=0.1)
    pieces = list(path(timeline, POLICIES[policy]))
    assert sum(p.end_ns - p.start_ns for p in pieces) == pytest.approx(total)
    ends = [p.end_ns for p in pieces]
    assert ends[1:] == [p.start_ns for p in pieces[:-1]]
