"""Timelines as Perfetto traces, whose messages are held against Perfetto's own classes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flint.backends.cost.estimate import Estimate, estimate
from flint.cli import app
from flint.cluster.models import Cluster
from flint.errors import FlintError
from flint.ir.mesh import AxisRef, Group, Mesh
from flint.ir.program import Collective, Flag, Kind, Phase, RegionKind
from flint.ir.rank_class import RankClass
from flint.ir.workload import Workload
from flint.requests.estimate import EstimateRequest
from flint.tools.report import perfetto as perfetto_file
from flint.tools.report.perfetto import (
    CounterUnit,
    EventType,
    PerfettoReport,
    messages,
    write_perfetto,
)
from tests.program_rows import ProgramBuilder

MESH = Mesh(("data",), (8,))


def _program(layers: int) -> Any:
    b = ProgramBuilder(MESH)
    about = {"dtype": "bfloat16", "shape": (4096, 4096), "result_bytes": 2 * 4096**2}
    x = b.add("parameter", Kind.PARAMETER, name="x", flags=Flag.DONATED, **about)
    b.begin_region(RegionKind.LOOP, layers)
    carry = b.add("while.carry", Kind.VALUE, deps=[x], **about)
    y = b.add(
        "stablehlo.dot_general",
        deps=[carry, x],
        operand_bytes=4 * 4096**2,
        flops=2 * 4096**3,
        dims=(1, 4096, 4096, 4096),
        scope="layers/mlp",
        location="model.py:41",
        phase=Phase.FORWARD,
        **about,
    )
    r = b.add(
        "sdy.all_reduce",
        Kind.COLLECTIVE,
        deps=[y],
        collective=Collective.ALL_REDUCE,
        group=Group((AxisRef("data"),)),
        comm_bytes=2 * 4096**2,
        **about,
    )
    b.end_region([(carry, r)])
    return b.build()


def _prefetching() -> Any:
    """A loop that slices a stack of weights, gathers the slice and multiplies."""
    b = ProgramBuilder(MESH)
    bf16 = {"dtype": "bf16", "result_bytes": 8192, "operand_bytes": 8192}
    stack = b.add("weights", Kind.PARAMETER, dtype="bf16", result_bytes=4 * 8192)
    x = b.add("x", Kind.PARAMETER, dtype="bf16", result_bytes=8192)
    b.begin_region(RegionKind.LOOP, 4)
    turn = b.add("while.carry", Kind.VALUE, deps=[])
    value = b.add("while.carry", Kind.VALUE, deps=[x])
    part = b.add("stablehlo.dynamic_slice", deps=[stack, turn], **bf16)
    whole = b.add(
        "sdy.all_gather",
        Kind.COLLECTIVE,
        deps=[part],
        collective=Collective.ALL_GATHER,
        group=Group((AxisRef("data"),)),
        comm_bytes=8192,
        **bf16,
    )
    flops, dims = 2 * 64**3, (1, 64, 64, 64)
    y = b.add("stablehlo.dot_general", deps=[value, whole], flops=flops, dims=dims, **bf16)
    b.end_region([(turn, turn), (value, y)])
    return b.build()


@pytest.fixture(scope="module")
def estimated() -> Estimate:
    both = (_program(2), _program(5))
    group = Group((), ((0, 1, 2, 3), (4, 5, 6, 7)))
    programs = tuple(p.with_rows(groups=(group,)) for p in both)
    classes = (RankClass("quick", 0, ranks=(0, 1, 2, 3)), RankClass("slow", 1, ranks=(4, 5, 6, 7)))
    workload = Workload(MESH, programs, classes, {"name": "two classes"})
    return estimate(workload, EstimateRequest(Cluster.load("h100-dgx")))


def _packets(path: Path) -> list[Any]:
    return list(messages().Trace.FromString(path.read_bytes()).packet)


def _slices(packets: list[Any]) -> list[tuple[str, int, int, dict[str, Any], int]]:
    """(name, start, end, arguments, track) of every slice, ends matched as Perfetto does."""
    opened: dict[int, list[tuple[str, int, dict[str, Any]]]] = {}
    found = []
    events = [p for p in packets if p.HasField("track_event")]
    for packet in sorted(events, key=lambda p: p.timestamp):
        event = packet.track_event
        if event.type == EventType.SLICE_BEGIN:
            args = {a.name: a.string_value or a.int_value for a in event.debug_annotations}
            opened.setdefault(event.track_uuid, []).append((event.name, packet.timestamp, args))
        elif event.type == EventType.SLICE_END:
            name, start, args = opened[event.track_uuid].pop()
            assert not opened[event.track_uuid], "slices of one stream overlap"
            found.append((name, start, packet.timestamp, args, event.track_uuid))
    assert not any(opened.values())
    return found


def test_bytes_are_what_perfettos_own_classes_write(estimated: Estimate, tmp_path: Path) -> None:
    """Each packet, field by field: what theirs parse, they write again, and know all of it."""
    pb = pytest.importorskip(
        "perfetto.protos.perfetto.trace.perfetto_trace_pb2",
        exc_type=Exception,  # its generated code refuses older protobufs by an error of its own
        reason="the classes are in the package perfetto, which needs a new protobuf",
    )
    write_perfetto(estimated, tmp_path / "t.pftrace", rank_class="all")
    data = (tmp_path / "t.pftrace").read_bytes()
    theirs, ours = pb.Trace.FromString(data), messages().Trace.FromString(data)
    assert theirs.SerializeToString(deterministic=True) == data
    theirs.DiscardUnknownFields()
    assert theirs.SerializeToString(deterministic=True) == data
    for mine, other in zip(ours.packet, theirs.packet, strict=True):
        assert _values(mine) == _values(other)
    types = [pb.TrackEvent.Type.Name(e) for e in EventType]
    assert types == [f"TYPE_{e.name}" for e in EventType]
    assert pb.CounterDescriptor.Unit.Name(CounterUnit.SIZE_BYTES) == "UNIT_SIZE_BYTES"


def _values(message: Any) -> list[tuple[str, Any]]:
    """Names and values of the fields that are set, messages opened."""
    found = []
    for field, value in message.ListFields():
        if hasattr(value, "ListFields"):
            value = _values(value)
        elif not isinstance(value, str | int):
            value = [_values(v) for v in value]
        found.append((field.name, value))
    return found


def test_every_node_is_a_slice_at_its_time(estimated: Estimate, tmp_path: Path) -> None:
    report = write_perfetto(estimated, tmp_path / "t.pftrace")
    slices = _slices(_packets(tmp_path / "t.pftrace"))
    timeline = estimated.timeline.classes[1]
    assert report == PerfettoReport(len(timeline.start_ns), 0)
    expected = sorted(
        (round(s), round(e)) for s, e in zip(timeline.start_ns, timeline.end_ns, strict=True)
    )
    assert sorted((s, e) for _, s, e, _, _ in slices) == expected
    assert max(e for _, _, e, _, _ in slices) == round(estimated.step_time_ns)


def test_slices_say_where_they_are_from(estimated: Estimate, tmp_path: Path) -> None:
    write_perfetto(estimated, tmp_path / "t.pftrace")
    slices = _slices(_packets(tmp_path / "t.pftrace"))
    dots = [args for name, _, _, args, _ in slices if name == "stablehlo.dot_general layers/mlp"]
    assert len(dots) == 5
    assert dots[0] | {"row": 0} == {
        "row": 0,
        "scope": "layers/mlp",
        "source": "model.py:41",
        "phase": "forward",
        "flops": 2 * 4096**3,
        "bytes": 6 * 4096**2,
    }
    reduces = [args for name, _, _, args, _ in slices if name == "sdy.all_reduce"]
    assert reduces[0]["comm_bytes"] == 2 * 4096**2
    assert reduces[0]["group"] == "2 explicit groups of 4"


def test_tracks_are_classes_and_streams(estimated: Estimate, tmp_path: Path) -> None:
    write_perfetto(estimated, tmp_path / "t.pftrace", rank_class="all")
    packets = _packets(tmp_path / "t.pftrace")
    tracks = [p.track_descriptor for p in packets if p.HasField("track_descriptor")]
    processes = [t.process.process_name for t in tracks if t.HasField("process")]
    assert processes == ["quick (4 ranks)", "slow (4 ranks)"]
    threads = [t.thread.thread_name for t in tracks if t.HasField("thread")]
    assert threads == ["compute", "nvlink"] * 2
    assert len({t.uuid for t in tracks}) == len(tracks)
    used = {p.track_event.track_uuid for p in packets if p.HasField("track_event")}
    assert used == {t.uuid for t in tracks if not t.HasField("process")}


def test_copies_beside_communication_have_a_track_of_their_own(tmp_path: Path) -> None:
    """A slice of a stack, which a gather that is issued ahead reads, runs in the gather's stream."""
    workload = Workload(MESH, (_prefetching(),), (RankClass("all", 0),), {"name": "gathers"})
    found = estimate(workload, EstimateRequest(Cluster.load("h100-dgx"), policy="fsdp"))
    write_perfetto(found, tmp_path / "t.pftrace")
    packets = _packets(tmp_path / "t.pftrace")
    names = {
        p.track_descriptor.uuid: p.track_descriptor.thread.thread_name
        for p in packets
        if p.track_descriptor.HasField("thread")
    }
    tracks: dict[str, set[str]] = {}
    for name, *_, track in _slices(packets):
        tracks.setdefault(names[track], set()).add(name.split()[0])
    assert tracks["nvlink"] == {"sdy.all_gather"}
    assert tracks["nvlink copies"] == {"stablehlo.dynamic_slice"}
    assert tracks["compute"] == {"stablehlo.dot_general"}


