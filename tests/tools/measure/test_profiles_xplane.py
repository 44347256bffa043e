"""XLA's profiles: what is counted, what is left out, and what is refused."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flint.backends.chakra import check
from flint.errors import FlintError
from flint.ir.op_class import Collective, OpClass
from flint.passes.hlo.module import message_class
from flint.tools.measure.profiles import xplane
from flint.tools.measure.profiles.build import workload_of
from flint.tools.measure.profiles.profile import CallKind, Profile
from flint.tools.measure.profiles.xplane.planes import PlaneEvent
from flint.tools.measure.profiles.xplane.reader import _longest
from flint.tracing import Trace
from tests.xplanes import Happened, Recorded, chrome, gpu_planes, tpu_plane, xspace

REAL = Path(__file__).parents[3] / "benchmarks/data/kineto/mi300x_jax_conv.xplane.pb"


def _read(tmp_path: Path, *planes: Recorded, timestamp_ns: int = 0) -> tuple[Profile, ...]:
    path = tmp_path / "a.xplane.pb"
    path.write_bytes(xspace(*planes, timestamp_ns=timestamp_ns))
    assert xplane.recognizes(path.read_bytes()[: 1 << 16])
    return xplane.read(path)


def _names(profile: Profile) -> list[str]:
    return [profile.strings[i] for i in profile.activities.name.tolist()]


# A second parser of the wire format, which knows nothing of Flint's -------------------------------


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        if tag & 7 == 0:
            value, at = _varint(data, at)
            yield tag >> 3, value
        elif tag & 7 == 2:
            size, at = _varint(data, at)
            yield tag >> 3, data[at : at + size]
            at += size
        else:
            size = {1: 8, 5: 4}[tag & 7]
            yield tag >> 3, data[at : at + size]
            at += size


def _streams(data: bytes) -> dict[str, Counter[str]]:
    """Device -> kernel's name -> picoseconds, of lines whose name begins with Stream."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for number, plane in _fields(data):
        if number != 1 or not isinstance(plane, bytes):
            continue
        parts = defaultdict(list)
        for field, value in _fields(plane):
            parts[field].append(value)
        names = {}
        for entry in parts[4]:
            pair = dict(_fields(entry))
            names[pair[1]] = dict(_fields(pair[2]))[2].decode()
        for line in parts[3]:
            in_line = [*_fields(line)]
            if not dict(in_line).get(2, b"").startswith(b"Stream"):
                continue
            for event in (dict(_fields(v)) for f, v in in_line if f == 4):
                found[parts[2][0].decode()][names[event[1]]] += event.get(3, 0)
                found[parts[2][0].decode()]["events"] += 1
    return found


def test_a_real_profile_has_the_kernels_and_times_that_a_second_parser_finds() -> None:
    profiles = xplane.read(REAL)
    streams = _streams(REAL.read_bytes())
    assert [f"/device:GPU:{i}" for i in range(8)] == sorted(streams)
    for device, profile in zip(sorted(streams), profiles, strict=True):
        found: Counter[str] = Counter()
        for name, duration in zip(_names(profile), profile.activities.duration_ns, strict=True):
            found[name] += round(duration * 1000)
            found["events"] += 1
        assert found == streams[device]
        assert (profile.activities.call >= 0).all()  # the host's launch of each is in the file
        assert profile.device_memory_bytes == 206141652992
        assert profile.peak_bytes > 1 << 30


def test_a_real_profile_keeps_the_work_that_its_programs_say_and_no_name_of_the_machine() -> None:
    profile = xplane.read(REAL)[1]
    kept = {
        profile.strings[n]: profile.compiled[c]
        for n, c in zip(profile.activities.name.tolist(), profile.activities.compiled, strict=True)
    }
    product = next(c for name, c in kept.items() if name.startswith("Cijk_"))
    # (1, 4, 34, 31, 53) filtered by (5120, 4, 4, 2, 2): 55,862 places x 5,120 x 64, two FLOPs each
    assert product.work.dims == (1, 55862, 5120, 64)
    assert product.work.flops == 2 * 55862 * 5120 * 64
    assert product.dtype == "bfloat16"
    assert all("tw003" not in s and "/" not in s for s in profile.strings)


