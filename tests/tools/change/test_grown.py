"""Lines that have more of what grew, if of before only a lock file's totals are known."""

from __future__ import annotations

from typing import Any

import pytest

from flint.ir.builder import ProgramBuilder
from flint.ir.mesh import AxisRef, Mesh, Route
from flint.ir.program import Kind
from flint.ir.rank_class import RankClass
from flint.ir.workload import Workload
from flint.tools.change.diff.difference import Side, rows_of
from flint.tools.change.diff.match import Change
from flint.tools.change.project.verify import grown
from tests.tools.change.test_compare import program, side


def lines(before: Side, after: Side) -> list[Change]:
    old, new = before.snapshot.program, after.snapshot.program
    assert old is not None and new is not None
    return grown(old, new, list(rows_of(after)))


def test_each_line_of_a_kind_that_grew_has_its_share() -> None:
    found = lines(side(program("a", gathers=1)), side(program("a", gathers=3)))
    assert sorted((c.kind, c.over, c.source) for c in found) == [
        ("all_gather", "data", f"m.py:{n}") for n in (30, 31, 32)
    ]
    assert sum(c.after.comm_bytes for c in found) == 3 * 65536
    assert sum(c.delta.comm_bytes for c in found) == pytest.approx(2 * 65536)


def test_what_shrank_or_stayed_is_not_there() -> None:
    assert lines(side(program("a", gathers=3)), side(program("a", gathers=1))) == []
    assert lines(side(program("a", "b")), side(program("a", "b"))) == []
    (more,) = lines(side(program("a")), side(program("a", "b")))
    assert (more.kind, more.source, more.kernels) == ("matmul", "m.py:3", 2)
    assert more.delta.flops == pytest.approx(2 * 512 * 64 * 64)


def two_stages(size: int) -> Any:
    mesh = Mesh.parse("pipe=2")
    route = Route((AxisRef("pipe"),), 1, wrap=False)
    first, last = ProgramBuilder(mesh), ProgramBuilder(mesh)
    done = first.add("dot", flops=8, result_bytes=8)
    first.add("send", Kind.SEND, deps=[done], route=route, channel=3, comm_bytes=size)
    got = last.add("recv", Kind.RECV, route=route, channel=3, comm_bytes=size)
    last.add("dot", deps=[got], flops=8, result_bytes=8)
    classes = tuple(RankClass(f"stage{i}", i, {"pipe": (i,)}) for i in range(2))
    return Workload(mesh, (first.build(), last.build()), classes)


def test_messages_count_once() -> None:
    (found,) = lines(side(two_stages(64)), side(two_stages(128)))
    assert (found.kind, found.over) == ("message", "pipe")
    assert found.delta.comm_bytes == 32, "a mean over both devices"
