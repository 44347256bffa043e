"""What stands in the files of `write`, byte conventions included."""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from flint.backends.chakra import check, read, write
from flint.backends.chakra.reading.reader import records
from flint.backends.chakra.schema import CommType, NodeType, messages
from flint.backends.chakra.writing.encode import LEAST_STARTING_BYTES, varint
from flint.backends.chakra.writing.simulator_files import GroupNumbers
from flint.errors import FlintError
from flint.ir.mesh import AxisRef, Group, Mesh, Route
from flint.ir.program import Collective, Kind, Phase
from flint.ir.rank_class import RankClass
from flint.ir.workload import Workload
from flint.text import short_scope
from tests.chakra_traces import layered_program, over
from tests.program_rows import ProgramBuilder

OURS = ["README.txt", "comm_group.json", "manifest.json", "memory.json", "network.yml"]


def layered(mesh: str = "data=4,model=2") -> Workload:
    return Workload.single(layered_program(mesh))


def attributes(node: Any) -> dict[str, Any]:
    return {name: value for name, (_, value) in node.attributes.items()}


def test_directory_holds_everything(tmp_path: Path) -> None:
    out = tmp_path / "out"
    report = write(layered(), out)
    traces = [f"trace.{r}.et" for r in range(8)]
    assert sorted(os.listdir(out)) == sorted([*OURS, "system.json", "workload.flint", *traces])
    assert (report.files, report.ranks, report.nodes) == (15, 8, {"all": 16})
    sizes = sum((out / t).stat().st_size for t in traces)
    assert report.trace_bytes == report.disk_bytes == sizes
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["schema"] == "flint.manifest/1"
    assert manifest["mesh"] == {"data": 4, "model": 2}
    assert Workload.load(out / "workload.flint").mesh == Mesh.parse("data=4,model=2")
    assert "npus_count: [ 2, 4 ]" in (out / "network.yml").read_text()
    assert str(tmp_path) not in (out / "README.txt").read_text()


