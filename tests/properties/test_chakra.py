"""Any valid program becomes traces that hold what it says and run to their end."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import given

from flint.backends.chakra import check, read, write
from flint.backends.chakra.schema import NodeType
from flint.backends.chakra.writing.expand import expand
from flint.ir.mesh import Mesh
from flint.ir.program import Collective, Kind, Program
from flint.ir.workload import Workload
from tests.random_programs import QUICK, programs

SMALL = Mesh.parse("data=4,model=2")
OPTIONS = {"names": {}, "dims": {"groups": "dims", "link": True}}


@QUICK
@given(programs(SMALL))
def test_traces_of_a_program_pass_the_check(program: Program) -> None:
    for options in OPTIONS.values():
        with tempfile.TemporaryDirectory() as place:
            write(Workload.single(program), Path(place) / "out", **options)  # type: ignore[arg-type]
            report = check(Path(place) / "out")
            assert report.ok and report.proved == "any-times", (report.findings, report.doubt)


@QUICK
@given(programs(SMALL))
def test_totals_are_those_of_the_program(program: Program) -> None:
    """What each rank computes and communicates: rows times trips, ends that it does not have less."""
    with tempfile.TemporaryDirectory() as place:
        write(Workload.single(program), Path(place) / "out")
        for rank in (0, 5):
            nodes = read(Path(place) / "out" / f"trace.{rank}.et").nodes
            found = Counter(n.type for n in nodes)
            sent = [n for n in nodes if n.type is NodeType.COMM_COLL]
            comm_bytes = sum(int(n.attributes["comm_size"][1]) for n in sent)
            assert dict(found) == {k: v for k, v in _counts(program, rank).items() if v}
            assert comm_bytes == _collective_bytes(program)


def _collective_bytes(program: Program) -> int:
    total = 0
    for row in map(program.row, expand(program).row.tolist()):
        if row.kind is Kind.COLLECTIVE and row.group is not None:
            is_broadcast = row.collective is Collective.BROADCAST
            parts = row.group.size(program.mesh) if is_broadcast else 1
            total += -(-row.comm_bytes // parts)
    return total


def _counts(program: Program, rank: int) -> dict[NodeType, int]:
    counts = Counter[NodeType]()
    rows = expand(program).row.tolist()
    for row in map(program.row, rows):
        if row.kind is Kind.COMPUTE:
            counts[NodeType.COMP] += 1
        elif row.route is None:
            counts[NodeType.COMM_COLL] += 1
        else:
            if row.kind is not Kind.RECV:
                counts[NodeType.COMM_SEND] += row.route.targets(SMALL)[rank] not in (-1, rank)
            if row.kind is not Kind.SEND:
                counts[NodeType.COMM_RECV] += row.route.sources(SMALL)[rank] not in (-1, rank)
    return counts


@QUICK
@given(programs(SMALL))
def test_expansion_runs_each_row_as_often_as_its_loops_say(program: Program) -> None:
    nodes = expand(program)
    ran = Counter(nodes.row.tolist())
    for row, trips in enumerate(program.trips.tolist()):
        assert ran[row] in (0, trips)
        if program.kind[row] >= Kind.COLLECTIVE:
            assert ran[row] == trips
