"""The chain of work that makes a step as long as it is."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from flint.backends.chakra.writing.expand import expand
from flint.backends.cost.simulate.critical_path import Segment, critical_path, path
from flint.backends.cost.simulate.timeline import POLICIES, ClassWork, simulate
from flint.cli import app
from flint.ir.mesh import AxisRef, Group
from flint.ir.program import Kind, Program, RegionKind
from flint.ir.workload import Workload
from tests.random_programs import QUICK, programs
from tests.timeline_steps import STREAMS, Steps


def segments(works: list[ClassWork], policy: str = "overlap") -> list[tuple[str, str, float]]:
    """(kind, scope, ns), longest first."""
    timeline = simulate(works, STREAMS, POLICIES[policy])
    found = critical_path(timeline, POLICIES[policy])
    assert sum(s.total_ns for s in found) == pytest.approx(timeline.total_ns)
    assert sum(s.share for s in found) == pytest.approx(1, abs=1e-5)
    return [(s.kind, s.scope, s.total_ns) for s in found]


def test_what_runs_beside_is_not_on_it() -> None:
    steps = Steps()
    first = steps.compute(10, scope="a")
    reduced = steps.collective(30, first, scope="b")
    steps.compute(25, scope="hidden")
    steps.compute(5, reduced, scope="c")
    assert segments([steps.work()]) == [
        ("all_reduce", "b", 30),
        ("elementwise", "a", 10),
        ("elementwise", "c", 5),
    ]


def test_nodes_of_one_place_are_one_segment() -> None:
    steps = Steps()
    x = steps.compute(5, scope="start")
    steps.builder.begin_region(RegionKind.LOOP, 7)
    carry = steps.builder.add("while.carry", Kind.VALUE, deps=[x])
    y = steps.compute(3, carry, scope="layers", location="model.py:7")
    steps.builder.end_region([(carry, y)])
    timeline = simulate([steps.work()], STREAMS)
    found = critical_path(timeline, POLICIES["overlap"])
    assert found[0] == Segment("elementwise", "", "layers", "model.py:7", 7, 21, round(21 / 26, 6))


def test_streams_are_followed_where_they_bind() -> None:
    steps = Steps()
    steps.collective(30, scope="before")
    b = steps.collective(20, scope="after")
    steps.compute(1, b, scope="end")
    assert segments([steps.work()]) == [
        ("all_reduce", "before", 30),
        ("all_reduce", "after", 20),
        ("elementwise", "end", 1),
    ]


def test_a_policy_that_holds_communication_back_is_on_it() -> None:
    steps = Steps()
    for _ in range(4):
        steps.compute(10, scope="early")
    steps.compute(2, steps.collective(15, scope="late"), scope="end")
    assert segments([steps.work()], "in-order") == [
        ("elementwise", "early", 30),
        ("all_reduce", "late", 15),
        ("elementwise", "end", 2),
    ]


def test_messages_lead_to_the_class_that_sent_them() -> None:
    first, second = Steps(), Steps()
    first.message(Kind.SEND, 3, 1, first.compute(10, scope="stage 0"))
    got = second.message(Kind.RECV, 3, 1)
    second.compute(20, got, scope="stage 1")
    assert segments([first.work(), second.work(peers={got: 0})]) == [
        ("elementwise", "stage 1", 20),
        ("elementwise", "stage 0", 10),
        ("message", "", 3),
    ]


def test_a_message_that_was_there_before_is_not_on_it() -> None:
    first, second = Steps(), Steps()
    first.message(Kind.SEND, 3, 1, first.compute(10))
    busy = second.compute(50, scope="own")
    got = second.message(Kind.RECV, 3, 1, busy)
    second.compute(20, got, scope="own")
    assert segments([first.work(), second.work(peers={got: 0})]) == [("elementwise", "own", 70)]


def test_a_collective_of_several_classes_leads_to_the_one_that_came_last() -> None:
    works = []
    for name, early in (("quick", 10.0), ("slow", 100.0)):
        steps = Steps()
        group = Group((AxisRef("pipe"),))
        row = steps.collective(5, steps.compute(early, scope=name), group=group)
        works.append(steps.work(together={row: (0, 1)}))
    assert segments(works) == [("elementwise", "slow", 100), ("all_reduce", "", 5)]


def test_an_empty_step_has_none() -> None:
    steps = Steps()
    steps.builder.add("parameter", Kind.PARAMETER)
    assert critical_path(simulate([steps.work()], STREAMS), POLICIES["overlap"]) == ()


@QUICK
@given(programs(), st.sampled_from(sorted(POLICIES)), st.integers(0, 2**32 - 1))
def test_the_path_has_no_gaps(program: Program, policy: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    duration = random.choice([0.0, 0.7, 3.3, 11.0], len(program))
    stream = np.where(program.kind >= Kind.COLLECTIVE, random.integers(0, 4, len(program)), 0)
    work = ClassWork(program, expand(program), duration, stream)
    timeline = simulate([work], STREAMS, POLICIES[policy])
    moment = timeline.total_ns
    for piece in path(timeline, POLICIES[policy]):
        assert piece.end_ns == moment
        assert piece.end_ns <= timeline.classes[0].end_ns[piece.node]
        assert piece.start_ns == timeline.classes[0].start_ns[piece.node]
        moment = piece.start_ns
    assert moment == 0


def test_it_is_printed_when_asked_for_and_in_the_json(tmp_path: Path) -> None:
    steps = Steps()
    x = steps.builder.add("parameter", Kind.PARAMETER, dtype="f32", shape=(1024,))
    for number in range(20):
        x = steps.compute(0, x, scope=f"layers/{number}", location=f"model.py:{number // 2}")
    Workload.single(steps.builder.build()).save(tmp_path / "w.flint")
    command = ["estimate", str(tmp_path / "w.flint"), "-c", "h100-dgx"]
    plain, verbose, document = (
        CliRunner().invoke(app, [*command, *more]).stdout for more in ([], ["-v"], ["--json"])
    )
    assert "critical path" not in plain
    shown = verbose.split("critical path")[1].split("\n\n")[0].splitlines()[1:]
    assert len(shown) == 9
    assert shown[0].split()[-2:] == ["layers/*", "model.py:0"]
    assert shown[-1].startswith("2 more")
    found = json.loads(document)
    assert len(found["critical_path"]) == 20
    total = sum(s["total_ns"] for s in found["critical_path"])
    assert total == pytest.approx(found["step_time_ns"], abs=0.01)
