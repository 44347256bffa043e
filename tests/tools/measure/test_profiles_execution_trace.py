"""Execution traces: joined with their profiles, linked, and Chakra's, whoever wrote them."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flint
from flint.backends.chakra.schema import NodeType, messages
from flint.errors import FlintError
from flint.ir.op_class import OpClass
from flint.tools.measure.profiles import execution_trace
from flint.tools.measure.profiles.build import workload_of
from flint.tools.measure.profiles.execution_trace.chakra import scheduled
from flint.tools.measure.profiles.execution_trace.join import join
from flint.tools.measure.profiles.execution_trace.nodes import Node
from flint.tools.measure.profiles.formats import format_of, read_profiles
from flint.tools.measure.profiles.profile import CallKind, Profile, ProfiledComm
from flint.tracing import Trace
from tests.execution_traces import DATA, LAUNCHING, linked, load, pair, with_kernels, write

REAL = Path(__file__).parents[3] / "benchmarks/data/kineto/h100_bert-small.json.gz"


def _refused(code: str, *paths: Path) -> str:
    with pytest.raises(FlintError) as caught:
        flint.import_profiles(*paths)
    assert caught.value.code == code
    return str(caught.value)


# Joined with a profile ------------------------------------------------------------------------


def test_operators_of_a_profile_get_results_and_tensors_of_the_trace_of_the_same_run(
    tmp_path: Path,
) -> None:
    host, kineto = pair(tmp_path)
    (alone,) = read_profiles(kineto)
    assert all(s.outputs is None for s in alone.signatures)
    (joined,) = execution_trace.paired([*read_profiles(host), alone])
    operators = joined.operators
    rows = [i for i, n in enumerate(operators.name.tolist()) if joined.strings[n] == "aten::addmm"]
    assert len(rows) == 4
    signature = joined.signatures[operators.signature[rows[0]]]
    assert signature.outputs == (((8, 32), "float"),)
    assert signature.shapes[:3] == ((32,), (8, 16), (16, 32))
    reads, writes = joined.tensors[operators.tensors[rows[0]]]
    assert len(reads) == 3
    assert len(writes) == 1
    # the storage that addmm wrote is what the activation reads
    clamp = next(
        i for i, n in enumerate(operators.name.tolist()) if joined.strings[n] == "aten::clamp_min"
    )
    assert joined.tensors[operators.tensors[clamp]][0] == writes
    assert len(joined.activities.name) == len(alone.activities.name)


def test_communication_of_the_trace_is_that_of_the_profile_and_its_own_stays(
    tmp_path: Path,
) -> None:
    """The first of the trace's groups has number 0; what the profile itself says is kept."""
    paths = pair(tmp_path)
    (host,), (device,) = read_profiles(paths[0]), read_profiles(paths[1])

    def communicating(profile: Profile, names: str, first: int) -> tuple[Profile, list[int]]:
        rows = [i for i, n in enumerate(profile.operators.name.tolist()) if profile.strings[n] == "aten::addmm"]  # fmt: skip
        comm = profile.operators.comm.copy()
        comm[rows[first : first + len(names)]] = range(len(names))
        comms = tuple(ProfiledComm("all_reduce", 8, 8, "float", name) for name in names)
        return replace(profile, comms=comms, operators=replace(profile.operators, comm=comm)), rows

    host, _ = communicating(host, "abc", 0)
    device, rows = communicating(device, "d", 2)
    joined = join(host, device)
    groups = [joined.comms[n].group if n >= 0 else "" for n in joined.operators.comm[rows].tolist()]
    assert groups == ["a", "b", "d", ""]


@pytest.mark.parametrize("reverse", [False, True])
def test_both_files_are_imported_together_in_any_order(tmp_path: Path, reverse: bool) -> None:
    paths = pair(tmp_path)[:: -1 if reverse else 1]
    workload = flint.import_profiles(*paths).workload
    workload.verify()
    (program,) = workload.programs
    assert (program.op == OpClass.MATMUL).sum() == 5  # of one step: two forward, three backward
    assert program.mesh.size == 1


