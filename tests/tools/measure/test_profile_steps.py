"""Which step of a profile is taken: annotations, optimizers, repetition, all of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from flint.errors import FlintError
from flint.text import format_duration
from flint.tools.measure.profiles.build import StepTimes, disagreements, workload_of
from flint.tools.measure.profiles.builder import ProfileBuilder
from flint.tools.measure.profiles.profile import ActivityKind, CallKind, Profile
from flint.tools.measure.profiles.steps import steps_of
from flint.tracing import Trace

#: Time of a step, and how far the device is behind the host.
STEP_NS, BEHIND_NS = 1_000_000.0, 2_500_000.0


def profile(
    steps: int,
    marks: Sequence[tuple[str, float, float]] = (),
    names: Sequence[str] = ("a", "b", "c", "d"),
    times: Sequence[float] = (),
    repeats: int = 5,
) -> Profile:
    """Steps of equal kernels, launched one after another; the device runs them much later."""
    builder = ProfileBuilder("kineto", device="NVIDIA H100 80GB HBM3")
    for mark, start, end in marks:
        builder.add_mark(mark, start, end - start, 1, on_device=False)
    correlation = 0
    for step in range(steps):
        for number, name in enumerate(list(names) * repeats):
            correlation += 1
            call = step * STEP_NS + 10_000 + number * 20_000
            builder.add_call(
                CallKind.LAUNCH, "cudaLaunchKernel", call, 3000, 1, correlation=correlation
            )
            ns = times[step] if times else 10_000.0
            builder.add_activity(
                ActivityKind.KERNEL, name, BEHIND_NS + step * STEP_NS + number * ns, ns, 7,
                correlation=correlation,
            )  # fmt: skip
    return builder.build()


def annotated(steps: int, name: str = "ProfilerStep#{}", first: int = 3) -> list[tuple[str, float, float]]:  # fmt: skip
    return [(name.format(first + i), i * STEP_NS, (i + 1) * STEP_NS - 1000) for i in range(steps)]


def test_profiler_steps_hold_what_was_launched_in_them() -> None:
    found = steps_of(profile(3, annotated(3)))
    assert [s.number for s in found.found] == [3, 4, 5]
    assert [len(s.activities) for s in found.found] == [20, 20, 20]
    assert found.found[1].activities.tolist() == list(range(20, 40))


def test_the_median_period_is_taken() -> None:
    one = profile(4, annotated(4), times=(40_000.0, 11_000.0, 30_000.0, 12_000.0))
    times = StepTimes.of(one, steps_of(one))
    # ends of steps on the device: 3.3, 3.72, 5.1 and 5.74 ms
    assert list(times.periods_ns) == [4, 5, 6]
    assert times.period_ns == pytest.approx(640_000)
    assert times.typical([3, 4, 5, 6]) == 6
    assert times.typical([3]) == 3


def side_work(before_ns: float, run_ns: float, name: str) -> Profile:
    """Steps of 1 ms whose host is 2.5 ms ahead, each with something on a side stream."""
    builder = ProfileBuilder("kineto", device="NVIDIA H100 80GB HBM3")
    for step in range(5):
        host, device = step * STEP_NS, BEHIND_NS + step * STEP_NS
        builder.add_mark(f"ProfilerStep#{step}", host, STEP_NS, 1, on_device=False)
        work = ((20, host + 1_000, device - before_ns, run_ns, name), (7, host + 2_000, device, 900_000.0, "gemm"))  # fmt: skip
        for stream, call, start, ns, kernel in work:
            number = 2 * step + (stream == 7)
            builder.add_call(CallKind.LAUNCH, "cudaLaunch", call, 900, 1, correlation=number)
            kind = ActivityKind.COPY if kernel.startswith("Memcpy") else ActivityKind.KERNEL
            builder.add_activity(kind, kernel, start, ns, stream, correlation=number)
    return builder.build()


@pytest.mark.parametrize(
    ("before_ns", "run_ns", "name"),
    [
        (2_400_000.0, 100_000.0, "Memcpy HtoD (Pinned -> Device)"),
        (1_600_000.0, 1_000.0, "embedding_prefetch"),
        (400_000.0, 390_000.0, "ncclDevKernel_AllGather_RING_LL(ncclDevComm*)"),
        (500_000.0, 700_000.0, "Memcpy HtoD (Pinned -> Device)"),
    ],
)
def test_what_is_fetched_ahead_does_not_lengthen_a_step(
    before_ns: float, run_ns: float, name: str
) -> None:
    workload = workload_of([side_work(before_ns, run_ns, name)])
    by = workload.measured_by
    assert by is not None
    assert by.classes[0].step_ns == by.classes[0].span_ns == pytest.approx(STEP_NS)
    assert Trace(workload).estimate("h100-dgx").step_time_ns == pytest.approx(STEP_NS, rel=1e-3)


@pytest.mark.parametrize(
    ("times", "told"),
    [
        ((10_000.0, 11_000.0, 40_000.0), True),  # the median of two periods is between them
        ((10_000.0, 40_000.0, 11_000.0, 30_000.0, 12_000.0), True),
        ((40_000.0, 11_000.0, 30_000.0, 12_000.0), False),  # the step of median period is taken
        ((10_000.0, 10_000.0, 10_000.0), False),
        ((10_000.0,), False),  # a single step has no period
    ],
)
def test_an_estimate_says_both_times_of_a_step(times: tuple[float, ...], told: bool) -> None:
    """That of the step that was taken, which it plays back, and the one that the import shows."""
    workload = workload_of([profile(len(times), annotated(len(times)), times=times)])
    assert workload.measured_by is not None
    (about,) = workload.measured_by.classes
    found = Trace(workload).estimate("h100-dgx")
    assert found.measured is not None
    (facts,) = found.measured.classes
    assert (facts.measured_ns, facts.step_ns) == (about.span_ns, about.step_ns)
    notes = [n for n in found.notes if n.startswith("the measured time is that of the chosen step")]
    assert bool(notes) == told
    for note in notes:
        assert f"median period between the ends of {len(times)} steps is" in note
        assert format_duration(about.step_ns) in note and format_duration(about.span_ns) in note


def test_a_step_that_is_named_has_its_own_time() -> None:
    made = profile(4, annotated(4), times=(10_000.0, 11_000.0, 30_000.0, 12_000.0))
    (by,) = workload_of([made], step=5).measured_by.classes  # type: ignore[union-attr]
    assert by.step_ns == by.span_ns == pytest.approx(1_380_000)
    (median,) = workload_of([made]).measured_by.classes  # type: ignore[union-attr]
    assert median.step_ns == pytest.approx(1_020_000)


def test_the_step_of_a_pipeline_counts_no_time_twice() -> None:
    """Two stages that end a step 3 ms apart, every 10 ms: each step of the job takes 10 ms."""
    kernels = {0: ((0.0, 2.9e6), (7.1e6, 2.8e6)), 1: ((3.1e6, 1.9e6), (5e6, 1.9e6))}
    found = []
    for rank, spans in kernels.items():
        builder = ProfileBuilder("kineto", device="NVIDIA H100 80GB HBM3", rank=rank, world_size=2)
        for step in range(4):
            begin = 1e7 * step
            builder.add_mark(f"ProfilerStep#{step}", begin, 9.9e6, 1, on_device=False)
            for number, (start, ns) in enumerate(spans):
                launch = {"correlation": 2 * step + number + 1}
                call = begin + 1e4 + 2e4 * number
                builder.add_call(CallKind.LAUNCH, "cudaLaunchKernel", call, 5000, 1, **launch)
                builder.add_activity(ActivityKind.KERNEL, "k", begin + 4e4 + start, ns, 7, **launch)
        found.append(builder.build())
    for number in (None, 1, 2, 3):
        measured = workload_of(found, step=number).metadata["measured"]
        assert isinstance(measured, dict)
        assert max(c["span_ns"] for c in measured["classes"]) == pytest.approx(1e7, rel=0.01)


def test_what_runs_beside_the_next_step_is_told() -> None:
    workload = workload_of([side_work(-800_000.0, 400_000.0, "Memcpy DtoH (Device -> Pinned)")])
    by = workload.measured_by
    assert by is not None
    assert by.classes[0].step_ns == pytest.approx(STEP_NS)
    assert by.classes[0].span_ns == pytest.approx(1_300_000)
    assert "plays back in 1.300 ms" in " ".join(workload.metadata["warnings"])


def test_a_device_that_was_busy_with_what_was_not_recorded() -> None:
    builder = ProfileBuilder("kineto")
    builder.add_mark("ProfilerStep#1", 0, STEP_NS, 1, on_device=False)
    builder.add_call(CallKind.LAUNCH, "cudaLaunchKernel", 12_000, 3000, 1, correlation=2)
    builder.add_activity(ActivityKind.KERNEL, "gemm", 9 * STEP_NS, 5_000, 7, correlation=2)
    workload = workload_of([builder.build()])
    by = workload.measured_by
    assert by is not None
    assert by.classes[0].step_ns == pytest.approx(5_000)
    assert "8.985 ms after its launch" in " ".join(workload.metadata["warnings"])


def test_rules_that_disagree_are_told() -> None:
    def told(made: Profile) -> str:
        return " ".join(disagreements(StepTimes.of(made, steps_of(made))))

    assert not told(profile(6, annotated(6)))
    ends = [("Optimizer.step#A", t * STEP_NS - 900, t * STEP_NS) for t in range(1, 7, 2)]
    assert "2.000 ms a step, instead of 1.000 ms" in told(profile(6, annotated(6) + ends))
    names = [f"k{i}" for i in range(40)]
    halves = [(f"ProfilerStep#{i}", i * STEP_NS / 2, (i + 1) * STEP_NS / 2) for i in range(12)]
    whole = profile(6, halves, names, repeats=1)
    assert "repeat, if those are used: 1.000 ms a step" in told(whole)
    short = [(name, start, start + STEP_NS / 3) for name, start, _ in annotated(6)]
    assert "lasts 0.333 ms on the host" in told(profile(6, short))


@pytest.mark.parametrize(
    "name", ["execute_context_{}(8_4)", "step[DECODE bs={}]", "iteration {}", "train_step {}"]
)
def test_other_annotations_are_steps(name: str) -> None:
    found = steps_of(profile(3, annotated(3, name)))
    assert len(found.found) == 3
    assert found.annotated


def test_optimizers_end_steps_and_two_in_a_row_are_one() -> None:
    marks = []
    for i in range(4):
        end = (i + 1) * STEP_NS
        marks += [(f"Optimizer.step#{n}.step", end - t, end - t + 900) for n, t in (("A", 3000), ("B", 2000))]  # fmt: skip
    found = steps_of(profile(4, marks))
    assert [len(s.activities) for s in found.found] == [20, 20, 20]
    assert "optimizers" in found.how


def test_repetition_is_found_without_annotations() -> None:
    names = [f"k{i}" for i in range(17)] + ["k0", "k3"]
    found = steps_of(profile(6, names=names, repeats=1))
    assert [len(s.activities) for s in found.found] == [19] * 6


def test_without_anything_all_is_one_step() -> None:
    names = [f"k{i}" for i in range(37)]
    found = steps_of(profile(1, names=names, repeats=1))
    assert len(found.found) == 1
    assert "whole profile" in found.how


def test_steps_of_one_number_are_counted() -> None:
    found = steps_of(profile(3, annotated(3, "ProfilerStep#6")))
    assert [s.number for s in found.found] == [0, 1, 2]


def test_a_step_is_taken_by_its_number() -> None:
    made = profile(3, annotated(3))
    workload = workload_of([made], step=5)
    assert "step 5 is used, one of 3" in " ".join(workload.metadata["warnings"])
    with pytest.raises(FlintError, match="no step 9") as raised:
        workload_of([made], step=9)
    assert raised.value.code == "FL811"
    assert "steps 3, 4, 5" in str(raised.value.help)


def test_a_step_begins_when_the_device_is_done_with_the_one_before() -> None:
    made = profile(3, annotated(3))
    by = workload_of([made], step=4).measured_by
    assert by is not None
    assert by.classes[0].span_ns == pytest.approx(20 * 10_000 + STEP_NS - 20 * 10_000, abs=1)


def test_what_was_launched_before_the_recording_is_of_no_step() -> None:
    builder = ProfileBuilder("kineto")
    builder.add_mark("ProfilerStep#1", 0, STEP_NS, 1, on_device=False)
    builder.add_activity(ActivityKind.KERNEL, "before", 10_000, 5_000, 7, correlation=1)
    builder.add_call(CallKind.LAUNCH, "cudaLaunchKernel", 12_000, 3000, 1, correlation=2)
    builder.add_activity(ActivityKind.KERNEL, "within", 20_000, 5_000, 7, correlation=2)
    made = builder.build()
    assert steps_of(made).found[0].activities.tolist() == [1]
    assert "1 kernels" in " ".join(workload_of([made]).metadata["warnings"])


def test_a_profile_of_the_host_alone_is_refused() -> None:
    builder = ProfileBuilder("kineto")
    builder.add_operator("aten::mm", 0, 10, 1)
    with pytest.raises(FlintError) as raised:
        workload_of([builder.build()])
    assert raised.value.code == "FL804"


def test_times_of_all_steps_are_finite() -> None:
    for steps in (1, 2, 5):
        made = profile(steps, annotated(steps))
        assert np.isfinite([s.span_ns(made) for s in steps_of(made).found]).all()
