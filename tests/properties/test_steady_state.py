"""Loops in steady state: the same times as when every iteration is followed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flint.backends.chakra.writing.expand import expand
from flint.backends.cost.simulate import steady_state
from flint.backends.cost.simulate.timeline import POLICIES, ClassWork, simulate
from flint.ir.program import Kind, Program, RegionKind
from tests.random_programs import QUICK, programs
from tests.timeline_steps import STREAMS, Steps


def assert_same(work: ClassWork, policy: str) -> None:
    quick = simulate([work], STREAMS, POLICIES[policy]).classes[0]
    full = simulate([work], STREAMS, POLICIES[policy], every_node=True).classes[0]
    assert quick.start_ns.tolist() == full.start_ns.tolist()
    assert quick.end_ns.tolist() == full.end_ns.tolist()


@QUICK
@given(programs(), st.sampled_from(sorted(POLICIES)), st.integers(0, 2**32 - 1))
def test_programs_of_all_kinds(program: Program, policy: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    grid = random.choice([1024, 1000])  # only multiples of 1/1024 allow for shortcuts
    duration = random.integers(0, 5000, len(program)) / grid
    beside = np.where(random.random(len(program)) < 0.2, len(STREAMS), 0)  # kernels
    communicates = program.kind >= Kind.COLLECTIVE
    stream = np.where(communicates, random.integers(0, 4, len(program)), beside)
    assert_same(ClassWork(program, expand(program), duration, stream), policy)


@st.composite
def loops(draw: st.DrawFn) -> ClassWork:
    """Nested loops of kernels and collectives that wait for earlier ones and earlier iterations."""
    steps = Steps()
    outside = [steps.compute(draw(st.integers(0, 500)) / 4) for _ in range(2)]

    def body(depth: int, outer: list[int]) -> int:
        initial = [draw(st.sampled_from(outer)) for _ in range(draw(st.integers(0, 3)))]
        steps.builder.begin_region(RegionKind.LOOP, draw(st.integers(1, 12)))
        carried = [steps.builder.add("while.carry", Kind.VALUE, deps=[x]) for x in initial]
        known = [*outer, *carried]
        inside = [*carried]
        for _ in range(draw(st.integers(1, 5))):
            if depth and draw(st.integers(0, 3)) == 0:
                inside.append(body(depth - 1, [*known, *inside]))
                continue
            deps = draw(st.lists(st.sampled_from([*known, *inside]), max_size=2))
            add = draw(st.sampled_from([steps.compute, steps.compute, steps.collective]))
            inside.append(add(draw(st.integers(0, 40)) / 4, *deps))
        steps.builder.end_region([(c, draw(st.sampled_from(inside))) for c in carried])
        return inside[-1]

    for _ in range(2):
        outside.append(body(2, outside))
        outside.append(steps.compute(1.5, outside[-1]))
    return steps.work()


@QUICK
@given(loops(), st.sampled_from(sorted(POLICIES)))
def test_nested_loops(work: ClassWork, policy: str) -> None:
    assert_same(work, policy)


def test_a_long_loop_is_not_followed_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps()
    x = steps.compute(5)
    steps.builder.begin_region(RegionKind.LOOP, 1000)
    carry = steps.builder.add("while.carry", Kind.VALUE, deps=[x])
    gathered = steps.collective(2)  # runs ahead of the kernels
    y = steps.compute(3, carry, gathered)
    steps.builder.end_region([(carry, y)])
    placed = []
    one_by_one = steady_state._Placing._one_by_one

    def counted(self: steady_state._Placing, low: int, high: int) -> None:
        placed.append(high - low)
        one_by_one(self, low, high)

    monkeypatch.setattr(steady_state._Placing, "_one_by_one", counted)
    work = steps.work()
    assert simulate([work], STREAMS).total_ns == 5 + 3 * 1000
    assert sum(placed) < 20
    assert_same(work, "overlap")
