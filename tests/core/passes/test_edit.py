"""The editor: rows removed, added, merged, exchanged and put in order; regions follow their rows."""

from dataclasses import replace

import numpy as np
import pytest

from flint.ir.columns import ROW_COLUMNS
from flint.ir.edit import Editor
from flint.ir.match import ANY, Op, rewrite
from flint.ir.op_class import OpClass
from flint.ir.program import Flag, Kind, RegionKind
from flint.ir.text.parser import parse_program
from tests.program_text import Rows, lines
from tests.properties.test_passes import equal

TEXT = """flint.program/1 {x=4}
%0 = parameter p() : f32[8] {name = "w"}
loop 0 x3 "outer" carries(%1 = %5) {
  %1 = value carry(%0) : f32[8] {alias = %0}
  loop 1 x2 "inner" carries(%2 = %3) {
    %2 = value carry(%1) : f32[8]
    %3 = compute mul(%2) : f32[8] {flops = 3}
  }
  %4 = compute add(%1, %3) : f32[8] {flops = 4} @layers
  %5 = compute neg(%4) : f32[8] {flops = 5}
}
%6 = value flint.result(%5) : f32[8]
"""


def program():
    return parse_program(TEXT)


def built(edit):
    made = edit.build()
    made.program.verify()
    return made


def test_nothing_changed_is_the_program():
    assert equal(built(Editor(program())).program, program())


def test_rows_that_go_take_their_regions_and_carries_with_them():
    edit = Editor(program())
    edit.change(4, deps=[1])
    edit.remove([2, 3])
    made = built(edit)
    assert [r.name for r in made.program.regions] == ["outer"]
    assert made.place.tolist() == [0, 1, -1, -1, 2, 3, 4]
    assert made.program.regions[0].carries == ((1, 3),)
    keep = Editor(program(), keep=[0, 1, 4, 5, 6])
    keep.change(4, deps=[1])
    assert equal(built(keep).program, made.program)


def test_what_is_left_must_not_read_what_is_gone():
    edit = Editor(program())
    edit.remove([3])
    with pytest.raises(AssertionError, match="removed"):
        edit.build()


def test_added_rows_go_where_they_belong():
    edit = Editor(program())
    first = edit.copy(4, 1, -1, [0], opcode="before-outer")
    edit.copy(4, 2, 0, [1, first], opcode="before-inner")
    edit.copy(4, 4, 1, [3], opcode="end-of-inner")
    edit.value_at_end(4, 0, [5], opcode="end-of-outer")
    edit.copy(4, 6, -1, [5], opcode="after-outer", scope="new/scope")
    edit.copy(4, 7, -1, [6], opcode="last")
    p = built(edit).program
    names = [p.row(i).opcode for i in range(len(p))]
    assert names == [
        *("p", "before-outer", "carry", "before-inner", "carry", "mul", "end-of-inner", "add"),
        *("neg", "end-of-outer", "after-outer", "flint.result", "last"),
    ]
    assert [p.row(i).region for i in (1, 3, 6, 9, 10)] == [-1, 0, 1, 0, -1]
    assert p.row(10).scope == "new/scope" and p.row(1).scope == "layers"
    assert p.row(9).kind is Kind.VALUE and p.row(9).flops == 0


def test_rows_of_one_place_keep_their_order_also_in_a_loop_of_their_own():
    edit = Editor(program())
    loop = edit.loop(0, 5, "new")
    edit.add(4, 0, [1], opcode="first", result_bytes=4)
    edit.add(4, loop, [1], opcode="inside")
    edit.add(4, loop, [1], opcode="inside too")
    edit.add(4, 0, [1], opcode="second")
    p = built(edit).program
    assert [p.row(i).opcode for i in range(4, 8)] == ["first", "inside", "inside too", "second"]
    assert [(r.name, r.start, r.stop, r.parent) for r in p.regions] == [
        ("outer", 1, 10, -1),
        ("inner", 2, 4, 0),
        ("new", 5, 7, 0),
    ]
    assert p.row(4).scope == "" and p.row(4).kind is Kind.VALUE


def test_a_row_that_was_added_may_go_again():
    edit = Editor(program())
    edit.remove([edit.copy(4, 4, 0, [1])])
    assert equal(built(edit).program, program())


def test_a_loop_carries_more():
    edit = Editor(program())
    edit.carry(0, edit.value(1, 2, 0, [0]), 4)
    assert built(edit).program.regions[0].carries == ((1, 6), (2, 5))


def test_one_row_stands_for_several():
    edit = Editor(program())
    edit.merge(np.array([0, 1, 2, 3, 5, 5, 6]), sums=("flops",))
    p = built(edit).program
    assert p.flops.tolist() == [0, 0, 0, 3, 9, 0]
    assert p.dependencies(4).tolist() == [1, 3]
    assert p.regions[0].carries == ((1, 4),)