def test_memory_is_a_counter_that_reaches_the_peak(estimated: Estimate, tmp_path: Path) -> None:
    write_perfetto(estimated, tmp_path / "t.pftrace", rank_class=0)
    packets = _packets(tmp_path / "t.pftrace")
    (counter,) = [p.track_descriptor for p in packets if p.track_descriptor.HasField("counter")]
    assert counter.counter.unit == CounterUnit.SIZE_BYTES
    values = [
        p.track_event.counter_value for p in packets if p.track_event.track_uuid == counter.uuid
    ]
    assert max(values) == estimated.classes[0].memory.peak_bytes


def test_a_window_holds_what_runs_in_it(estimated: Estimate, tmp_path: Path) -> None:
    timeline = estimated.timeline.classes[1]
    window = (float(timeline.start_ns[2]), float(timeline.end_ns[3]))
    report = write_perfetto(estimated, tmp_path / "t.pftrace", window_ns=window)
    assert report == PerfettoReport(2, len(timeline.start_ns) - 2)
    assert len(_slices(_packets(tmp_path / "t.pftrace"))) == 2


def test_without_a_window_the_first_nodes_are_written(
    estimated: Estimate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(perfetto_file, "NODE_LIMIT", 3)
    assert write_perfetto(estimated, tmp_path / "t.pftrace") == PerfettoReport(3, 7)
    slices = _slices(_packets(tmp_path / "t.pftrace"))
    assert len(slices) == 3
    assert min(s for _, s, _, _, _ in slices) == 0


def test_equal_input_gives_equal_bytes(estimated: Estimate, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_perfetto(estimated, tmp_path / name, rank_class="all")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize(
    ("said", "process"),
    [("quick", "quick"), (1, "slow: head"), ("1", "slow: head"), ("slow", "slow: head")],
)
def test_a_class_is_a_number_or_a_name_or_its_beginning(
    estimated: Estimate, tmp_path: Path, said: int | str, process: str
) -> None:
    longer = replace(estimated.classes[1], name="slow: head")
    named = replace(estimated, classes=(estimated.classes[0], longer))
    write_perfetto(named, tmp_path / "t.pftrace", rank_class=said)
    first = _packets(tmp_path / "t.pftrace")[0].track_descriptor
    assert first.process.process_name == f"{process} (4 ranks)"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"rank_class": "slo"}, "FL503"),
        ({"rank_class": 2}, "FL503"),
        ({"rank_class": -1}, "FL503"),
        ({"window_ns": (5.0, 5.0)}, "FL504"),
    ],
)
def test_mistakes(estimated: Estimate, tmp_path: Path, options: Any, code: str) -> None:
    with pytest.raises(FlintError) as caught:
        write_perfetto(estimated, tmp_path / "t.pftrace", **options)
    assert caught.value.code == code
    assert not (tmp_path / "t.pftrace").exists()