def test_steps_of_a_real_profile_are_runs_of_its_program_and_products_are_counted_once() -> None:
    workload = workload_of(xplane.read(REAL))
    measured = workload.metadata["measured"]["classes"]
    assert [c["steps"] for c in measured] == [5] * 8
    program = workload.programs[1]
    workload.verify()
    assert program.flops.sum() == 2 * 55862 * 5120 * 64  # im2col and product are one convolution
    rows = program.launcher[program.launcher > 0]
    assert len(rows) == 5
    assert len(set(rows.tolist())) == 4


# GPUs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["xplane", "chrome"])
def test_kernels_of_a_gpu_have_streams_launches_and_the_operation_that_launched_them(
    tmp_path: Path, form: str
) -> None:
    planes = gpu_planes()
    if form == "chrome":
        (profile,) = xplane.read_chrome(chrome(tmp_path / "a.trace.json.gz", *planes))
    else:
        (profile,) = _read(tmp_path, *planes)
        assert (profile.device, profile.processors) == ("Nvidia GPU 9.0", 132)
    a, c = profile.activities, profile.calls
    assert _names(profile)[:3] == ["gemm", "split_k", "ncclDevKernel_AllReduce"]
    assert _names(profile)[3] == "Memcpy HtoD (pageable -> device)"
    assert a.stream.tolist() == [7, 7, 7, 9, 9, 9]
    assert a.start_ns.tolist() == [10e3, 15e3, 20e3, 30e3, 40e3, 41e3]
    assert a.num_bytes.tolist() == [0, 0, 0, 4096, 0, 0]
    assert [profile.strings[c.name[i]] for i in a.call] == [
        "cuLaunchKernel", "cuLaunchKernel", "cuLaunchKernelEx", "cuMemcpyHtoDAsync_v2",
        "cuGraphLaunch", "cuGraphLaunch",
    ]  # fmt: skip
    assert c.kind[a.call[4]] == CallKind.GRAPH
    # the launch for another device is not there, the wait of the thread is
    assert len(c.kind) == 6
    assert (c.kind == CallKind.WAIT_STREAM).sum() == 1
    assert a.operator[0] == a.operator[1] >= 0
    assert profile.strings[profile.operators.name[a.operator[0]]] == "hlo::dot"
    assert [profile.comms[i].name for i in a.comm.tolist() if i >= 0] == ["allreduce"]
    assert [profile.strings[i] for i in profile.marks.name.tolist()] == ["step#4"]
    assert profile.peak_bytes == 77
    assert not any("secret" in s for s in profile.strings)


def test_times_from_1970_keep_their_nanoseconds(tmp_path: Path) -> None:
    now = 1_790_000_000_123_456_789
    (profile,) = _read(tmp_path, *gpu_planes(), timestamp_ns=now)
    assert profile.origin_ns == now
    assert profile.activities.start_ns.tolist()[:2] == [10e3, 15e3]


# TPUs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["xplane", "chrome"])
def test_operations_of_a_tpu_are_leaves_and_waits_for_others_are_not_theirs(
    tmp_path: Path, form: str
) -> None:
    if form == "chrome":
        (profile,) = xplane.read_chrome(chrome(tmp_path / "a.trace.json.gz", tpu_plane()))
    else:
        (profile,) = _read(tmp_path, tpu_plane())
        assert profile.device == "TPU v5p"
    a = profile.activities
    rows = dict(zip(_names(profile), zip(a.start_ns / 1e3, a.duration_ns / 1e3, a.stream, strict=True), strict=True))  # fmt: skip
    assert "while.1" not in rows
    assert len(a.name) == 8  # 6 of the operations' line without the loop, 2 beside them
    assert rows["all-gather-done.9"] == (78, 2, 0)  # 13 us of its 15 are the gather's
    assert Counter(a.stream.tolist()) == {0: 6, 1: 1, 2: 1}
    names = _names(profile)
    waits = {(names[w], names[v]) for w, v in profile.waits.tolist()}
    assert ("all-gather-done.9", "all-gather-start.2") in waits
    comms = Counter(profile.comms[i].name for i in a.comm.tolist() if i >= 0)
    assert comms == {"_allgather_base": 1, "allreduce": 1}
    categories = [profile.strings[a.category[i]] for i in np.flatnonzero(a.comm >= 0)]
    assert categories == ["all-gather", "all-reduce"]
    first = names.index("fusion.1")
    assert (a.flops[first], a.bytes_accessed[first]) == (900, 64)
    assert profile.strings[a.category[first]] == "convolution fusion"
    # each run of a module is one launch
    assert profile.calls.kind.tolist() == [CallKind.GRAPH] * 2
    assert profile.calls.start_ns.tolist() == [0, 60e3]
    assert Counter(a.call.tolist()) == {0: 2, 1: 6}
    assert profile.strings[profile.marks.name[0]] == "step#7"