def test_shapes_come_from_the_trace_where_the_profile_has_none(tmp_path: Path) -> None:
    kineto = with_kernels(load("kineto"))
    for event in kineto["traceEvents"]:
        for name in ("Input Dims", "Input type", "Input Strides", "Concrete Inputs"):
            event.get("args", {}).pop(name, None)
    bare = write(tmp_path / "bare.json", kineto)
    host, whole = pair(tmp_path)
    without = flint.import_profiles(bare).workload.programs[0]
    assert without.flops.sum() == 0
    both = flint.import_profiles(host, bare).workload.programs[0]
    assert both.flops.sum() == flint.import_profiles(whole).workload.programs[0].flops.sum() > 0


def test_a_trace_of_the_host_alone_has_no_times(tmp_path: Path) -> None:
    assert "flint import et.json kineto.json" in _refused("FL820", pair(tmp_path)[0])


def test_partners_of_different_runs_are_refused(tmp_path: Path) -> None:
    _, kineto = pair(tmp_path)
    other = load("host")
    for node in other["nodes"]:
        for attribute in node["attrs"]:
            if attribute["name"] == "rf_id":
                attribute["value"] += 3
    wrong = write(tmp_path / "other.json", other)
    assert "have the same name" in _refused("FL822", wrong, kineto)


def test_partners_of_several_ranks_are_told_by_rank_else_by_place() -> None:
    (host,) = execution_trace.read(DATA / "host.json.gz")
    timed = replace(host, format="kineto")
    with_ranks = [
        replace(host, rank=1),
        replace(host, rank=0),
        replace(timed, rank=0),
        replace(timed, rank=1),
    ]
    assert [p.rank for p in execution_trace.paired(with_ranks)] == [0, 1]
    with pytest.raises(FlintError, match="FL820"):
        execution_trace.paired([host, host, timed])


# Linked ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "schema",
    ["1.0.2-chakra.0.0.4", "1.0.3-chakra.0.0.4", "1.1.0-chakra.0.0.4", "1.1.1-chakra.1.0.0"],
)
def test_linked_traces_have_kernels_with_their_operators(tmp_path: Path, schema: str) -> None:
    path = write(tmp_path / "linked_rank3.json", linked(schema))
    (profile,) = read_profiles(path)
    a = profile.activities
    assert (profile.rank, profile.world_size, profile.groups) == (3, 4, {"0": (0, 1, 2, 3)})
    assert a.duration_ns.sum() == 5000 * len(a.name) > 0
    assert (a.operator >= 0).all()
    assert (profile.calls.kind[a.call] == CallKind.LAUNCH).all()
    launched = [profile.strings[profile.operators.name[i]] for i in a.operator.tolist()]
    assert set(launched) <= set(LAUNCHING)
    workload = workload_of([profile])
    workload.verify()
    assert workload.mesh.size == 4
    assert (workload.programs[0].op == OpClass.MATMUL).sum() == 10  # of both steps


def test_the_converted_form_has_the_same_kernels_as_the_linked_one(tmp_path: Path) -> None:
    """Chakra's own converter writes the .et: kernels, their times and streams are those of the JSON."""
    converter = pytest.importorskip("chakra.src.converter.pytorch_converter").PyTorchConverter()
    path = write(tmp_path / "linked.json", linked())
    converter.convert(str(path), str(tmp_path / "trace.0.et"), False)
    (before,), (after,) = read_profiles(path), read_profiles(tmp_path / "trace.0.et")

    def kernels(p: Profile) -> Counter[tuple[str, float, int]]:
        rows = zip(p.activities.name.tolist(), p.activities.duration_ns, p.activities.stream, strict=True)  # fmt: skip
        return Counter((p.strings[n], float(d), int(s)) for n, d, s in rows)

    assert kernels(before) == kernels(after)
    assert "times follow from durations and dependencies" in " ".join(after.warnings)
    comms = [after.comms[i] for i in after.activities.comm.tolist() if i >= 0]
    assert {c.name for c in comms} == {"allreduce"}
    workload_of([after]).verify()


