"""Streams in time: what waits for what, what is exposed, and what policies change."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from flint.backends.cost.simulate.critical_path import critical_path
from flint.backends.cost.simulate.exposure import shares
from flint.backends.cost.simulate.streams import together_of
from flint.backends.cost.simulate.timeline import POLICIES, ClassTimeline, ClassWork, simulate
from flint.errors import FlintError
from flint.ir.mesh import AxisRef, Group, Mesh
from flint.ir.program import Collective, Flag, Kind, RegionKind
from tests.program_rows import ProgramBuilder
from tests.timeline_steps import STREAMS, Steps


def run(work: ClassWork, policy: str = "overlap") -> ClassTimeline:
    return simulate([work], STREAMS, POLICIES[policy]).classes[0]


def exposed(timeline: ClassTimeline) -> dict[str, float]:
    found: dict[str, float] = {}
    for share in shares(timeline):
        found[share.kind] = found.get(share.kind, 0.0) + share.exposed_ns
    return found


def test_computation_is_in_order_and_a_collective_runs_beside_it() -> None:
    steps = Steps()
    first = steps.compute(10)
    reduced = steps.collective(30, first)
    steps.compute(25)
    steps.compute(5, reduced)
    timeline = run(steps.work())
    assert timeline.start_ns.tolist() == [0, 10, 10, 40]
    assert timeline.total_ns == 45
    assert exposed(timeline) == {"elementwise": 40, "all_reduce": 5}


def test_exposed_times_add_up_to_the_step() -> None:
    steps = Steps()
    a = steps.compute(10)
    b = steps.collective(30, a)
    c = steps.collective(20, a)
    d = steps.compute(1, b)
    steps.compute(2, c, d)
    steps.collective(7, d)
    timeline = run(steps.work())
    assert sum(exposed(timeline).values()) == pytest.approx(timeline.total_ns)


def test_collectives_of_one_stream_wait_for_each_other() -> None:
    steps = Steps()
    steps.collective(30)
    steps.collective(20)
    assert run(steps.work()).total_ns == 50


def test_a_gap_belongs_to_what_the_stream_was_busy_with() -> None:
    steps = Steps()
    a = steps.compute(10)
    steps.collective(50, a)
    reduced = steps.collective(20, a, group=Group((AxisRef("pipe"),)))
    steps.compute(1, reduced)
    found = {(s.kind, s.over): s.exposed_ns for s in shares(run(steps.work()))}
    assert found == {
        ("elementwise", ""): 11, ("all_reduce", "data"): 50, ("all_reduce", "pipe"): 20
    }  # fmt: skip


def test_policies_bound_how_early_communication_begins() -> None:
    """Four layers of ten kernels; the last kernel needs what is gathered in its layer."""

    def steps() -> ClassWork:
        s = Steps()
        for layer in range(4):
            for _ in range(10 if layer < 3 else 9):
                s.compute(10, scope=f"layers/{layer}/mlp")
        s.compute(10, s.collective(15, scope="layers/3/mlp"), scope="layers/3/mlp")
        return s.work()

    starts = {p: run(steps(), p).start_ns[39] for p in ("overlap", "fsdp", "in-order")}
    assert starts == {"overlap": 0, "fsdp": 200, "in-order": 380}


def test_blocking_is_a_matter_of_the_stream_and_never_faster() -> None:
    steps = Steps()
    a = steps.compute(10)
    steps.collective(30, a)
    steps.compute(25)
    work = steps.work()
    work.stream[:] = 0  # what pricing does for the policy "blocking"
    assert run(work, "blocking").total_ns == 65


def test_loops_run_as_often_as_they_say() -> None:
    steps = Steps()
    x = steps.compute(5)
    steps.builder.begin_region(RegionKind.LOOP, 7)
    carry = steps.builder.add("while.carry", Kind.VALUE, deps=[x])
    y = steps.compute(3, carry)
    z = steps.collective(4, y)
    steps.builder.end_region([(carry, z)])
    timeline = run(steps.work())
    assert timeline.total_ns == 5 + 7 * (3 + 4)
    assert exposed(timeline) == {"elementwise": 5 + 21, "all_reduce": 28}


def _two_stages(microbatches: int, forward: float, transfer: float) -> tuple[ClassWork, ClassWork]:
    first, second = Steps(), Steps()
    for steps, receives in ((first, False), (second, True)):
        steps.builder.begin_region(RegionKind.LOOP, microbatches)
        turn = steps.builder.add("pipeline.turn", Kind.VALUE)
        if receives:
            got = steps.message(Kind.RECV, transfer, 1, turn)
            done = steps.compute(forward, got)
        else:
            done = steps.compute(forward, turn)
            steps.message(Kind.SEND, transfer, 1, done)
        end = steps.builder.add("pipeline.turn", Kind.VALUE, deps=[done])
        steps.builder.end_region([(turn, end)])
    received = 1
    return first.work(), second.work(peers={received: 0})


def test_a_message_arrives_after_its_transfer_and_waiting_is_told_apart() -> None:
    works = _two_stages(4, 10.0, 3.0)
    done = simulate(works, STREAMS)
    assert done.total_ns == 10 + 3 + 4 * 10
    assert exposed(done.classes[1]) == {"elementwise": 40, "message": 3, "wait": 10}


def test_a_collective_of_several_classes_begins_when_all_are_there() -> None:
    both = (0, 1)
    group = Group((AxisRef("pipe"),))
    works = []
    for early in (10.0, 100.0):
        steps = Steps()
        row = steps.collective(5, steps.compute(early), group=group)
        works.append(steps.work(together={row: both}))
    done = simulate(works, STREAMS)
    assert [c.total_ns for c in done.classes] == [105, 105]


def test_ranks_of_one_class_meet_those_of_several() -> None:
    builder = ProgramBuilder(Mesh(("data", "model"), (2, 2)))
    for axis in ("data", "model"):
        group = Group((AxisRef(axis),))
        builder.add(
            *("all", Kind.COLLECTIVE),
            collective=Collective.ALL_REDUCE, group=group, comm_bytes=8, result_bytes=8,
        )  # fmt: skip
    program, owner = builder.build(), np.array([0, 1, 2, 2], dtype=np.int16)
    met = [together_of(program, rank, owner) for rank in (0, 1, 2)]
    assert met == [{0: (0, 1, 2), 1: (0, 1)}] * 2 + [{0: (0, 1, 2)}]


def test_classes_that_wait_for_each_other_are_an_error() -> None:
    steps = Steps()
    got = steps.message(Kind.RECV, 1, 1)
    steps.compute(1, got)
    with pytest.raises(FlintError, match="FL708.*wait for each other: class 0 for .* in row 0"):
        simulate([steps.work(peers={got: 0})], STREAMS)


def test_a_host_runs_ahead_of_long_kernels_and_behind_short_ones() -> None:
    steps = Steps()
    for duration in (10, 1, 1, 1):
        steps.compute(duration)
    timeline = run(replace(steps.work(), launch_ns=4.0))
    assert timeline.start_ns.tolist() == [4, 14, 15, 16]
    assert exposed(timeline) == {"elementwise": 13, "host": 4}


def test_a_cuda_graph_is_one_launch_of_the_host() -> None:
    steps = Steps()
    for _ in range(5):
        steps.compute(1)
    work = steps.work()
    flags = work.program.flags | np.array([0, 1, 1, 1, 0], np.uint16) * np.uint16(Flag.REPLAYED)
    replayed = replace(work, program=work.program.with_rows(flags=flags), launch_ns=4.0)
    assert run(replayed).start_ns.tolist() == [4, 8, 9, 10, 12]  # launched at 4, 8 and 12


def test_what_a_host_launches_late_is_on_the_critical_path() -> None:
    steps = Steps()
    reduced = steps.collective(2, steps.compute(1))
    steps.compute(1, reduced)
    work = replace(steps.work(), launch_ns=4.0)
    done = simulate([work], STREAMS)
    assert done.classes[0].start_ns.tolist() == [4, 5, 12]  # the third launch
    assert exposed(done.classes[0]) == {"elementwise": 2, "all_reduce": 2, "host": 9}
    on_path = {s.kind: s.total_ns for s in critical_path(done, POLICIES["overlap"])}
    assert on_path == {"elementwise": 2, "all_reduce": 2, "host": 9}


def test_a_host_waits_for_each_message_that_is_received() -> None:
    sender, receiver = Steps(), Steps()
    sender.message(Kind.SEND, 5, 1, sender.compute(20))
    got = receiver.message(Kind.RECV, 5, 1)
    receiver.compute(1, got)
    receiver.compute(1)
    works = [sender.work(), replace(receiver.work(peers={got: 0}), launch_ns=4.0)]
    # The first was launched long before the message came, the second only after that.
    assert simulate(works, STREAMS).classes[1].start_ns.tolist() == [0, 25, 29]