def _program() -> bytes:
    """An HloProto: x @ w, then an all-reduce over pairs of four devices."""
    proto = message_class("HloProto")()
    module = proto.hlo_module
    module.name, module.entry_computation_name = "jit_step", "main"
    module.entry_computation_id = 1
    module.device_assignment.replica_count, module.device_assignment.computation_count = 1, 4
    main = module.computations.add(name="main", id=1, root_id=4)

    def add(number: int, name: str, opcode: str, *operands: int, shape: tuple[int, ...]) -> Any:
        made = main.instructions.add(name=name, opcode=opcode, id=number, operand_ids=operands)
        made.shape.element_type = 16  # BF16
        made.shape.dimensions.extend(shape)
        made.metadata.op_name = "jit(step)/layer/dot_general"
        return made

    add(1, "x", "parameter", shape=(8, 32))
    shifted = add(5, "collective-permute.9", "collective-permute", 1, shape=(8, 32))
    for source in range(4):
        shifted.source_target_pairs.add(source=source, target=(source + 1) % 4)
    add(2, "w", "parameter", shape=(32, 16)).parameter_number = 1
    dot = add(3, "dot.2", "dot", 1, 2, shape=(8, 16)).dot_dimension_numbers
    dot.lhs_contracting_dimensions.append(1)
    dot.rhs_contracting_dimensions.append(0)
    reduced = add(4, "all-reduce.1", "all-reduce", 3, shape=(8, 16))
    reduced.channel_id, reduced.use_global_device_ids = 1, True
    for group in ((0, 1), (2, 3)):
        reduced.replica_groups.add(replica_ids=group)
    return bytes(proto.SerializeToString())


@pytest.mark.parametrize("kind", ["TPU", "GPU"])
def test_the_program_in_a_profile_gives_products_and_groups(tmp_path: Path, kind: str) -> None:
    def happened(name: str, at: float, correlation: int) -> Happened:
        stats: dict[str, int | float | str | bytes] = {"program_id": 7}
        if kind == "GPU":
            stats |= {"hlo_op": name, "correlation_id": correlation}
        return Happened(name, at, 5, stats, {}, name)

    line = "XLA Ops" if kind == "TPU" else "Stream #3(Kernel)"
    devices = [
        Recorded(f"/device:{kind}:{n}", {line: [happened("dot.2", 1, 2 * n), happened("all-reduce.1", 9, 2 * n + 1)]})
        for n in range(4)
    ]  # fmt: skip
    metadata = Recorded("/host:metadata", {}, programs={"jit_step(7)": _program()})
    profiles = _read(tmp_path, metadata, *devices)
    comms = [p.comms[p.activities.comm[1]] for p in profiles]
    assert [c.ranks for c in comms] == [(0, 1), (0, 1), (2, 3), (2, 3)]
    assert {(c.name, c.in_elements, c.dtype) for c in comms} == {("allreduce", 128, "bfloat16")}
    workload = workload_of(profiles)
    workload.verify()
    assert workload.mesh.sizes == (2, 2)
    program = workload.programs[0]
    assert program.flops.sum() == 2 * 8 * 16 * 32
    assert [1, 8, 16, 32] in program.dims.tolist()
    assert program.comm_bytes.sum() == 256


@pytest.mark.parametrize("profiled", [1, 4])
def test_a_permutation_sends_along_its_pairs(tmp_path: Path, profiled: int) -> None:
    name = "collective-permute.9"
    events = [Happened(name, 3, 5, {"program_id": 7}), Happened("dot.2", 9, 5, {"program_id": 7})]
    planes = [Recorded(f"/device:TPU:{n}", {"XLA Ops": events}) for n in range(profiled)]
    metadata = Recorded("/host:metadata", {}, programs={"jit_step(7)": _program()})
    workload = workload_of(_read(tmp_path, metadata, *planes))
    workload.verify()
    assert workload.mesh.size == 4
    program = workload.programs[0]
    row = int(np.argmax(program.comm_bytes))
    assert (program.collective[row], program.comm_bytes[row]) == (Collective.PERMUTE, 8 * 32 * 2)
    Trace(workload).save(tmp_path / "traces")
    report = check(tmp_path / "traces")
    assert report.ok, report.findings