# Chakra's -------------------------------------------------------------------------------------


def _et(path: Path, *nodes: Mapping[str, Any], as_json: bool = False) -> Path:
    """A Chakra trace: attributes of a node are those keys that are no fields."""
    made = [messages().GlobalMetadata(version="0.0.4")]
    fields = {
        "id",
        "name",
        "type",
        "data_deps",
        "ctrl_deps",
        "duration_micros",
        "start_time_micros",
    }
    for node in nodes:
        message = messages().Node(**{k: v for k, v in node.items() if k in fields})
        for name, value in node.items():
            if name in fields:
                continue
            attribute = message.attr.add(name=name)
            kind = {bool: "bool_val", str: "string_val"}.get(type(value), "int64_val")
            setattr(attribute, kind, value)
        made.append(message)
    if as_json:
        to_json = import_module("google.protobuf.json_format").MessageToJson
        path.write_text("".join(map(to_json, made)))
        return path
    data = b""
    for message in made:
        record = message.SerializeToString()
        size = len(record)
        data += bytes([size & 0x7F | 0x80, size >> 7] if size > 127 else [size]) + record
    path.write_bytes(data)
    return path


_COMP, _COLL = int(NodeType.COMP), int(NodeType.COMM_COLL)
_NODES: tuple[Mapping[str, Any], ...] = (
    {"id": 1, "name": "COMP_NODE a", "type": _COMP, "duration_micros": 10, "num_ops": 7, "tensor_size": 5},
    {"id": 2, "name": "COMM_COLL_NODE r", "type": _COLL, "duration_micros": 30, "data_deps": [1],
     "comm_type": 0, "comm_size": 64, "pg_name": "1"},
    {"id": 3, "name": "COMP_NODE b", "type": _COMP, "duration_micros": 5, "data_deps": [1]},
    {"id": 4, "name": "COMP_NODE c", "type": _COMP, "duration_micros": 5, "data_deps": [2, 3]},
)  # fmt: skip


@pytest.mark.parametrize("as_json", [False, True])
def test_times_follow_from_durations_and_dependencies(tmp_path: Path, as_json: bool) -> None:
    write(tmp_path / "comm_group.json", {"1": [0, 1]})
    path = _et(tmp_path / "t.1.et", *_NODES, as_json=as_json)
    assert format_of(path).name.startswith("Chakra")
    (profile,) = read_profiles(path)
    a = profile.activities
    assert [profile.strings[i] for i in a.name.tolist()] == ["a", "r", "b", "c"]
    assert a.start_ns.tolist() == [0, 10e3, 10e3, 40e3]
    assert a.stream.tolist() == [0, 1, 0, 0]
    assert (a.flops[0], a.bytes_accessed[0]) == (7, 5)
    comm = profile.comms[a.comm[1]]
    assert (comm.name, comm.in_elements, comm.dtype, comm.ranks) == (
        "allreduce",
        64,
        "Byte",
        (0, 1),
    )
    assert (profile.rank, profile.world_size) == (1, 2)
    assert {tuple(w) for w in profile.waits.tolist()} == {(1, 0), (2, 0), (3, 1), (3, 2)}
    program = workload_of([profile]).programs[0]
    assert program.comm_bytes.sum() == 64


def test_starts_are_taken_where_they_are(tmp_path: Path) -> None:
    nodes = [{**n, "start_time_micros": 100 * n["id"]} for n in _NODES]
    (profile,) = read_profiles(_et(tmp_path / "t.0.et", *nodes))
    assert profile.activities.start_ns.tolist() == [0, 100e3, 200e3, 300e3]