def test_two_runs_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(layered(), tmp_path / name)
    for file in os.listdir(tmp_path / "a"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes(), file


def test_every_record_is_what_protobuf_would_write(tmp_path: Path) -> None:
    write(layered("data=130,model=2"), tmp_path / "out", ranks="0,1,127-131,259")
    for path in (tmp_path / "out").glob("*.et"):
        data = path.read_bytes()
        first, *rest = records(data, path.name)
        for kind, (a, b) in [
            (messages().GlobalMetadata, first),
            *((messages().Node, r) for r in rest),
        ]:
            message = kind.FromString(data[a:b])
            assert message.SerializeToString(deterministic=True) == data[a:b]


def test_first_record_says_who_wrote_it(tmp_path: Path) -> None:
    write(layered(), tmp_path / "out")
    trace = read(tmp_path / "out" / "trace.3.et")
    assert trace.version == "1.0.0"
    assert trace.metadata == {
        "mesh": "data=4,model=2",
        "producer": "flint",
        "schema": "flint.chakra/1",
        "tensor_size": "total",
    }


def test_types_of_attributes_are_those_that_feeders_read(tmp_path: Path) -> None:
    write(layered(), tmp_path / "out")
    nodes = read(tmp_path / "out" / "trace.2.et").nodes
    compute, collective, sent, received = nodes[:4]
    assert compute.name == "COMP_NODE stablehlo.dot_general layers/attention"
    assert compute.attributes == {
        "is_cpu_op": ("bool_val", False),
        "num_ops": ("int64_val", 4096),
        "tensor_size": ("uint64_val", LEAST_STARTING_BYTES),  # it waits for nothing
    }
    assert collective.attributes == {
        "is_cpu_op": ("bool_val", False),
        "comm_type": ("int64_val", CommType.ALL_REDUCE),
        "comm_size": ("int64_val", 512),
        "comm_tag": ("int32_val", 0),
        "pg_name": ("string_val", "2"),
    }
    assert (sent.type, received.type) == (NodeType.COMM_SEND, NodeType.COMM_RECV)
    assert sent.attributes == {
        "is_cpu_op": ("bool_val", False),
        "comm_size": ("int64_val", 128),
        "comm_tag": ("int32_val", 1),
        "comm_src": ("int32_val", 2),
        "comm_dst": ("int32_val", 4),
    }
    assert attributes(received)["comm_src"] == 0
    assert attributes(received)["comm_dst"] == 2


def test_permutation_is_a_send_and_a_receive_side_by_side(tmp_path: Path) -> None:
    write(layered(), tmp_path / "out")
    nodes = read(tmp_path / "out" / "trace.0.et").nodes
    assert [n.data_deps for n in nodes[:5]] == [(), (0,), (1,), (1,), (3,)]


def test_rank_without_a_half_leaves_it_out_and_keeps_the_order(tmp_path: Path) -> None:
    """The shift that does not wrap: rank 0 receives nothing, rank 7 sends nothing."""
    write(layered(), tmp_path / "out")
    first = read(tmp_path / "out" / "trace.0.et").nodes
    last = read(tmp_path / "out" / "trace.7.et").nodes
    assert [(n.id, n.type, n.data_deps) for n in first[-3:]] == [
        (12, NodeType.COMM_COLL, (10, 11)),
        (13, NodeType.COMM_SEND, (12,)),
        (15, NodeType.COMP, (12,)),
    ]
    assert [(n.id, n.type, n.data_deps) for n in last[-3:]] == [
        (12, NodeType.COMM_COLL, (10, 11)),
        (14, NodeType.COMM_RECV, (12,)),
        (15, NodeType.COMP, (14,)),
    ]
    assert check(tmp_path / "out").ok


def test_broadcast_is_an_all_gather_of_parts(tmp_path: Path) -> None:
    write(layered(), tmp_path / "out")
    node = read(tmp_path / "out" / "trace.0.et").nodes[12]
    assert attributes(node)["comm_type"] == CommType.ALL_GATHER
    assert attributes(node)["comm_size"] == 13  # 100 bytes over 8 ranks, rounded up


def test_tags_of_exchanges_are_unique(tmp_path: Path) -> None:
    write(layered(), tmp_path / "out")
    for rank in range(8):
        nodes = read(tmp_path / "out" / f"trace.{rank}.et").nodes
        tags = [
            (attributes(n)["comm_tag"], n.type is NodeType.COMM_RECV)
            for n in nodes
            if n.type is not NodeType.COMP
        ]
        assert len(set(tags)) == len(tags)


def test_group_file_is_dense_and_names_the_world(tmp_path: Path) -> None:
    write(layered(), tmp_path / "out")
    groups = json.loads((tmp_path / "out" / "comm_group.json").read_text())
    assert groups == {
        **{str(i + 1): [2 * i, 2 * i + 1] for i in range(4)},
        "5": list(range(8)),
    }


def test_output_convention_of_tensor_size(tmp_path: Path) -> None:
    write(layered(), tmp_path / "out", tensor_size="output")
    trace = read(tmp_path / "out" / "trace.0.et")
    assert trace.metadata["tensor_size"] == "output"
    later = [n for n in trace.nodes if n.type is NodeType.COMP and n.data_deps]
    assert attributes(later[0])["tensor_size"] == 512


def streams_program() -> Workload:
    """Two kernels of a stream that share no data, one on a second stream, a collective between."""
    b = ProgramBuilder(Mesh.parse("data=2"))
    first = b.add("dot", flops=1, result_bytes=1 << 20)
    b.add("add", flops=1, result_bytes=1 << 20)
    b.add("copy", flops=1, result_bytes=1 << 20, stream="copies")
    reduced = b.add(
        "all_reduce",
        Kind.COLLECTIVE,
        deps=[first],
        collective=Collective.ALL_REDUCE,
        group=over("data"),
        comm_bytes=8,
    )
    last = b.add("mul", flops=1, result_bytes=1 << 20)
    b.add("copy", flops=1, result_bytes=1 << 20, stream="copies")
    b.add("dot", deps=[reduced, last], flops=1, result_bytes=1 << 20)
    return Workload.single(b.build())


def test_kernels_of_one_stream_keep_their_order(tmp_path: Path) -> None:
    """0, 1, 4, 6 are on the first stream, 2 and 5 on the second, 3 is the collective."""
    write(streams_program(), tmp_path / "out")
    nodes = read(tmp_path / "out" / "trace.0.et").nodes
    assert [n.data_deps for n in nodes] == [(), (0,), (), (0,), (1,), (2,), (3, 4)]
    assert not any(n.ctrl_deps for n in nodes)


def test_order_is_apart_from_producers_where_these_are_added_up(tmp_path: Path) -> None:
    """ASTRA-sim's branch chakra_main_paper adds the tensor_size of all data_deps to a node's own."""
    write(streams_program(), tmp_path / "out", tensor_size="output")
    nodes = read(tmp_path / "out" / "trace.0.et").nodes
    assert [n.data_deps for n in nodes] == [(), (), (), (0,), (), (), (3, 4)]
    assert [n.ctrl_deps for n in nodes] == [(), (0,), (), (), (1,), (2,), ()]
    assert check(tmp_path / "out").ok


def test_an_order_that_dependencies_say_already_is_not_repeated(tmp_path: Path) -> None:
    """Between two kernels of `layered` a collective and a permutation lead from one to the next."""
    write(layered(), tmp_path / "out")
    nodes = read(tmp_path / "out" / "trace.0.et").nodes
    before = {n.id: m.id for m, n in pairwise(n for n in nodes if n.type is NodeType.COMP)}
    assert not any(before.get(n.id) in n.data_deps for n in nodes if len(n.data_deps) > 1)


def test_only_computations_that_wait_for_nothing_are_made_larger(tmp_path: Path) -> None:
    """ASTRA-sim asserts when its first event takes less than a nanosecond."""
    b = ProgramBuilder(Mesh.parse("data=2"))
    small = b.add("add", flops=1, result_bytes=8)
    large = b.add("dot", flops=1, result_bytes=1 << 20)
    b.add("mul", deps=[small, large], flops=1, result_bytes=8)
    write(Workload.single(b.build()), tmp_path / "out")
    nodes = read(tmp_path / "out" / "trace.0.et").nodes
    assert [attributes(n)["tensor_size"] for n in nodes] == [LEAST_STARTING_BYTES, 1 << 20, 8]
    b.add("small", flops=1, result_bytes=8)  # waits for the one before it on its stream
    write(Workload.single(b.build()), tmp_path / "more")
    assert attributes(read(tmp_path / "more" / "trace.0.et").nodes[3])["tensor_size"] == 8


def collective_program(group: Group, mesh: str = "data=2,model=6") -> Workload:
    b = ProgramBuilder(Mesh.parse(mesh))
    dot = b.add("dot", flops=1, result_bytes=8, phase=Phase.FORWARD)
    gathered = b.add(
        "all_gather",
        Kind.COLLECTIVE,
        deps=[dot],
        collective=Collective.ALL_GATHER,
        group=group,
        comm_bytes=8,
    )
    b.add("dot", deps=[gathered], flops=0, result_bytes=8)
    return Workload.single(b.build())


@pytest.mark.parametrize(
    ("group", "flags"),
    [
        (over("model"), (True, False)),
        (over("data"), (False, True)),
        (over("data", "model"), (1, 1)),
    ],
)
def test_dims_say_which_network_dimensions_take_part(
    group: Group, flags: tuple[bool, ...], tmp_path: Path
) -> None:
    write(collective_program(group), tmp_path / "out", groups="dims")
    node = read(tmp_path / "out" / "trace.5.et").nodes[1]
    assert node.attributes["involved_dim"] == ("bool_list", tuple(map(bool, flags)))
    assert "pg_name" not in node.attributes
    assert (tmp_path / "out" / "comm_group.json").read_text() == "{}\n"
    assert check(tmp_path / "out").ok


def test_dims_number_what_is_not_a_whole_axis(tmp_path: Path) -> None:
    part = Group((AxisRef("model", 1, 2),))
    write(collective_program(part), tmp_path / "out", groups="dims")
    node = read(tmp_path / "out" / "trace.5.et").nodes[1]
    assert attributes(node)["pg_name"] == "3"
    groups = json.loads((tmp_path / "out" / "comm_group.json").read_text())
    assert groups["3"] == [2, 5]
    assert check(tmp_path / "out").ok


def test_ranks_without_a_group_have_no_number() -> None:
    numbers = GroupNumbers(Mesh.parse("data=8"))
    group = Group(ranks=((0, 1, 2), (3,), (5, 4)))
    assert numbers.of_ranks(group).tolist() == [1, 1, 1, -1, 2, 2, -1, -1]
    assert (
        numbers.of_ranks(Group(ranks=((6, 7), (0, 1, 2)))).tolist() == [1] * 3 + [-1] * 3 + [3] * 2
    )
    assert json.loads(numbers.to_json()) == {"1": [0, 1, 2], "2": [5, 4], "3": [6, 7]}


def test_files_may_be_read_by_whom_the_process_lets(tmp_path: Path) -> None:
    for mask, mode in ((0, 0o666), (0o027, 0o640)):
        before = os.umask(mask)
        try:
            write(layered(), tmp_path / f"{mask}")
        finally:
            os.umask(before)
        assert stat.S_IMODE((tmp_path / f"{mask}" / "trace.0.et").stat().st_mode) == mode


def test_rank_alone_in_an_explicit_group_skips_the_collective(tmp_path: Path) -> None:
    group = Group(ranks=((0, 1, 2), (3,), (4, 5)))
    write(collective_program(group), tmp_path / "out")
    ids = {r: [n.id for n in read(tmp_path / "out" / f"trace.{r}.et").nodes] for r in (0, 3, 11)}
    assert ids == {0: [0, 1, 2], 3: [0, 2], 11: [0, 2]}
    assert read(tmp_path / "out" / "trace.3.et").nodes[1].data_deps == (0,)
    assert check(tmp_path / "out").ok


def test_equal_group_of_two_spellings_has_one_number(tmp_path: Path) -> None:
    """One class says the axis, the other lists the ranks: they must still meet."""
    mesh = Mesh.parse("pipe=2,data=2")
    spellings = over("pipe", "data"), Group(ranks=((0, 1, 2, 3),))
    programs = tuple(collective_program(g, "pipe=2,data=2").programs[0] for g in spellings)
    classes = tuple(RankClass(f"stage{i}", i, {"pipe": (i,)}) for i in range(2))
    write(Workload(mesh, programs, classes), tmp_path / "out")
    assert check(tmp_path / "out").ok


def test_pipeline_of_two_classes(tmp_path: Path) -> None:
    """Stages are classes of their own; their messages meet by channel and iteration."""
    mesh = Mesh.parse("pipe=3,data=2")
    route = Route((AxisRef("pipe"),), 1, wrap=False)

    def stage(receives: bool, sends: bool) -> Any:
        b = ProgramBuilder(mesh)
        last = -1
        for _ in range(4):
            got = -1
            if receives:
                got = b.add("recv", Kind.RECV, route=route, channel=3, comm_bytes=64)
            last = b.add("dot", deps=[got, last], flops=8, result_bytes=8)
            if sends:
                b.add("send", Kind.SEND, deps=[last], route=route, channel=3, comm_bytes=64)
        return b.build()

    programs = (stage(False, True), stage(True, True), stage(True, False))
    classes = tuple(RankClass(f"stage{i}", i, {"pipe": (i,)}) for i in range(3))
    workload = Workload(mesh, programs, classes)
    report = write(workload, tmp_path / "out")
    assert report.nodes == {"stage0": 8, "stage1": 12, "stage2": 8}
    assert check(tmp_path / "out").ok
    middle = read(tmp_path / "out" / "trace.3.et").nodes
    ends = [attributes(n) for n in middle if n.type is not NodeType.COMP]
    assert [(e["comm_src"], e["comm_dst"]) for e in ends] == [(1, 3), (3, 5)] * 4
    assert [e["comm_tag"] for e in ends] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_ranks_at_the_end_of_a_shift_do_not_overtake_the_others(tmp_path: Path) -> None:
    """Rank 0 receives nothing, so its first all-reduce is ready before that of rank 1, which could
    begin with the second: each would hold its slot for the other."""
    b = ProgramBuilder(Mesh.parse("data=4"))
    dot = b.add("dot", flops=1, result_bytes=8)
    route = Route((AxisRef("data"),), 1, wrap=False)
    permute = {"collective": Collective.PERMUTE, "route": route, "comm_bytes": 8}
    reduce = {"collective": Collective.ALL_REDUCE, "group": over("data"), "comm_bytes": 8}
    moved = b.add("permute", Kind.COLLECTIVE, deps=[dot], **permute)
    again = b.add("permute", Kind.COLLECTIVE, deps=[moved], **permute)
    b.add("first", Kind.COLLECTIVE, deps=[again], **reduce)
    b.add("second", Kind.COLLECTIVE, deps=[dot], **{**reduce, "comm_bytes": 16})
    write(Workload.single(b.build()), tmp_path / "out")
    report = check(tmp_path / "out")
    assert report.ok and report.proved == "any-times", (report.findings, report.doubt)


@pytest.mark.parametrize(
    ("spec", "ranks"), [("classes", [0]), ("0,3-5", [0, 3, 4, 5]), ("7", [7]), ("2,1-2", [1, 2])]
)
def test_selected_ranks_are_those_of_the_whole(spec: str, ranks: list[int], tmp_path: Path) -> None:
    write(layered(), tmp_path / "all")
    write(layered(), tmp_path / "some", ranks=spec)
    found = sorted(int(p.name.split(".")[1]) for p in (tmp_path / "some").glob("*.et"))
    assert found == ranks
    for rank in ranks:
        name = f"trace.{rank}.et"
        assert (tmp_path / "some" / name).read_bytes() == (tmp_path / "all" / name).read_bytes()
    report = check(tmp_path / "some")
    assert report.ok and report.partial and not report.deadlock_examined


@pytest.mark.parametrize("spec", ["8", "0-8", "3-1", "", "a", "1,,2", "-1", "every"])
def test_selection_that_cannot_be_is_refused(spec: str, tmp_path: Path) -> None:
    with pytest.raises(FlintError) as caught:
        write(layered(), tmp_path / "out", ranks=spec)
    assert caught.value.code == "FL503"
    assert not (tmp_path / "out").exists()


def test_option_without_such_a_value_is_refused(tmp_path: Path) -> None:
    for options in ({"groups": "dim"}, {"tensor_size": "input"}, {"prefix": "a/b"}):
        with pytest.raises(FlintError) as caught:
            write(layered(), tmp_path / "out", **options)  # type: ignore[arg-type]
        assert caught.value.code == "FL504"


def test_path_that_the_simulator_ignores_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FlintError) as caught:
        write(layered(), tmp_path / "emptyish" / "out")
    assert caught.value.code == "FL505"