def test_the_command_line_writes_a_file_beside_its_result(tmp_path: Path) -> None:
    Workload.single(_program(2)).save(tmp_path / "w.flint")
    target = tmp_path / "t.pftrace"
    command = ["estimate", str(tmp_path / "w.flint"), "-c", "h100-dgx"]
    plain = CliRunner().invoke(app, command)
    result = CliRunner().invoke(app, [*command, "--perfetto", str(target)])
    assert (result.exit_code, result.stdout) == (0, plain.stdout)
    assert result.stderr == f"wrote   4 nodes: {target}\n"
    assert len(_slices(_packets(target))) == 4
    for option in (["--class", "all"], ["--window", "0:1"]):
        refused = CliRunner().invoke(app, [*command, *option])
        assert refused.exit_code == 2
        assert f"FL218]: {option[0]} needs --perfetto" in refused.stderr


def test_the_command_line_takes_a_window_in_milliseconds(tmp_path: Path) -> None:
    Workload.single(_program(2)).save(tmp_path / "w.flint")
    target = tmp_path / "t.pftrace"
    command = ["estimate", str(tmp_path / "w.flint"), "-c", "h100-dgx", "--perfetto", str(target)]
    result = CliRunner().invoke(app, [*command, "--window", "0:0.001"])
    assert result.stderr == (
        f"wrote   1 nodes: {target} (those in the window; 3 others left out)\n"
    )
    assert len(_slices(_packets(target))) == 1
    for text in ("2:1", "0", "a:b", "-1:2", "0:inf", "nan:2"):
        refused = CliRunner().invoke(app, [*command, f"--window={text}"])
        assert (refused.exit_code, "FL504" in refused.stderr) == (2, True), text
