"""Which step of a profile is taken: annotations, optimizers, repetition, all of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from flint.errors import FlintError
from flint.frontends.profiles.build import workload_of
from flint.frontends.profiles.builder import ProfileBuilder
from flint.frontends.profiles.profile import ActivityKind, CallKind, Profile
from flint.frontends.profiles.steps import steps_of

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


def test_the_median_is_taken_and_the_first_is_not() -> None:
    one = profile(4, annotated(4), times=(40_000.0, 11_000.0, 30_000.0, 12_000.0))
    assert steps_of(one).typical(one).number == 6
    two = profile(2, annotated(2), times=(10_000.0, 11_000.0))
    assert steps_of(two).typical(two).number == 4


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
    assert "step 5 is taken, one of 3" in " ".join(workload.metadata["warnings"])
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