def test_equal_ranks_are_linked(tmp_path: Path) -> None:
    workload = collective_program(over("model"))
    report = write(workload, tmp_path / "out", groups="dims", link=True)
    inodes = {p.stat().st_ino for p in (tmp_path / "out").glob("*.et")}
    assert len(inodes) == 1
    assert report.disk_bytes * 12 == report.trace_bytes
    write(workload, tmp_path / "copies", groups="dims")
    for rank in range(12):
        name = f"trace.{rank}.et"
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "copies" / name).read_bytes()


def test_links_run_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file may have so many links (EMLINK): the next rank starts a new copy."""
    real, made = os.link, dict[str, int]()

    def link(source: str, target: str) -> None:
        made[source] = made.get(source, 0) + 1
        if made[source] > 3:
            raise OSError(errno.EMLINK, "Too many links")
        real(source, target)

    monkeypatch.setattr(os, "link", link)
    report = write(collective_program(over("model")), tmp_path / "out", groups="dims", link=True)
    assert len({p.stat().st_ino for p in (tmp_path / "out").glob("*.et")}) == 3
    assert report.disk_bytes * 4 == report.trace_bytes
    assert check(tmp_path / "out").ok


def test_file_system_without_links_gets_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(source: str, target: str) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    report = write(collective_program(over("model")), tmp_path / "out", groups="dims", link=True)
    assert report.disk_bytes == report.trace_bytes
    assert check(tmp_path / "out").ok


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(layered(), tmp_path / "whole")
    real = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: real(handle, bytes(data)[:100]))
    write(layered(), tmp_path / "out")
    monkeypatch.undo()
    for file in os.listdir(tmp_path / "whole"):
        assert (tmp_path / "out" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


@pytest.mark.parametrize("after", [0, 3, 9])
def test_full_disk_leaves_nothing(
    after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = os.write, [0]

    def full(handle: int, data: bytes) -> int:
        calls[0] += 1
        if calls[0] > after:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(handle, data)

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(FlintError) as caught:
        write(layered(), tmp_path / "out")
    assert caught.value.code == "FL502"
    assert "No space left" in str(caught.value)
    assert os.listdir(tmp_path) == []


def test_interrupt_keeps_what_was_there(tmp_path: Path) -> None:
    write(layered(), tmp_path / "out")
    before = (tmp_path / "out" / "trace.0.et").read_bytes()

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(layered("data=2,model=2"), tmp_path / "out", progress=stop)
    assert os.listdir(tmp_path) == ["out"]
    assert (tmp_path / "out" / "trace.0.et").read_bytes() == before
    assert check(tmp_path / "out").ranks == 8


def test_file_that_may_not_grow_leaves_nothing(tmp_path: Path) -> None:
    """The kernel itself cuts a write short, then refuses the rest."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (700, before[1]))
    try:
        with pytest.raises(FlintError) as caught:
            write(layered(), tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.code == "FL502"
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL"])
def test_killed_process_leaves_nothing_that_looks_whole(name: str, tmp_path: Path) -> None:
    script = (
        "import os, signal, sys\n"
        "from flint.backends.chakra import write\n"
        "from flint.ir.workload import Workload\n"
        "from tests.chakra_traces import layered_program\n"
        f"kill = lambda done, total: os.kill(os.getpid(), signal.{name})\n"
        "write(Workload.single(layered_program()), sys.argv[1], progress=kill)\n"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "out")],
        env={**os.environ, "PYTHONPATH": str(root)},
        check=False,
    )
    assert done.returncode == -getattr(signal, name)
    assert not [p for p in os.listdir(tmp_path) if not p.startswith(".")]


