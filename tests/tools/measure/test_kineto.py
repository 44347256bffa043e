"""Kineto's JSON: what each kind of event becomes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from flint.tools.measure.profiles.formats import read_profiles
from flint.tools.measure.profiles.kineto.calls import is_synchronous_copy, kind_of_call
from flint.tools.measure.profiles.profile import ActivityKind, CallKind, Profile, ProfiledComm

DATA = Path(__file__).resolve().parents[3] / "benchmarks" / "data" / "kineto"
Event = dict[str, Any]


def event(cat: str, name: str, ts: float, dur: float, tid: int = 1, **args: Any) -> Event:
    found = {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur}
    return {**found, "args": {k.replace("_", " "): v for k, v in args.items()}}


def launch(ts: float, correlation: int, dur: float = 2.0, name: str = "cudaLaunchKernel") -> Event:
    return event("cuda_runtime", name, ts, dur, correlation=correlation)


def kernel(ts: float, dur: float, correlation: int, stream: int = 7, name: str = "k") -> Event:
    args = {"device": 0, "stream": stream, "correlation": correlation}
    return event("kernel", name, ts, dur, tid=stream, **args)


def profile_of(tmp_path: Path, events: list[Event], **beside: Any) -> Profile:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({**beside, "traceEvents": events}))
    (profile,) = read_profiles(path)
    return profile


def test_a_rank_of_eight() -> None:
    (profile,) = read_profiles(DATA / "b200_eager_rank0of8.json.gz")
    assert (profile.rank, profile.world_size, profile.device) == (0, 8, "NVIDIA B200")
    assert profile.processors == 148
    (comm,) = [c for c in profile.comms if c.group_size]
    assert (comm.name, comm.in_elements, comm.dtype) == ("_allgather_base", 25136, "BFloat16")
    assert comm.ranks == tuple(range(8))


@pytest.mark.parametrize("device", ["h100", "mi300x"])
def test_shapes_are_those_of_the_file(device: str) -> None:
    (profile,) = read_profiles(DATA / f"{device}_bert-small.json.gz")
    shapes = {s.shapes[0] for s in profile.signatures if s.shapes}
    assert (1, 141, 512) in shapes


def test_both_forms_and_any_order_of_keys(tmp_path: Path) -> None:
    events = [launch(10, 5), kernel(14, 3, 5)]
    for text in (
        json.dumps(events),
        json.dumps({"traceEvents": events, "distributedInfo": {"rank": 3}}),
        json.dumps({"distributedInfo": {"rank": 3}, "traceEvents": events}, indent=2),
        "\ufeff" + json.dumps({"traceEvents": events}),
    ):
        path = tmp_path / "any.name"
        path.write_text(text, encoding="utf-8")
        (profile,) = read_profiles(path)
        assert profile.activities.start_ns.tolist() == [4000.0]
        assert profile.activities.call.tolist() == [0]
        assert profile.rank == (3 if "distributedInfo" in text else -1)


def test_streams_of_gzip_one_after_another(tmp_path: Path) -> None:
    text = json.dumps([launch(10, 5), kernel(14, 3, 5)]).encode()
    path = tmp_path / "trace"
    path.write_bytes(gzip.compress(text[:70]) + gzip.compress(text[70:]))
    assert len(read_profiles(path)[0].activities.name) == 1


def test_times_of_old_files_are_absolute(tmp_path: Path) -> None:
    start = 1_700_000_000_000_000
    old = profile_of(tmp_path, [launch(start, 5), kernel(start + 4, 3, 5)])
    new = profile_of(tmp_path, [launch(20, 5), kernel(24, 3, 5)], baseTimeNanoseconds=10**18)
    assert old.origin_ns == start * 1000
    assert new.origin_ns == 10**18 + 20_000
    assert old.activities.start_ns.tolist() == new.activities.start_ns.tolist() == [4000.0]


@pytest.mark.parametrize(
    "info",
    [
        {"rank": 2, "world_size": 4, "pg_config": [{"pg_name": "7", "ranks": [0, 2]}]},
        {"rank": 2, "world_size": 4, "pg_config": '[{"uid": "7", "ranks": "[0, 2]"}]'},
        '{"rank": 2, "world_size": 4, "pg_config": [{"pg_name": "7", "ranks": [0, 2]}]}',
    ],
)
def test_groups_of_any_version(tmp_path: Path, info: Any) -> None:
    profile = profile_of(tmp_path, [kernel(1, 1, 1)], distributedInfo=info)
    assert (profile.rank, profile.world_size, profile.groups) == (2, 4, {"7": (0, 2)})


def test_ranks_that_are_cut_come_from_the_groups(tmp_path: Path) -> None:
    cut = "[" + ", ".join(map(str, range(30))) + ", ...]"
    meta = {
        "Collective name": "allreduce", "In msg nelems": 64, "Out msg nelems": 64, "dtype": "Float",
        "Group size": 64, "Process Group Name": "3", "Process Group Ranks": cut,
    }  # fmt: skip
    nccl = kernel(14, 3, 5, name="ncclDevKernel_AllReduce")
    nccl["args"].update(meta)
    groups = [{"pg_name": "3", "pg_size": 64, "ranks": list(range(0, 128, 2))}]
    profile = profile_of(tmp_path, [nccl], distributedInfo={"rank": 0, "pg_config": groups})
    assert profile.comms[profile.activities.comm[0]] == ProfiledComm(
        "allreduce", 64, 64, "Float", "3", 64, tuple(range(0, 128, 2))
    )


def test_a_kernel_takes_over_what_its_operator_says_and_the_rest_is_counted(tmp_path: Path) -> None:
    said = event("cpu_op", "record_param_comms", 0, 20, External_id=9)
    said["args"].update(
        {"Collective name": "send", "In msg nelems": 8, "dtype": "Float", "Process Group ID": 2,
         "Dst Rank": 3, "Rank": 1, "Process Group Ranks": "[1, 3]", "Seq": 11}
    )  # fmt: skip
    events = [said, launch(5, 1), kernel(6, 4, 1, name="ncclKernel_SendRecv"),
              launch(50, 2), kernel(56, 4, 2, name="ncclKernel_SendRecv")]  # fmt: skip
    profile = profile_of(tmp_path, events)
    assert profile.activities.comm.tolist() == [0, -1]
    assert profile.comms == (ProfiledComm("send", 8, -1, "Float", "2", 2, (1, 3), peer=3, turn=11),)
    assert profile.rank == -1  # the rank of a message is that of its other end
    assert any("1 collective kernels state neither" in w for w in profile.warnings)


def test_lists_of_tensors_are_signatures_of_lists(tmp_path: Path) -> None:
    op = event(
        "cpu_op", "aten::cat", 0, 9, Input_Dims=[[[2, 3], [4, 3]], []],
        Input_type=["TensorList", "Scalar"], Concrete_Inputs=["", "0"], Sequence_number=4,
        Fwd_thread_id=2,
    )  # fmt: skip
    profile = profile_of(tmp_path, [op, launch(1, 5), kernel(4, 3, 5)])
    (signature,) = profile.signatures
    assert signature.lists == (((2, 3), (4, 3)), ())
    assert (signature.shapes, signature.values) == (((), ()), ("", "0"))
    assert profile.operators.is_backward.tolist() == [True]
    assert profile.operators.sequence.tolist() == [4]


def test_a_graph_has_one_launch(tmp_path: Path) -> None:
    graph = launch(10, 5, name="cudaGraphLaunch")
    profile = profile_of(tmp_path, [graph, kernel(14, 3, 5), kernel(18, 3, 5)])
    assert profile.activities.call.tolist() == [0, 0]
    assert profile.calls.kind.tolist() == [CallKind.GRAPH]


def test_waits_of_streams_by_their_records(tmp_path: Path) -> None:
    wait = launch(30, 8, name="cudaStreamWaitEvent")
    sync = event("cuda_sync", "Stream Wait Event", 30, 1, correlation=8, stream=9, device=0)
    sync["args"].update({"wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 6})
    events = [launch(10, 5), kernel(14, 30, 5), launch(20, 6, name="cudaEventRecord"),
              launch(24, 7), kernel(44, 3, 7), wait, sync]  # fmt: skip
    calls = profile_of(tmp_path, events).calls
    row = calls.kind.tolist().index(CallKind.STREAM_WAIT)
    assert (calls.stream[row], calls.waits_for[row]) == (9, 0)
    assert calls.stream[calls.kind.tolist().index(CallKind.RECORD_EVENT)] == 7


@pytest.mark.parametrize("name", ["cudaDeviceSynchronize", "hipStreamSynchronize"])
def test_waits_of_the_host_by_the_times(tmp_path: Path, name: str) -> None:
    events = [
        launch(10, 5),
        kernel(14, 30, 5),
        launch(20, 6, 26.0, name),
        launch(60, 7),
        kernel(64, 3, 7),
    ]
    calls = profile_of(tmp_path, events).calls
    assert calls.waits_for.tolist() == [-1, 0, -1]


def test_copies_that_the_host_waits_for(tmp_path: Path) -> None:
    def copy(ts: float, dur: float, correlation: int, kind: str) -> Event:
        found = kernel(ts, dur, correlation, name=f"Memcpy DtoH (Device -> {kind})")
        found["args"]["bytes"] = 64
        return {**found, "cat": "gpu_memcpy"}

    events = [
        launch(10, 1, 20.0, "cudaMemcpyAsync"), copy(14, 12, 1, "Pageable"),
        launch(40, 2, 2.0, "cudaMemcpyAsync"), copy(44, 12, 2, "Pinned"),
        launch(60, 3, 20.0, "hipMemcpyWithStream"), copy(64, 12, 3, "Pinned"),
    ]  # fmt: skip
    profile = profile_of(tmp_path, events)
    assert profile.calls.waits_for.tolist() == [0, -1, 2]
    assert profile.activities.kind.tolist() == [ActivityKind.COPY] * 3
    assert profile.activities.num_bytes.tolist() == [64] * 3


def test_marks_lose_the_folders_of_paths(tmp_path: Path) -> None:
    named = event("user_annotation", "/home/ann/secret/train.py(3): step", 0, 50)
    seen = event("gpu_user_annotation", "ProfilerStep#3", 0, 50)
    profile = profile_of(tmp_path, [named, seen, kernel(4, 3, 5)], traceName="/home/ann/x.json")
    assert [profile.strings[n] for n in profile.marks.name] == [
        "train.py(3): step",
        "ProfilerStep#3",
    ]
    assert profile.marks.on_device.tolist() == [False, True]
    assert "ann" not in repr(profile)


def test_peak_of_the_memory_events(tmp_path: Path) -> None:
    def memory(total: int, kind: int) -> Event:
        args = {"Total Allocated": total, "Device Type": kind, "Bytes": 4, "Addr": 77}
        return {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": 1, "args": args}

    profile = profile_of(
        tmp_path, [kernel(4, 3, 5), memory(500, 1), memory(300, 1), memory(900, 0)]
    )
    assert profile.peak_bytes == 500


def test_the_rank_is_read_from_the_name_at_last(tmp_path: Path) -> None:
    path = tmp_path / "run_rank-12.json"
    path.write_text(json.dumps([kernel(4, 3, 5)]))
    (profile,) = read_profiles(path)
    assert profile.rank == 12
    assert any("file's name" in w for w in profile.warnings)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cudaLaunchKernel", CallKind.LAUNCH),
        ("cudaLaunchKernelExC_v11060", CallKind.LAUNCH),
        ("cuLaunchKernelEx", CallKind.LAUNCH),
        ("cuLaunchKernel_ptsz", CallKind.LAUNCH),
        ("cudaLaunchCooperativeKernel", CallKind.LAUNCH),
        ("hipExtModuleLaunchKernel", CallKind.LAUNCH),
        ("hipExtLaunchKernel", CallKind.LAUNCH),
        ("hipMemcpyWithStream", CallKind.LAUNCH),
        ("cuMemsetD8Async", CallKind.LAUNCH),
        ("cudaGraphLaunch_v10000", CallKind.GRAPH),
        ("hipGraphLaunch", CallKind.GRAPH),
        ("cudaStreamSynchronize_v3020", CallKind.WAIT_STREAM),
        ("cuCtxSynchronize", CallKind.WAIT_DEVICE),
        ("hipEventSynchronize", CallKind.WAIT_EVENT),
        ("cudaEventRecordWithFlags", CallKind.RECORD_EVENT),
        ("hipStreamWaitEvent", CallKind.STREAM_WAIT),
        ("cudaFuncSetAttribute", CallKind.OTHER),
        ("cudaStreamIsCapturing", CallKind.OTHER),
        ("customLaunchKernel", CallKind.OTHER),
    ],
)
def test_kinds_of_calls(name: str, kind: CallKind) -> None:
    assert kind_of_call(name) == kind


def test_synchronous_copies_by_name() -> None:
    names = ("cudaMemcpy", "cuMemcpyDtoH_v2", "cudaMemcpyAsync", "cudaMemsetAsync", "memcpy")
    assert [is_synchronous_copy(n) for n in names] == [True, True, False, False, False]


def annotated(name: str, shapes: Any, types: Any) -> list[Event]:
    """A collective of a PyTorch of 2023: its operator and its kernel say nothing."""
    return [
        event("cpu_op", "record_param_comms", 0, 9, External_id=1),
        event("user_annotation", name, 1, 7, Input_Dims=shapes, Input_type=types),
        launch(3, 5),
        kernel(20, 4, 5, name="ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)"),
    ]


@pytest.mark.parametrize("shapes, types", [([[4, 8]], ["float"]), ([[[4, 4], [16]]], [["float"]])])
def test_an_annotation_says_kind_and_size_where_nothing_else_does(
    tmp_path: Path, shapes: Any, types: Any
) -> None:
    info = {"backend": "nccl", "rank": 1, "world_size": 4}
    found = profile_of(tmp_path, annotated("nccl:all_reduce", shapes, types), distributedInfo=info)
    comm = found.comms[found.activities.comm[0]]
    assert comm == ProfiledComm("all_reduce", 32, -1, "float", group_size=4, ranks=(0, 1, 2, 3))
    assert "1 collective kernels do not name their group: all 4 ranks are assumed" in found.warnings


def test_of_several_groups_an_annotation_does_not_say_which(tmp_path: Path) -> None:
    groups = [{"pg_name": "0", "ranks": [0, 1, 2, 3]}, {"pg_name": "1", "ranks": [0, 1]}]
    info = {"backend": "nccl", "rank": 1, "world_size": 4, "pg_config": groups}
    events = annotated("nccl:all_reduce", [[8]], ["float"])
    found = profile_of(tmp_path, events, distributedInfo=info)
    assert found.comms[found.activities.comm[0]] == ProfiledComm("all_reduce", 8, -1, "float")


def test_metadata_with_a_group_comes_before_an_annotation(tmp_path: Path) -> None:
    events = annotated("nccl:all_reduce", [[8]], ["float"])
    events[0]["args"] |= {"Collective name": "allreduce", "In msg nelems": 8, "Group size": 2}
    found = profile_of(tmp_path, events)
    assert found.comms[found.activities.comm[0]].name == "allreduce"