def test_columns_are_exchanged_and_taken_over():
    edit = Editor(program())
    edit.swap(4, 5)
    assert (edit.like(4), edit.like(5)) == (5, 4)
    p = built(edit).program
    assert [p.row(i).opcode for i in (4, 5)] == ["neg", "add"]
    assert p.dependencies(4).tolist() == [1, 3]
    edit = Editor(program())
    edit.become(1, 6)  # what shared storage shares it no more
    assert built(edit).program.row(1).alias == -1


def test_rows_are_counted_as_they_are_read():
    edit = Editor(program())
    assert [edit.uses(row) for row in range(7)] == [1, 2, 1, 2, 1, 2, 0]
    edit.change(4, deps=[1])
    assert [edit.uses(row) for row in (1, 3)] == [2, 1]
    edit.copy(4, 4, 0, [1, 3])
    assert [edit.uses(row) for row in (1, 3)] == [3, 2]
    edit.remove([4])
    assert edit.uses(1) == 2
    assert not edit.stays(4) and edit.rows().tolist() == [0, 1, 2, 3, 5, 6]


def test_values_are_put_into_tables_and_arrays_into_columns():
    edit = Editor(program())
    edit.change(3, scope="a", shape=(2, 2), dims=(1, 2, 3, 4), flags=Flag.UNPRICED)
    edit.set(np.array([4, 5]), location="here.py:1", flops=np.array([7, 8]))
    p = built(edit).program
    row = p.row(3)
    assert (row.scope, row.shape, row.dims, row.flags) == ("a", (2, 2), (1, 2, 3, 4), 1)
    assert [(p.row(i).location, p.row(i).flops) for i in (4, 5)] == [
        ("here.py:1", 7),
        ("here.py:1", 8),
    ]
    assert set(p.strings) == {"", "w", "layers", "a", "here.py:1"}


def test_rows_are_put_in_order_with_their_regions():
    b = Rows()
    a = b.parameter()
    b.begin_region(RegionKind.LOOP, 2)
    b.op("negate", a)
    b.end_region()
    b.op("add", a)
    edit = Editor(b.build())
    edit.order(np.array([0, 2, 1]))
    p = built(edit).program
    assert lines(p) == ["%0 argument", "%1 add %0", "%2 negate %0"]
    assert (p.regions[0].start, p.regions[0].stop) == (2, 3)


def test_patterns_find_what_is_read_in_one_region():
    negates = OpClass.NEGATE
    b = Rows()
    a = b.parameter()
    first = b.op("negate", a)
    b.op("negate", first)
    b.begin_region(RegionKind.LOOP, 2)
    b.op("negate", first)
    b.end_region()
    p, found = b.build(), []

    def note(edit, *rows):
        found.append(rows)
        return False

    assert rewrite(p, Op(negates, reads=(Op(negates),)), note) is p
    assert found == [(2, 1)]
    found.clear()
    rewrite(p, Op(negates, reads=(Op(negates, read_once=True),)), note)
    rewrite(p, Op(ANY, lambda p: p.kind == Kind.PARAMETER), note)
    assert found == [(0,)]


def test_a_rule_is_tried_again_where_it_was_applied():
    """Chains of negations go, two at a time."""
    negate = Op(OpClass.NEGATE)
    b = Rows()
    row = b.parameter()
    for _ in range(5):
        row = b.op("negate", row)
    b.result(row)

    def cancel(edit, outer, inner):
        (of,) = edit.reads(inner)
        for reader in edit.rows().tolist():
            if outer in edit.reads(reader):
                deps = [of if d == outer else d for d in edit.reads(reader)]
                edit.change(reader, deps=deps)
        edit.remove([outer, inner])
        return True

    pattern = Op(negate.classes, reads=(negate,))
    assert lines(rewrite(b.build(), pattern, cancel)) == [
        "%0 argument",
        "%1 negate %0",
        "%2 result %1",
    ]


def test_every_column_survives_an_edit():
    edit = Editor(program())
    edit.copy(4, 4, 0, [1])
    p = built(edit).program
    for name in ROW_COLUMNS:
        if name not in ("region", "alias"):
            assert np.array_equal(getattr(p, name)[4], getattr(program(), name)[4]), name


def test_a_table_with_an_entry_twice_is_read_and_added_to():
    """Files of others may have one: rows keep what they mean, and what is new comes behind."""
    p = program()
    twice = replace(p, opcodes=(*p.opcodes, *p.opcodes))
    edit = Editor(twice)
    edit.change(0, opcode="flint.new")
    edit.change(1, opcode=p.opcodes[p.opcode[0]])
    after = built(edit).program
    opcodes = [after.row(i).opcode for i in range(len(after))]
    before = [p.row(i).opcode for i in range(len(p))]
    assert opcodes == ["flint.new", before[0], *before[2:]]
