"""Activities whose call the recorder lost are still of the step that they ran in."""

import math

from flint.tools.measure.profiles.builder import ProfileBuilder
from flint.tools.measure.profiles.profile import ActivityKind, CallKind
from flint.tools.measure.profiles.steps import issued_at, steps_of

#: Kernels of one stream: when each was called (None: lost) and began, in ns.
KERNELS = (
    (None, 60),  # launched before the recording: of no step
    (100, 200),
    (
        None,
        1_500,
    ),  # began in the second step, but was launched before the one after it: in the first
    (900, 1_800),
    (None, 2_000),
    (1_300, 2_400),
    (None, 2_900),  # the last: launched with the one before
)


def _profile():
    made = ProfileBuilder("kineto")
    for number, start in ((1, 50), (2, 1_000)):
        made.add_mark(f"ProfilerStep#{number}", start, 949, "main", on_device=False)
    for number, (called, began) in enumerate(KERNELS):
        if called is not None:
            made.add_call(
                CallKind.LAUNCH, "cudaLaunchKernel", called, 5, "main", correlation=number
            )
        made.add_activity(ActivityKind.KERNEL, "k", began, 100, stream=7, correlation=number)
    return made.build()


def test_a_lost_call_was_made_before_the_next_one_of_its_stream():
    before, *issued = issued_at(_profile()).tolist()
    assert math.isnan(before)
    assert issued == [100, 900, 900, 1_300, 1_300, 1_300]


def test_the_kernel_of_a_lost_call_is_of_the_step_of_its_stream():
    first, second = steps_of(_profile()).found
    assert first.activities.tolist() == [1, 2, 3]
    assert second.activities.tolist() == [4, 5, 6]