def test_a_done_waits_for_the_last_operation_of_its_name_in_a_loop(tmp_path: Path) -> None:
    def turn(at: float) -> list[Happened]:
        done = "%copy-done.1 = f32[8] copy-done((f32[8]) %copy-start.1)"
        return [
            Happened("%copy-start.1 = ...", at, 1, display="copy-start.1"),
            Happened(done, at + 2, 8, display="copy-done.1"),
        ]

    beside = [Happened("copy-start.1", 0.5, 9), Happened("copy-start.1", 20.5, 6)]
    ops = [*turn(0), *turn(20)]
    (profile,) = _read(
        tmp_path, Recorded("/device:TPU:0", {"XLA Ops": ops, "Async XLA Ops": beside})
    )
    a = profile.activities
    assert (a.start_ns / 1e3).tolist() == [0, 1, 9.5, 20, 21, 26.5]
    assert sorted(profile.waits.tolist()) == [[1, 0], [2, 1], [4, 3], [5, 4]]


def test_classes_of_categories() -> None:
    from flint.tools.measure.profiles.xplane.modules import class_of_category

    assert class_of_category("loop fusion") is OpClass.COMPILED
    assert class_of_category("data formatting") is OpClass.MOVE
    assert class_of_category("dynamic-update-slice") is OpClass.UPDATE_SLICE
    assert class_of_category("something new") is OpClass.UNKNOWN


# What cannot be used --------------------------------------------------------------------------


def _refused(path: Path, code: str) -> str:
    with pytest.raises(FlintError) as caught:
        xplane.read(path)
    assert caught.value.code == code
    return str(caught.value)


def test_a_profile_of_a_cpu_alone_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.pb"
    path.write_bytes(xspace(Recorded("/host:CPU", {"thread": [Happened("x", 0, 1)]})))
    assert "nothing that ran on a device: /host:CPU" in _refused(path, "FL825")


def test_a_truncated_profile_is_refused_with_the_place(tmp_path: Path) -> None:
    path = tmp_path / "a.pb"
    path.write_bytes(xspace(*gpu_planes())[:-40])
    assert "lacks its last" in _refused(path, "FL824")


def test_times_that_cannot_be_are_left_out_and_said(tmp_path: Path) -> None:
    gpu = Recorded(
        "/device:GPU:0",
        {"Stream #1(Kernel)": [Happened("a", 0, 1), Happened("b", 0, -3), Happened("c", -9e12, 1)]},
    )
    (profile,) = _read(tmp_path, gpu)
    assert "b" not in _names(profile)
    assert profile.warnings == ("1 events have impossible times: omitted",)


def test_a_program_that_cannot_be_read_costs_its_shapes_only(tmp_path: Path) -> None:
    gpu, host = gpu_planes()
    metadata = Recorded("/host:metadata", {}, programs={"jit_step(5)": b"\x0a\x03abc"})
    (profile,) = _read(tmp_path, metadata, gpu, host)
    assert len(profile.activities.name) == 6
    assert profile.warnings == (
        "1 programs of the profile cannot be read, so their shapes are unknown",
    )


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_damaged_bytes_are_a_sentence_and_never_a_crash(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = bytearray(xspace(*gpu_planes(), tpu_plane()))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("damaged") / "a.pb"
    path.write_bytes(bytes(whole))
    try:
        profiles = xplane.read(path)
    except FlintError as error:
        assert error.code in ("FL824", "FL825")
    else:
        assert all(np.isfinite(p.activities.start_ns).all() for p in profiles)


@pytest.mark.parametrize(
    ("durations", "longest"),
    [
        ([("warm", 5.0), ("step", 3.0), ("step", 3.0)], "step"),
        ([("warm", 7.0), ("step", 3.0), ("step", 3.0)], "warm"),
        ([("b", 3.0), ("a", 3.0)], "a"),
        ([], ""),
    ],
)
def test_the_program_that_ran_longest_is_the_step(
    durations: list[tuple[str, float]], longest: str
) -> None:
    events = [(name, PlaneEvent(name, "", 0.0, ns, {})) for name, ns in durations]
    assert _longest(events) == longest
