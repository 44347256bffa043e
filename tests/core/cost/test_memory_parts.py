"""Results of one row apart from each other, and rows of recorded programs that only come after others."""

from __future__ import annotations

from flint.backends.cost.memory.liveness import buffers
from flint.backends.cost.memory.memory import memory_use
from flint.ir.op_class import OpClass
from flint.ir.program import Flag, Kind
from tests.program_text import Rows

KB = 1024


def part(rows: Rows, whole: int, num_bytes: int) -> int:
    """One of several results of a row."""
    return rows.op(
        "hlo.get-tuple-element", whole, kind=Kind.VALUE, op=OpClass.PART, alias=whole,
        flags=Flag.VIEW, result_bytes=num_bytes,
    )  # fmt: skip


def test_each_of_several_results_is_there_until_it_was_read() -> None:
    rows = Rows()
    whole = rows.op("sort", rows.parameter(), result_bytes=7 * KB)
    small, large, unread = (part(rows, whole, size * KB) for size in (1, 2, 4))
    reader = rows.op("sort", large)
    last = rows.op("sort", small, reader)
    rows.result(last)
    program = rows.build()
    layout = buffers(program)
    ends = {n: int(layout.dies[layout.of_row[n]]) // 2 for n in (small, large, unread)}
    assert ends == {small: last, large: reader, unread: whole}
    assert {int(layout.born[layout.of_row[n]]) // 2 for n in ends} == {whole}
    assert memory_use(program).peak_bytes == 64 + 7 * KB


def test_a_collective_of_pytorch_sums_into_a_new_tensor() -> None:
    for flags, held in ((Flag(0), 1), (Flag.LAUNCHED, 2)):
        rows = Rows()
        made = rows.op("sort", rows.parameter(), flags=flags, result_bytes=KB)
        rows.result(rows.all_reduce(made, result_bytes=KB))
        assert memory_use(rows.build()).peak_bytes == 64 + held * KB


def test_coming_after_a_collective_keeps_nothing_of_it_alive() -> None:
    rows = Rows()
    x = rows.parameter()
    first = rows.all_reduce(x, result_bytes=KB)
    read = rows.op("sort", first, flags=Flag.LAUNCHED, operand_bytes=KB)
    second = rows.op("sort", read, first, flags=Flag.LAUNCHED, operand_bytes=64)
    rows.result(second)
    layout = buffers(rows.build())
    assert int(layout.dies[layout.of_row[first]]) // 2 == read
