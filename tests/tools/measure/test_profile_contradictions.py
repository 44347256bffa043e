"""Profiles that contradict themselves are refused or told, never believed in silence."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import flint
from flint.errors import FlintError
from flint.tools.measure.profiles.contradictions.check import REFUSED, TOLD

Trace = dict[str, Any]


def event(category: str, name: str, start: float, lasts: float, **args: Any) -> Trace:
    """An event; `stream` says that it ran on the device."""
    at = {"pid": 0, "tid": args["stream"]} if "stream" in args else {"pid": 1, "tid": 1}
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": lasts, "args": args, **at}


def collective(name: str, read: int, stored: int, **more: Any) -> Trace:
    """Arguments of a collective of both ranks."""
    return {
        "Collective name": name, "In msg nelems": read, "Out msg nelems": stored, "dtype": "BFloat16",
        "Group size": 2, "Process Group Name": "0", "Process Group Ranks": "[0, 1]", **more,
    }  # fmt: skip


#: A collective's events by their places in `base`: mm, gradient of it, all-reduce, all-gather,
#: all-to-all, message, copy; each has an operator, a launch and a kernel.
MM, GRADIENT, REDUCE, GATHER, EXCHANGE, SEND, COPY = range(7)


def base(rank: int = 0) -> Trace:
    """A profile that contradicts nothing."""
    bf16 = ["c10::BFloat16"] * 2
    mm = {"Input Dims": [[512, 256], [256, 128]], "Input type": bf16, "Sequence number": 4}
    back = {"Input Dims": [[256, 512], [512, 128]], "Input type": bf16, "Sequence number": 4, "Fwd thread id": 1}  # fmt: skip
    work = [
        ("aten::mm", "kernel", "gemm_a", mm, {}),
        ("aten::mm", "kernel", "gemm_b", back, {}),
        ("record_param_comms", "kernel", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL()", {}, collective("allreduce", 4096, 4096)),
        ("record_param_comms", "kernel", "ncclDevKernel_AllGather_RING_LL()", {}, collective("_allgather_base", 1024, 2048)),
        ("record_param_comms", "kernel", "ncclDevKernel_SendRecv()", {}, collective("all_to_allv", 4096, 4096, **{"In split size": "[2, 2]", "Out split size": "[2, 2]"})),
        ("record_param_comms", "kernel", "ncclDevKernel_SendRecv()", {}, collective("send", 512, 0, **{"Dst Rank": 1 - rank})),
        ("aten::copy_", "gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", {}, {"bytes": 65536}),
    ]  # fmt: skip
    events = [event("user_annotation", "ProfilerStep#1", 0, 1000)]
    for number, (operator, category, kernel, arguments, of_kernel) in enumerate(work):
        at, stream = 100.0 * number + 10, 7 if number < 2 else 20
        events += [
            event("cpu_op", operator, at, 50, **{"External id": number + 1, **arguments}),
            event("cuda_runtime", "cudaLaunchKernel", at + 5, 5, correlation=number + 1, **{"External id": number + 1}),
            event(category, kernel, at + 20, 60, stream=stream, device=0, correlation=number + 1, **of_kernel),
        ]  # fmt: skip
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 80 << 30}],
        "distributedInfo": {"rank": rank, "world_size": 2, "backend": "nccl"},
        "traceEvents": events,
    }  # fmt: skip


def of_kernel(which: int, **args: Any) -> Callable[[Trace], None]:
    """Changes arguments of a kernel."""
    return lambda t: t["traceEvents"][3 * which + 3]["args"].update(
        {k.replace("_", " "): v for k, v in args.items()}
    )


def of_operator(which: int, **args: Any) -> Callable[[Trace], None]:
    """Changes arguments of an operator."""
    return lambda t: t["traceEvents"][3 * which + 1]["args"].update(
        {k.replace("_", " "): v for k, v in args.items()}
    )


def timed(place: int, **fields: Any) -> Callable[[Trace], None]:
    """Changes times or names of an event by its place in the file."""
    return lambda t: t["traceEvents"][place].update(fields)


def beside(**fields: Any) -> Callable[[Trace], None]:
    """Changes what is beside the events."""
    return lambda t: t["distributedInfo"].update(fields)


def device(**fields: Any) -> Callable[[Trace], None]:
    """Changes what the device is."""
    return lambda t: t["deviceProperties"][0].update(fields)


def added(*events: Trace) -> Callable[[Trace], None]:
    """Adds events."""
    return lambda t: t["traceEvents"].extend(events)


def twice(trace: Trace) -> None:
    """Every event again."""
    trace["traceEvents"] += copy.deepcopy(trace["traceEvents"])


def without_time(trace: Trace) -> None:
    """Kernels of 0 ns."""
    for e in trace["traceEvents"]:
        if e["cat"] == "kernel":
            e["dur"] = 0


def crossing(trace: Trace) -> None:
    """Operators that begin within another one and end long after it."""
    trace["traceEvents"] += [event("cpu_op", f"aten::op{n}", n * 10 + 1, 3000 * (n + 1)) for n in range(4)]  # fmt: skip


def in_memory(total: int) -> Callable[[Trace], None]:
    """What the allocator held."""
    args = {"Total Allocated": total, "Device Type": 1, "Total Reserved": total, "Device Id": 0}
    mark = {"ph": "i", "name": "[memory]", "cat": "cpu_instant_event", "ts": 5, "pid": 1, "tid": 1}
    return added({**mark, "args": args})


RANKS_OF, SIZE_OF = "Process_Group_Ranks", "Group_size"
#: What is changed, and the code of the error or a part of the sentence.
CONTRADICTIONS: dict[str, tuple[Callable[[Trace], None], str]] = {
    "a rank twice in a group": (of_kernel(REDUCE, **{RANKS_OF: "[0, 0]"}), "FL833"),
    "a group of a billion": (of_kernel(REDUCE, **{SIZE_OF: 10**9, RANKS_OF: ""}), "FL833"),
    "a group that lists fewer than it has": (of_kernel(REDUCE, **{SIZE_OF: 2, RANKS_OF: "[0]"}), "FL833"),
    "a group of ranks that are not there": (of_kernel(REDUCE, **{RANKS_OF: "[0, 5]"}), "FL833"),
    "a group without the rank": (of_kernel(REDUCE, **{RANKS_OF: "[1]", SIZE_OF: 1}), "FL833"),
    "rank 7 of 2": (beside(rank=7), "FL833"),
    "a group of the configuration outside": (beside(pg_config=[{"pg_name": "9", "ranks": [0, 9]}]), "FL833"),
    "a job of a billion": (lambda t: (t.pop("distributedInfo"), of_kernel(REDUCE, **{SIZE_OF: 10**9, RANKS_OF: ""})(t)), "FL833"),
    "a message to nobody": (of_kernel(SEND, Dst_Rank=9), "FL833"),
    "a message to itself": (of_kernel(SEND, Dst_Rank=0), "goes to itself"),
    "a group with two lists": (beside(pg_config=[{"pg_name": "0", "ranks": [0]}]), "groups of one name"),
    "everything twice": (twice, "FL834"),
    "a kernel twice": (added(event("kernel", "gemm_a", 30, 60, stream=7, device=0, correlation=1)), "kernels appear twice"),
    "sizes below nothing": (of_kernel(REDUCE, In_msg_nelems=-5), "FL835"),
    "a dimension below nothing": (of_operator(MM, Input_Dims=[[-512, 256], [256, 128]]), "FL835"),
    "a dimension below nothing, in a list": (of_operator(MM, Input_Dims=[[[512, -256]], [256, 128]]), "FL835"),
    "kernels at once on a stream": (timed(6, ts=40.0), "before the one ahead"),
    "a kernel of an hour": (timed(21, dur=3.6e9), "a kernel takes 3,600 s"),
    "a pause of an hour": (timed(21, ts=3.6e9), "is idle for 3,600 s"),
    "kernels without time": (without_time, "take no time"),
    "kernels before their launches": (lambda t: [e.update(ts=e["ts"] + 5000) for e in t["traceEvents"] if "stream" not in e["args"]], "begin before they are launched"),
    "steps at once": (lambda t: (timed(0, dur=9000)(t), added(event("user_annotation", "ProfilerStep#2", 2000, 9000))(t)), "annotations of steps overlap"),
    "operators that cross": (crossing, "end after their caller"),
    "a gradient ahead of its forward": (lambda t: (timed(1, ts=4000.0)(t), timed(2, ts=4005.0)(t), timed(3, ts=4020.0)(t), timed(0, dur=9000)(t)), "before their forward ones"),
    "HIP on NVIDIA": (lambda t: [e.update(name="hipLaunchKernel") for e in t["traceEvents"] if e["cat"] == "cuda_runtime"], "calls of HIP"),
    "CUDA on AMD": (device(name="AMD Instinct MI300X"), "calls of CUDA"),
    "an all-reduce of two sizes": (of_kernel(REDUCE, Out_msg_nelems=4095), "do not fit their inputs"),
    "an all-gather that is too small": (of_kernel(GATHER, Out_msg_nelems=1024), "do not fit their inputs"),
    "splits for other ranks": (of_kernel(EXCHANGE, In_split_size="[2, 2, 2]"), "splits of all_to_allv"),
    "splits of other elements": (of_kernel(EXCHANGE, Out_split_size="[2, 1]"), "splits of all_to_allv"),
    "a collective larger than memory": (of_kernel(REDUCE, In_msg_nelems=10**12, Out_msg_nelems=10**12), "of a device that has"),
    "a tensor larger than memory": (of_operator(MM, Input_Dims=[[10**9, 256], [256, 128]]), "larger than the memory"),
    "more held than there is": (in_memory(90 << 30), "the allocator held"),
    "a copy at a petabyte a second": (of_kernel(COPY, bytes=60 << 30), "copies or collectives move more"),
    "a product without time": (of_operator(MM, Input_Dims=[[100000, 90000], [90000, 100000]]), "no device is that fast"),
    "mm of shapes that do not fit": (of_operator(MM, Input_Dims=[[512, 255], [256, 128]]), "shapes of operators do not fit (aten::mm)"),
    "bmm of shapes that do not fit": (lambda t: (timed(1, name="aten::bmm")(t), of_operator(MM, Input_Dims=[[4, 8, 16], [5, 16, 8]])(t)), "do not fit (aten::bmm)"),
    "a sum of shapes that do not fit": (lambda t: (timed(1, name="aten::add")(t), of_operator(MM, Input_Dims=[[512, 7], [512, 8]])(t)), "do not fit (aten::add)"),
    "attention of shapes that do not fit": (lambda t: (timed(1, name="aten::scaled_dot_product_attention")(t), of_operator(MM, Input_Dims=[[1, 8, 32, 64], [1, 8, 32, 128], [1, 8, 32, 64]], Input_type=["c10::BFloat16"] * 3)(t)), "do not fit (aten::scaled"),
}  # fmt: skip


def warnings_of(path: Path, *traces: Trace) -> list[str]:
    files = []
    for number, trace in enumerate(traces):
        files.append(path / f"t{number}.json")
        files[-1].write_text(json.dumps(trace))
    return [w for w in flint.import_profiles(*files).warnings if w.startswith("contradiction: ")]


def test_a_profile_that_contradicts_nothing(tmp_path: Path) -> None:
    assert not warnings_of(tmp_path, base(0), base(1))


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_contradictions(name: str, tmp_path: Path) -> None:
    change, expected = CONTRADICTIONS[name]
    trace = base()
    change(trace)
    if expected.startswith("FL"):
        with pytest.raises(FlintError) as raised:
            warnings_of(tmp_path, trace)
        assert raised.value.code == expected
    else:
        assert expected in " ".join(warnings_of(tmp_path, trace))


@pytest.mark.parametrize("ranks", ["[0, 0]", "[0, 2000000000]", "[1]"])
def test_other_formats_are_held_against_the_same_rules(ranks: str, tmp_path: Path) -> None:
    """A Chakra trace of rank 0, whose groups are in a file beside it."""
    node = {"Id": 1, "Name": "a", "NodeType": 7, "runtime": 5, "comm_size": 8, "comm_type": 0}
    nodes = [{**node, "pg_name": "1"}, {**node, "Id": 2}]
    (tmp_path / "comm_group.json").write_text(f'{{"1": {ranks}}}')
    (tmp_path / "t.0.et.json").write_text(json.dumps({"workload_graph": nodes}))
    with pytest.raises(FlintError) as raised:
        flint.import_profiles(tmp_path / "t.0.et.json")
    assert raised.value.code == "FL833"


def test_ranks_that_contradict_each_other(tmp_path: Path) -> None:
    other = base(1)
    of_kernel(REDUCE, In_msg_nelems=2048, Out_msg_nelems=2048)(other)
    assert "two ranks state different" in " ".join(warnings_of(tmp_path, base(0), other))


def test_every_rule_has_a_contradiction() -> None:
    """Each rule is met by a line of the table, or by the permutation below."""
    assert len(CONTRADICTIONS) > sum(map(len, REFUSED.values())) + len(TOLD)


def test_results_below_nothing() -> None:
    from flint.tools.measure.profiles.build import workload_of
    from flint.tools.measure.profiles.builder import ProfileBuilder
    from flint.tools.measure.profiles.profile import ActivityKind, Signature

    builder = ProfileBuilder("linked execution trace")
    result = Signature(((4, 4),), ("float",), outputs=(((4, -4), "float"),))
    builder.add_operator("aten::relu", 0, 5, 1, external=1, signature=builder.signature(result))
    builder.add_activity(ActivityKind.KERNEL, "relu", 1, 3, 7, external=1)
    with pytest.raises(FlintError) as raised:
        workload_of([builder.build()])
    assert raised.value.code == "FL835"


def test_a_permutation_in_which_two_send_to_one() -> None:
    from flint.tools.measure.profiles.build import workload_of
    from flint.tools.measure.profiles.builder import ProfileBuilder
    from flint.tools.measure.profiles.profile import ActivityKind, ProfiledComm

    builder = ProfileBuilder("xplane", world_size=3)
    comm = builder.comm(ProfiledComm("permute", 8, 8, "Float", pairs=((0, 1), (2, 1))))
    builder.add_activity(ActivityKind.KERNEL, "collective-permute", 0, 10, 1, comm=comm)
    with pytest.raises(FlintError) as raised:
        workload_of([builder.build()])
    assert raised.value.code == "FL833"
