"""The text of a Program says all of it, and other texts are refused with their line."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flint
from flint.errors import FlintError
from flint.ir.builder import ProgramBuilder
from flint.ir.mesh import AxisRef, Group, Mesh, Route
from flint.ir.program import Collective, Flag, Kind, Program, RegionKind
from flint.ir.text.parser import parse_program
from flint.ir.text.printer import print_program
from flint.passes.base import run_passes
from flint.passes.profiles import PROFILES
from tests.properties.test_passes import equal
from tests.random_programs import QUICK, programs
from tests.zoo import zoo

#: One for each way in which zoo programs differ: loops, branches, messages, windows, experts.
ZOO = sorted(zoo())[::15]


def returns(program: Program) -> bool:
    return equal(parse_program(print_program(program)), program)


@QUICK
@given(programs())
def test_a_program_survives_its_text_exactly(program: Program) -> None:
    assert returns(program)


@pytest.mark.parametrize("profile", list(PROFILES))
@settings(max_examples=12)
@given(program=programs())
def test_kernels_survive_their_text_exactly(profile: str, program: Program) -> None:
    target = PROFILES[profile]
    assert returns(run_passes(program, [*target.passes, *target.kernels]))


@pytest.mark.parametrize("name", ZOO)
def test_a_captured_program_survives_its_text_exactly(name: str) -> None:
    example = zoo()[name]
    for program in flint.trace(example.step(), example.mesh).workload.programs:
        assert returns(program)


def odd() -> Program:
    """A program whose names, groups, tables and regions need all that the text can say."""
    mesh = Mesh(("a b", "x"), (8, 4))
    long = Group(ranks=tuple((2 * i, 2 * i + 1) for i in range(16)))
    b = ProgramBuilder(mesh)
    b.add('say "x"\x7f\n[', Kind.PARAMETER, name='é"\\', dtype="f8E4M3", shape=(3, 0))
    b.begin_region(RegionKind.BRANCH, 1, name="//", location="a:1", choice=7, barrier=True)
    b.begin_region(RegionKind.LOOP, 0)
    b.end_region()
    b.add("flint.r", Kind.SEND, deps=[0], route=Route(offset=-3), channel=4, comm_bytes=1)
    b.end_region()
    shift = Route((AxisRef("x", 2, 2),), 1, wrap=False, pairs=((0, 1), (1, 0)))
    for group in (long, long, Group((AxisRef("a b", 2, 4),)), Group((AxisRef("x"),), (), (0, 2))):
        b.add(
            "flint.sum",
            Kind.COLLECTIVE,
            collective=Collective.ALL_REDUCE,
            group=group,
            comm_bytes=8,
            stream="side stream",
            flags=Flag.ASYNC | Flag.IN_PLACE,
            deps=[0],
            alias=0,
        )
    b.add("flint.move", Kind.RECV, route=shift, channel=4, comm_bytes=1, product="float32:high")
    return b.build()


def test_odd_names_survive() -> None:
    assert returns(odd())


def test_tables_in_another_order_and_unused_entries_survive() -> None:
    program = odd()
    strings = (*reversed(program.strings), "of no row")
    number = [strings.index(s) for s in program.strings]
    moved = {
        c: getattr(program, c).copy() * 0 + [number[i] for i in getattr(program, c)]
        for c in ("name", "scope", "location", "cause")
    }
    other = replace(program, **moved, strings=strings, shapes=(*program.shapes, (7, 7)))
    other = replace(other, groups=(*other.groups, Group((AxisRef("x"),))))
    assert returns(other)
    assert equal(other, other) and not equal(other, program)


def test_regions_in_another_order_survive() -> None:
    b = ProgramBuilder(Mesh(("x",), (2,)))
    for name in ("first", "second"):
        b.begin_region(RegionKind.LOOP, 2, name=name)
        b.add("stablehlo.add")
        b.end_region()
    p = b.build()
    other = replace(p, regions=p.regions[::-1], region=(1 - p.region).astype(p.region.dtype))
    other.verify()
    assert returns(other)


EDITED = """
flint.program/1 {x=4}  // what people write
%w = parameter p() : f32[8] {name = "w"}
loop 0 x3 "layers" carries(%in = %out) loc("m.py:3") {
    %in  = value carry(%w) : f32[8] {alias = %w, flags = view}
  %out = compute "stablehlo.add"(%in,%w) : f32[8] {flops = 8, operand_bytes = 64} @layers
}
%sum = collective sdy.all_reduce(%out) : f32[8] {comm_bytes = 32, collective = all_reduce,
"""
SMALL = print_program(
    parse_program(EDITED.replace("all_reduce,\n", "all_reduce, group = {x}} @top\n").strip())
)


def test_text_may_be_edited_by_people() -> None:
    program = parse_program(SMALL)
    assert [program.row(i).opcode for i in range(4)] == [
        "p",
        "carry",
        "stablehlo.add",
        "sdy.all_reduce",
    ]
    assert program.regions[0].carries == ((1, 2),)
    assert program.row(3).group == Group((AxisRef("x"),))
    assert program.result_bytes.tolist() == [32] * 4


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("flint.program/1", "flint.program/9", r"text:1:1.*\n.*--print-after"),
        ("x=4", "x=0", r"sizes must be at least 1"),
        ("(%0)", "(%9)", r"no line before has defined %9"),
        ("%3 =", "%2 =", r"%2 is already defined, in line 5"),
        ("compute", "computes", r"'computes' is not a known kind of row; did you mean 'compute'"),
        ("group = {x}", "group = {y}", r"mesh has no axis 'y'"),
        ("group = {x}", "grupo = {x}", r"is not a known column; did you mean 'group'"),
        (", group = {x}", "", r"text:7\n|text:7$"),
        ("f32[8]", "f32[-8]", r"dimensions are zero or more"),
        ("flops = 8", "flops = 99999999999999999999", r"expected|at most"),
        ("flops = 8", "flops = -8", r"not sound"),
        ("flags = view", "phase = 7", r"expected a phase"),
        ("}\n%3", "%3", r"this block is not closed"),
        ("loop 0", "loop 5", r"blocks are not numbered"),
        ("loop 0 x3", "loop 0 x-3", r"trip counts are zero or more"),
        ("@layers", '@"layers', r"expected a string in quotes"),
        ("alias = %0", "alias = %2", r"no line before has defined %2"),
        ("group = {x}", "group = #3", r"no group of this name is above"),
        ("group = {x}", "group = {x:(0)2}", r"one or more"),
        ("@top", "@top\ntable strings = 0, 5", r"no entry 5"),
        ("@top", "@top\ntable strings = 0", r"lacks an entry"),
        ("@top", "@top\n}", r"text:8:\d+\n?.*|no block is open here"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(old: str, new: str, says: str) -> None:
    text = SMALL.replace(old, new, 1) if not new.startswith("%3") else SMALL.replace(old, new)
    assert text != SMALL
    with pytest.raises(FlintError) as caught:
        parse_program(text)
    assert caught.value.code == "FL307"
    assert re.search(says, str(caught.value)), str(caught.value)


@QUICK
@given(st.integers(0, len(SMALL) - 1), st.text(max_size=3), st.integers(0, 6))
def test_damaged_text_is_refused_or_is_another_program(at: int, text: str, gone: int) -> None:
    for damaged in (SMALL[:at] + text + SMALL[at + gone :], SMALL[:at]):
        try:
            parse_program(damaged).verify()
        except FlintError as error:
            assert error.code == "FL307"


def test_an_empty_text_is_no_program() -> None:
    with pytest.raises(FlintError, match="empty"):
        parse_program("// nothing\n\n")