def test_foreign_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(FlintError) as caught:
        write(layered(), tmp_path)
    assert caught.value.code == "FL501"
    assert (tmp_path / "thesis.tex").exists()


def test_mesh_of_one_device(tmp_path: Path) -> None:
    b = ProgramBuilder(Mesh.parse("1"))
    b.add("dot", flops=1, result_bytes=8)
    write(Workload.single(b.build()), tmp_path / "out")
    assert check(tmp_path / "out").ok
    assert "does not run a network of one" in (tmp_path / "out" / "README.txt").read_text()


def test_program_of_no_work(tmp_path: Path) -> None:
    b = ProgramBuilder(Mesh.parse("2"))
    b.add("param", Kind.PARAMETER, result_bytes=8)
    write(Workload.single(b.build()), tmp_path / "out")
    assert read(tmp_path / "out" / "trace.1.et").nodes == ()
    assert check(tmp_path / "out").ok


def test_long_scopes_lose_their_beginning() -> None:
    assert short_scope("a/b") == "a/b"
    assert short_scope("jit/" * 20 + "layers/attention") == "jit/" * 6 + "layers/attention"
    assert short_scope("x" * 100) == "x" * 40


@pytest.mark.parametrize(("value", "width"), [(0, 1), (127, 1), (128, 2), (16383, 2), (16384, 3)])
def test_varint_width(value: int, width: int) -> None:
    assert len(varint(value)) == width
