"""Whatever a profile holds: its workload verifies, and plays back at the measured times."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flint.errors import FlintError
from flint.ir.op_class import OpClass
from flint.ir.program import Kind, Program
from flint.tools.measure.profiles.build import workload_of
from flint.tools.measure.profiles.builder import ProfileBuilder
from flint.tools.measure.profiles.profile import (
    ActivityKind,
    CallKind,
    Profile,
    ProfiledComm,
    Signature,
)

SPAN_NS = 1e6
times = st.floats(0, SPAN_NS)
durations = st.one_of(st.floats(0, 50_000), st.just(1.0))
LAUNCHING = [CallKind.LAUNCH, CallKind.GRAPH, CallKind.OTHER]
WAITING = [
    *(CallKind.WAIT_DEVICE, CallKind.WAIT_STREAM, CallKind.WAIT_EVENT, CallKind.STREAM_WAIT),
    CallKind.RECORD_EVENT,
]
NAMES = [
    "gemm",
    "ncclDevKernel_AllReduce_Sum",
    "Memcpy DtoH (Device -> Pinned)",
    "triton_poi_0",
    "",
]
OPERATORS = [
    "aten::mm",
    "aten::add_",
    "record_param_comms",
    "MmBackward0",
    "my::own",
    "Optimizer.step#A",
]
COMMS = [
    ProfiledComm("allreduce", 8, 8, "Float", "0", 2, (0, 1)),
    ProfiledComm("_allgather_base", 8, 16, "BFloat16", "0", 2),
    ProfiledComm("send", 8, 0, "Float", "0", 2, (0, 1), peer=1),
    ProfiledComm("recv", 0, 8, "Float", "", 0, (), peer=-1),
    ProfiledComm("coalesced", -1, -1, "", "", 0),
]


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    """Activities, of which some have a call, some an operator, on streams that may overlap."""
    builder = ProfileBuilder("kineto", rank=0, world_size=draw(st.sampled_from([0, 2])))
    mm = builder.signature(Signature(((4, 4), (4, 4)), ("float", "float")))
    comms = [builder.comm(c) for c in COMMS]
    for number in range(draw(st.integers(0, 6))):
        name = draw(st.sampled_from(OPERATORS))
        builder.add_operator(
            name, draw(times), draw(durations), draw(st.integers(1, 2)), external=number,
            signature=draw(st.sampled_from([-1, mm])), comm=draw(st.sampled_from([-1, *comms])),
        )  # fmt: skip
    for number in range(draw(st.integers(0, 12))):
        builder.add_call(
            draw(st.sampled_from(LAUNCHING)), "cudaLaunchKernel", draw(times), draw(durations),
            draw(st.integers(1, 2)), correlation=number, external=draw(st.integers(-1, 6)),
        )  # fmt: skip
    for _ in range(draw(st.integers(0, 4))):
        builder.add_call(
            draw(st.sampled_from(WAITING)), "cudaWait", draw(times), draw(durations), 1,
            stream=draw(st.sampled_from([-1, 7, 20])), waits_for=draw(st.integers(-1, 12)),
        )  # fmt: skip
    count = draw(st.integers(1, 16))
    for _ in range(count):
        builder.add_activity(
            draw(st.sampled_from(list(ActivityKind))), draw(st.sampled_from(NAMES)), draw(times),
            draw(durations), draw(st.sampled_from([7, 7, 20, 21])),
            num_bytes=draw(st.integers(0, 100)), correlation=draw(st.integers(-1, 13)),
            external=draw(st.integers(-1, 6)), comm=draw(st.sampled_from([-1, -1, *comms])),
        )  # fmt: skip
    for _ in range(draw(st.integers(0, 3))):
        builder.add_wait(draw(st.integers(0, count - 1)), draw(st.integers(0, count - 1)))
    return builder.build()


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(profiles())
def test_any_profile_plays_back(profile: Profile) -> None:
    try:
        workload = workload_of([profile])
    except FlintError as error:
        assert error.code == "FL834"  # as good as all of it happens to be there twice
        return
    workload.verify()
    program = workload.programs[0]
    begin, end = played(program)
    rows = (program.kind >= Kind.COMPUTE) & (program.op != OpClass.HOST)
    starts, ns = begin[rows], program.measured_ns[rows]
    assert len(starts) == len(profile.activities.start_ns)
    expected = np.sort(profile.activities.start_ns)
    found = np.sort(starts)
    np.testing.assert_allclose(found - found[0], expected - expected[0], atol=2_100)
    assert ns.sum() <= profile.activities.duration_ns.sum() + len(ns)
    by = workload.measured_by
    assert by is not None
    assert abs(end[rows].max() - by.classes[0].span_ns) <= 2_100


def played(program: Program) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    """After dependencies, and after the row before on the same stream."""
    begin, end = np.zeros(len(program)), np.zeros(len(program))
    last: dict[int, float] = {}
    for row in range(len(program)):
        stream = int(program.stream[row])
        ready = max([0.0, *(end[d] for d in program.dependencies(row))])
        begin[row] = max(ready, last.get(stream, 0.0))
        end[row] = last[stream] = begin[row] + program.measured_ns[row]
    return begin, end
