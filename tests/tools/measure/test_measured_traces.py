"""Measured workloads in other forms: Chakra traces, Perfetto, diffs, pages, graphs, text."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from flint.backends.chakra.checking.checker import check
from flint.backends.chakra.reading.reader import Decoder, TraceNode, read_bytes, records, unpack
from flint.backends.cost.astrasim.run import simulate_traces
from flint.backends.summary.graph import FORMATS
from flint.ir.op_class import OpClass
from flint.ir.text.parser import parse_program
from flint.ir.text.printer import print_program
from flint.ir.workload import Workload
from flint.tools.change.diff.difference import Side, compare
from flint.tools.report.perfetto import messages, write_perfetto
from flint.tracing import Trace
from tests.measured_programs import Recorded, one_rank, two_ranks, workload


def nodes(path: Path) -> list[TraceNode]:
    data = unpack(read_bytes(path), str(path))
    spans = list(records(data, str(path)))[1:]
    decoder = Decoder()
    return [decoder.node(data[a:b], str(path), a) for a, b in spans]


def test_traces_have_what_was_measured(tmp_path: Path) -> None:
    Trace(one_rank()).save(tmp_path / "t")
    found = nodes(tmp_path / "t" / "trace.1.et")
    host = [n for n in found if n.attributes["is_cpu_op"][1]]
    assert [n.name for n in host] == ["COMP_NODE host.launch"] * 4 + ["COMP_NODE host.wait"]
    assert sum(n.duration_micros for n in host) in (7, 8)  # of 7.2 us; each has 1 at least
    device = {n.name: n.duration_micros for n in found if n not in host}
    assert device["COMM_COLL_NODE nccl.all_reduce"] == 100
    assert device["COMP_NODE kernel"] == 3
    said = check(tmp_path / "t")
    assert not said.counts
    assert any("(10 nodes)" in n for n in said.notes)


def test_the_host_has_a_slot_of_its_own(tmp_path: Path) -> None:
    """Two kernels of 50 us, the second launched while the first runs: the host takes no time of it."""
    r = Recorded()
    for _ in range(2):
        r.launch(10_000)
        r.mm(50_000)
    Trace(workload(r.build())).save(tmp_path / "t")
    step = simulate_traces(tmp_path / "t", tmp_path / "t" / "network.yml")
    assert step.step_time_ns == 110_000
    assert (step.compute_ns[0], step.kernels[0]) == (100_000, 2)


def test_traces_of_another_cluster(tmp_path: Path) -> None:
    Trace(one_rank()).save(tmp_path / "t", cluster="b200-dgx")
    expected = Trace(one_rank()).estimate("b200-dgx").timeline.classes[0].work.duration_ns
    total = sum(n.duration_micros for n in nodes(tmp_path / "t" / "trace.0.et"))
    assert abs(total - expected.sum() / 1e3) < 4
    assert Workload.load(tmp_path / "t" / "workload.flint").measured_by


def test_perfetto_has_a_track_of_the_host(tmp_path: Path) -> None:
    written = write_perfetto(Trace(one_rank()).estimate(), tmp_path / "t.pftrace")
    trace = messages().Trace.FromString((tmp_path / "t.pftrace").read_bytes())
    tracks = {
        p.track_descriptor.thread.thread_name
        for p in trace.packet
        if p.track_descriptor.thread.thread_name
    }
    assert tracks == {"compute", "host", "stream 9", "stream 20"}
    assert written.nodes == 11


def test_two_profiles_of_one_program_differ_in_times() -> None:
    def made(ns: int) -> Side:
        r = Recorded()
        r.launch(1_000)
        r.mm(ns)
        found = workload(r.build())
        return Side.of(found, Trace(found).estimate())

    found = compare(made(10_000), made(30_000))
    assert [c.kind for c in found.causes] == ["measured"]
    (change,) = found.changes
    assert (change.cause, change.kind, change.said) == (
        "measured",
        "gemm",
        "took 10.0 us, now 30.0 us",
    )
    assert compare(made(10_000), made(10_000)).is_equal


def test_pages_graphs_and_text(tmp_path: Path) -> None:
    for found in (one_rank(), two_ranks()):
        e = Trace(found).estimate()
        page = e.to_html()
        assert "What was measured" in page
        assert "from a profile" in page
        assert "0 B of" not in page
        assert ("not recorded" in page) == (found.measured_by.classes[0].peak_bytes == 0)  # type: ignore[union-attr]
        assert e.to_html(against=e)
        for write in FORMATS.values():
            assert "host.launch" in write(found.programs[0])
        program = found.programs[0]
        again = parse_program(print_program(program))
        assert np.array_equal(again.measured_ns, program.measured_ns)
        assert (again.op == OpClass.HOST).sum() == (program.op == OpClass.HOST).sum()