def test_what_flint_writes_of_a_profile_reads_back_with_the_same_times(tmp_path: Path) -> None:
    trace = flint.import_profiles(REAL)
    trace.save(tmp_path / "traces")
    again = flint.import_profiles(tmp_path / "traces" / "trace.0.et")
    before, after = _measured(trace), _measured(again)
    assert after["span_ns"] == pytest.approx(before["span_ns"], rel=1e-3)
    kernels = [_kernels_ns(t) for t in (trace, again)]
    assert kernels[1] == pytest.approx(kernels[0], rel=1e-2)
    flops = [int(t.workload.programs[0].flops.sum()) for t in (trace, again)]
    assert flops[1] == pytest.approx(flops[0], rel=1e-6)  # 0 is written as 1
    again.workload.verify()


def _measured(trace: Trace) -> Mapping[str, Any]:
    found: Mapping[str, Any] = trace.workload.metadata["measured"]["classes"][0]
    return found


def _kernels_ns(trace: Trace) -> float:
    program = trace.workload.programs[0]
    return float(program.measured_ns[program.op != OpClass.HOST].sum())


def test_traces_without_durations_or_with_a_circle_are_refused(tmp_path: Path) -> None:
    bare = [{**n, "duration_micros": 0} for n in _NODES]
    assert "no durations" in _refused("FL823", _et(tmp_path / "a.0.et", *bare))
    circle = [{**_NODES[0], "data_deps": [3]}, *_NODES[1:3]]
    assert "wait for each other" in _refused("FL823", _et(tmp_path / "b.0.et", *circle))


def test_control_dependencies_that_go_round_are_not_followed(tmp_path: Path) -> None:
    """As Chakra's feeder does; its own test trace has hundreds, of a node for itself and in pairs."""
    nodes = [dict(n) for n in _NODES]
    nodes[0]["ctrl_deps"], nodes[2]["ctrl_deps"] = [4, 1], [2]
    (profile,) = read_profiles(_et(tmp_path / "t.0.et", *nodes))
    assert profile.activities.start_ns.tolist() == [0, 10e3, 10e3, 40e3]
    assert "control dependencies form a circle" in " ".join(profile.warnings)
    nodes[0]["ctrl_deps"] = [1]
    (profile,) = read_profiles(_et(tmp_path / "u.0.et", *nodes))
    assert profile.activities.start_ns.tolist() == [0, 10e3, 40e3, 45e3]
    assert "go round" not in " ".join(profile.warnings)


def test_the_graph_that_chakra_s_feeder_reads_as_json(tmp_path: Path) -> None:
    def node(number: int, name: str, runtime: int, deps: list[int], **more: Any) -> dict[str, Any]:
        return {
            "Id": number, "Name": name, "NodeType": _COMP, "ctrlDeps": [3], "data_deps": deps,
            "runtime": runtime, "is_cpu_op": False, **more,
        }  # fmt: skip

    nodes = [
        node(216, "aten::mm", 300, [], is_cpu_op=True),
        node(430, "gemm", 40, [216]),
        node(435, "ncclKernel_AllReduce", 28, [430], NodeType=_COLL, comm_type=0, comm_size=512),
    ]
    graph = {"workload_graph": nodes, "workload_name": "w", "ngpus": 8}
    path = write(tmp_path / "t.0.json", graph)
    assert format_of(path).name.startswith("Chakra")
    (profile,) = read_profiles(path)
    assert profile.activities.start_ns.tolist() == [300e3, 340e3]
    assert profile.comms[profile.activities.comm[1]].in_elements == 512
    program = workload_of([profile]).programs[0]  # one file says nothing of the ranks of the world
    assert (program.op == OpClass.COMMUNICATION).sum() == 1
    nodes[1]["Id"] = "x"
    _refused("FL821", write(tmp_path / "u.json", graph))


