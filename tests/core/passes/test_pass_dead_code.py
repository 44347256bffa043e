"""Dead code: before and after."""

from __future__ import annotations

from flint.ir.program import Flag, Kind, RegionKind
from flint.passes.rewrites.dead_code import DropDeadCode
from tests.program_text import Rows, group, lines


def test_what_no_result_reads_goes_with_its_collectives_and_tables() -> None:
    b = Rows()
    p = b.parameter()
    unread = b.parameter()
    live = b.op("tanh", p)
    dead = b.op("sine", p, dtype="bf16", scope="unused")
    b.op("negate", b.all_reduce(dead, group("y")))
    b.result(live)
    after = DropDeadCode().apply(b.build())
    after.verify()
    assert unread == 1
    assert lines(after) == ["%0 argument", "%1 argument", "%2 tanh %0", "%3 result %2"]
    assert "stablehlo.sine" not in after.opcodes
    assert "unused" not in after.strings
    assert (after.groups, after.dtypes) == ((), ("f32",))


def test_a_program_without_results_is_left_alone() -> None:
    b = Rows()
    b.op("sine", b.parameter())
    program = b.build()
    assert DropDeadCode().apply(program) is program


def test_messages_and_side_effects_stay_with_what_they_read() -> None:
    from flint.ir.mesh import AxisRef, Route

    b = Rows()
    x = b.op("sine", b.parameter())
    route = Route((AxisRef("x"),), 1)
    b.op("send", x, kind=Kind.SEND, route=route, channel=0, comm_bytes=64)
    b.op("outfeed", b.op("cosine"))
    b.op("tanh")
    b.result()
    after = DropDeadCode().apply(b.build())
    left = "argument sine send cosine outfeed result"
    assert [text.split()[1] for text in lines(after)] == left.split()


def test_writes_into_storage_that_stays_are_needed() -> None:
    b = Rows()
    total = b.op("zeros", kind=Kind.VALUE)
    b.begin_region(RegionKind.LOOP, 7, name="microbatches")
    b.op("add", total, b.op("sine"), flags=Flag.IN_PLACE, alias=total)
    b.end_region([])
    dead = b.op("cosine")
    b.op("negate", dead, flags=Flag.IN_PLACE, alias=dead)
    b.result(b.op("add", total, b.op("sine"), flags=Flag.IN_PLACE, alias=total))
    program = b.build()
    after = DropDeadCode().apply(program)
    after.verify()
    assert [text.split()[1] for text in lines(after)] == [
        text.split()[1] for text in lines(program) if text.split()[1] not in ("cosine", "negate")
    ]


def test_a_loop_keeps_the_values_that_its_result_needs_in_other_iterations() -> None:
    b = Rows()
    start = b.parameter()
    b.begin_region(RegionKind.LOOP, 9, name="while")
    # `a` reads `b` of the iteration before; `c` is only counted.
    one = b.op("flint.carried", start, kind=Kind.VALUE)
    two = b.op("flint.carried", start, kind=Kind.VALUE)
    three = b.op("flint.carried", start, kind=Kind.VALUE)
    next_one = b.op("tanh", two)
    next_two = b.op("sine", two)
    next_three = b.op("cosine", three)
    b.end_region([(one, next_one), (two, next_two), (three, next_three)])
    b.result(one)
    after = DropDeadCode().apply(b.build())
    after.verify()
    left = "argument carried carried tanh sine result"
    assert [text.split()[1] for text in lines(after)] == left.split()
    assert after.regions[0].carries == ((1, 3), (2, 4))
    assert (after.regions[0].start, after.regions[0].stop) == (1, 5)
    assert after.trips.tolist() == [1, 9, 9, 9, 9, 1]


def test_an_empty_region_goes_and_the_others_are_renumbered() -> None:
    b = Rows()
    p = b.parameter()
    b.begin_region(RegionKind.LOOP, 3)
    b.begin_region(RegionKind.LOOP, 4)
    b.op("sine", p)
    b.end_region()
    b.end_region()
    b.begin_region(RegionKind.LOOP, 5, name="kept")
    b.begin_region(RegionKind.LOOP, 6)
    x = b.op("tanh", p)
    b.end_region()
    b.end_region()
    b.result(x)
    after = DropDeadCode().apply(b.build())
    after.verify()
    assert [(r.name, r.parent, r.trip_count) for r in after.regions] == [
        ("kept", -1, 5),
        ("", 0, 6),
    ]
    assert after.region.tolist() == [-1, 1, -1]
