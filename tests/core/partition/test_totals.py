"""Totals: loops multiply, sums are exact however large, kinds and axes are told apart."""

from __future__ import annotations

from flint.ir.mesh import AxisRef, Group, Mesh, Route
from flint.ir.program import Collective, Kind, RegionKind
from flint.passes.work.totals import CommunicationTotal, totals
from tests.program_rows import ProgramBuilder

MESH = Mesh(("data", "model"), (8, 4))
DATA, MODEL = Group((AxisRef("data"),)), Group((AxisRef("model"),))


def test_an_empty_program_totals_nothing() -> None:
    t = totals(ProgramBuilder(MESH).build())
    assert (t.op_count, t.executed_op_count, t.flops, t.matmul_flops) == (0, 0, 0, 0)
    assert (t.parameter_bytes, t.comm_bytes, t.communication) == (0, 0, ())


def test_loops_multiply_and_branches_count_once_or_never() -> None:
    b = ProgramBuilder(MESH)
    b.add("func.argument", Kind.PARAMETER, result_bytes=100)
    b.add("func.argument", Kind.PARAMETER, result_bytes=28)
    b.begin_region(RegionKind.LOOP, 5)
    b.add("stablehlo.add", flops=3)
    b.begin_region(RegionKind.LOOP, 7)
    b.add("stablehlo.dot_general", flops=16, dims=(1, 2, 2, 2))
    b.add(
        "sdy.all_reduce",
        Kind.COLLECTIVE,
        collective=Collective.ALL_REDUCE,
        group=DATA,
        comm_bytes=64,
    )
    b.end_region()
    b.end_region()
    for taken in (1, 0):
        b.begin_region(RegionKind.BRANCH, taken, choice=0)
        b.add("stablehlo.add", flops=1000)
        b.end_region()
    program = b.build()
    program.verify()
    t = totals(program)
    assert t.op_count == 5
    assert t.executed_op_count == 5 + 35 + 35 + 1
    assert t.flops == 5 * 3 + 35 * 16 + 1000
    assert t.matmul_flops == 35 * 16
    assert t.parameter_bytes == 128
    assert t.communication == (CommunicationTotal("all_reduce", "data", 35, 35 * 64),)


def test_kinds_and_axes_are_separate_and_a_message_counts_where_it_is_sent() -> None:
    b = ProgramBuilder(MESH)
    route = Route((AxisRef("model"),), 1)
    for kind, group in ((1, MODEL), (1, DATA), (2, DATA), (1, DATA)):
        b.add("c", Kind.COLLECTIVE, collective=Collective(kind), group=group, comm_bytes=10)
    b.add("p", Kind.COLLECTIVE, collective=Collective.PERMUTE, route=route, comm_bytes=7)
    b.add("s", Kind.SEND, route=route, channel=0, comm_bytes=5)
    b.add("r", Kind.RECV, route=route, channel=0, comm_bytes=5)
    t = totals(b.build())
    assert t.communication == (
        CommunicationTotal("all_gather", "data", 1, 10),
        CommunicationTotal("all_reduce", "data", 2, 20),
        CommunicationTotal("all_reduce", "model", 1, 10),
        CommunicationTotal("permute", "model+1", 1, 7),
        CommunicationTotal("recv", "model+1", 1, 5),
        CommunicationTotal("send", "model+1", 1, 5),
    )
    assert t.comm_bytes == 52


def test_sums_beyond_64_bits_are_exact() -> None:
    b = ProgramBuilder(MESH)
    large = 2**60 + 3
    b.begin_region(RegionKind.LOOP, 2**40)
    for _ in range(4):
        b.add("stablehlo.custom_call", flops=large)
    b.add("stablehlo.dot_general", flops=large, dims=(2**20, 2**20, 2**20, 2**20))
    b.end_region()
    t = totals(b.build())
    assert t.flops == 5 * large * 2**40
    assert t.matmul_flops == large * 2**40


def test_what_is_fused_to_a_product_is_not_matmul_work() -> None:
    b = ProgramBuilder(MESH)
    b.add("stablehlo.dot_general", flops=16 + 4, dims=(1, 2, 2, 2))
    b.add("stablehlo.reduce", flops=9, dims=(1, 3, 1, 3))
    b.add("stablehlo.convert", flops=9, dims=(1, 3, 1, 3))
    assert totals(b.build()).matmul_flops == 16