def _before_chakra(document: dict[str, Any]) -> dict[str, Any]:
    """An execution trace as PyTorch 1.13 to 2.1 wrote it."""
    nodes = []
    for node in document["nodes"]:
        old = {"name": node["name"], "id": node["id"], "parent": node["ctrl_deps"]}
        for key, short in (("inputs", "input"), ("outputs", "output")):
            old[key] = node[key]["values"]
            old |= {f"{short}_{k}": node[key][k] for k in ("shapes", "types")}
        nodes.append(old | {a["name"]: a["value"] for a in node["attrs"]})
    return {**document, "schema": "1.0.1", "nodes": nodes}


@pytest.mark.parametrize("numbered", [True, False])
def test_schemas_before_chakra_say_the_same(tmp_path: Path, numbered: bool) -> None:
    """Profilers of that time do not number calls: they are told by their order."""
    host, kineto = pair(tmp_path)
    old = write(tmp_path / "old.json", _before_chakra(load("host")))
    document = json.loads(kineto.read_text())
    for event in document["traceEvents"] if not numbered else ():
        event.get("args", {}).pop("Record function id", None)
        event.get("args", {}).pop("Input Dims", None)
    plain = write(tmp_path / "plain.json", document)
    new = flint.import_profiles(host, kineto).workload.programs[0]
    found = flint.import_profiles(old, plain).workload.programs[0]
    assert found.flops.sum() == new.flops.sum() > 0
    assert not flint.import_profiles(plain).workload.programs[0].flops.sum() or numbered
    if not numbered:
        others = {**document, "traceEvents": [e for e in document["traceEvents"] if e["name"] != "aten::addmm"]}  # fmt: skip
        _refused("FL822", old, write(tmp_path / "other.json", others))


@given(
    st.lists(
        st.tuples(
            st.integers(0, 20), st.integers(0, 2), st.booleans(), st.sets(st.integers(0, 11))
        ),
        min_size=1,
        max_size=12,
    )
)
def test_schedules_keep_dependencies_and_streams(
    drawn: list[tuple[int, int, bool, set[int]]],
) -> None:
    nodes = [
        Node(i, "n", deps=tuple(d for d in deps if d < i), duration_us=float(t), stream=s, on_device=device)
        for i, (t, s, device, deps) in enumerate(drawn)
    ]  # fmt: skip
    found = {n.number: n for n in scheduled(nodes, Node.waits)}
    assert set(found) == set(range(len(nodes)))
    for node in found.values():
        assert all(found[d].end_us <= (node.start_us or 0) for d in node.deps)
        same = [
            n for n in found.values() if n.on_device and n.stream == node.stream and n is not node
        ]
        if node.on_device and node.duration_us:
            assert all(n.end_us <= (node.start_us or 0) or (n.start_us or 0) >= node.end_us for n in same if n.duration_us)  # fmt: skip


# What cannot be used --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"schema": "2.0"}, "FL821"),
        ({"schema": "1.0.1"}, "FL821"),  # has other keys
        ({"schema": "0.9"}, "FL821"),
        ({"nodes": [{"id": "x"}]}, "FL821"),
        ({"nodes": [7]}, "FL821"),
        ({"nodes": []}, "FL820"),
    ],
)
def test_other_schemas_and_nodes_are_refused(
    tmp_path: Path, change: Mapping[str, Any], code: str
) -> None:
    _refused(code, write(tmp_path / "a.json", {**load("host"), **change}))


@pytest.mark.parametrize("value", [1e300, float("nan"), "soon", -1e17])
def test_times_that_cannot_be_are_refused(tmp_path: Path, value: object) -> None:
    document = linked()
    next(n for n in document["nodes"] if "cat" in n)["ts"] = value
    _refused("FL821", write(tmp_path / "a.json", document))


@pytest.mark.parametrize("kept", [300, 5000, 100_000])
def test_cut_traces_are_refused(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(json.dumps(linked()).encode()[:kept])
    _refused("FL803", path)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_damaged_chakra_traces_are_a_sentence_and_never_a_crash(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = _et(tmp_path_factory.mktemp("damaged") / "t.0.et", *_NODES)
    whole = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(whole))
    with contextlib.suppress(FlintError):
        workload_of(execution_trace.read_chakra(path))
