"""add(all-reduce, all-reduce): before and after."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flint.ir.program import Collective, Kind, Program, RegionKind
from flint.passes.rewrites.reassociate import ReassociateAllReduce
from tests.program_text import Rows, group, lines


def test_two_all_reduces_become_one_of_the_sum() -> None:
    b = Rows()
    x, y = b.parameter(), b.parameter()
    first = b.all_reduce(x, cause="gate", scope="gate")
    second = b.all_reduce(y, cause="up", scope="up")
    total = b.op("add", first, second, flops=16, scope="sum")
    b.result(total)
    after = ReassociateAllReduce().apply(b.build())
    after.verify()
    assert lines(after) == [
        "%0 argument",
        "%1 argument",
        "%2 add %0 %1",
        "%3 all_reduce {x} 64->64 %2",
        "%4 result %3",
    ]
    assert (after.row(2).flops, after.row(2).scope) == (16, "sum")
    assert (after.row(3).flops, after.row(3).cause, after.row(3).scope) == (0, "up", "up")


def test_a_chain_of_three_becomes_one() -> None:
    b = Rows()
    q, k, v = (b.all_reduce(b.parameter()) for _ in range(3))
    b.result(b.op("add", b.op("add", q, k), v))
    after = ReassociateAllReduce().apply(b.build())
    after.verify()
    assert lines(after) == [
        "%0 argument",
        "%1 argument",
        "%2 add %0 %1",
        "%3 argument",
        "%4 add %2 %3",
        "%5 all_reduce {x} 64->64 %4",
        "%6 result %5",
    ]


def test_a_tree_and_a_long_chain_become_one() -> None:
    b = Rows()
    w, x, y, z = (b.all_reduce(b.parameter()) for _ in range(4))
    total = b.op("add", b.op("add", w, x), b.op("add", y, z))
    for _ in range(50):
        total = b.op("add", total, b.all_reduce(b.parameter()))
    b.result(total)
    after = ReassociateAllReduce().apply(b.build())
    after.verify()
    assert sum(o == "sdy.all_reduce" for o in _opcodes(after)) == 1
    assert sum(o == "stablehlo.add" for o in _opcodes(after)) == 53
    assert _opcodes(after)[-2] == "sdy.all_reduce"


def test_an_addition_that_was_moved_is_not_looked_at_again() -> None:
    """Nor does the compiler (jax-cuda12-plugin 0.10.2): it lists additions before it moves any."""
    b = Rows()
    x, y = (b.all_reduce(b.parameter(), group("y")) for _ in range(2))
    b.result(b.op("add", b.all_reduce(x), b.all_reduce(y)))
    after = ReassociateAllReduce().apply(b.build())
    after.verify()
    assert [text.partition(" ")[2] for text in lines(after)[-3:]] == [
        "add %1 %3",
        "all_reduce {x} 64->64 %4",
        "result %5",
    ]


def test_equal_slices_of_two_all_reduces_are_cut_from_one() -> None:
    """As jax-cuda12-plugin 0.10.2; not where they are cut at other places."""
    b = Rows()
    at, other = b.parameter(shape=()), b.parameter(shape=())
    half = {"shape": (8,), "result_bytes": 32}
    parts = [b.op("dynamic_slice", b.all_reduce(b.parameter()), at, **half) for _ in range(2)]
    total = b.op("add", *parts, **half, flops=8)
    moved = b.op("dynamic_slice", b.all_reduce(b.parameter()), other, **half)
    b.result(b.op("add", total, b.op("negate", moved, **half), **half))
    b.result(
        b.op(
            "add",
            *(b.op("dynamic_slice", b.all_reduce(b.parameter()), p, **half) for p in (at, other)),
            **half,
        )
    )
    after = ReassociateAllReduce().apply(b.build())
    after.verify()
    assert [text.partition(" ")[2] for text in lines(after)[4:7]] == [
        "add %2 %3",
        "all_reduce {x} 64->64 %4",
        "dynamic_slice %0 %5",
    ]
    sum_ = after.row(4)
    assert (sum_.flops, sum_.shape, sum_.result_bytes, after.row(6).result_bytes) == (
        16,
        (16,),
        64,
        32,
    )
    assert sum(o == "sdy.all_reduce" for o in _opcodes(after)) == 4


def _opcodes(program: Program) -> list[str]:
    return [program.opcodes[i] for i in program.opcode]


def _read_twice(b: Rows) -> None:
    first = b.all_reduce(b.parameter())
    b.result(b.op("add", first, b.all_reduce(b.parameter())), first)


def _other_group(b: Rows) -> None:
    b.op("add", b.all_reduce(b.parameter()), b.all_reduce(b.parameter(), group("y")))


def _other_size(b: Rows) -> None:
    b.op("add", b.all_reduce(b.parameter(), result_bytes=4), b.all_reduce(b.parameter()))


def _other_type(b: Rows) -> None:
    b.op("add", b.all_reduce(b.parameter(), dtype="s32"), b.all_reduce(b.parameter()))


def _other_operation(b: Rows) -> None:
    b.op("multiply", b.all_reduce(b.parameter()), b.all_reduce(b.parameter()))


def _one_operand(b: Rows) -> None:
    b.op("add", b.all_reduce(b.parameter()), b.parameter())


def _itself(b: Rows) -> None:
    b.op("add", *[b.all_reduce(b.parameter())] * 2)


def _maximum(b: Rows) -> None:
    from flint.ir.program import Collective, Kind

    reduced = [
        b.op(
            "stablehlo.all_reduce[max]",
            b.parameter(),
            kind=Kind.COLLECTIVE,
            collective=Collective.ALL_REDUCE,
            group=group("x"),
            comm_bytes=64,
        )
        for _ in range(2)
    ]
    b.op("add", *reduced)


def _other_region(b: Rows) -> None:
    first = b.all_reduce(b.parameter())
    b.begin_region(RegionKind.LOOP, 3)
    b.op("add", first, b.all_reduce(first))
    b.end_region()


def _yielded(b: Rows) -> None:
    from flint.ir.program import Kind

    p = b.parameter()
    b.begin_region(RegionKind.LOOP, 3)
    c = b.op("flint.carried", p, kind=Kind.VALUE)
    first, second = b.all_reduce(c), b.all_reduce(p)
    b.op("add", first, second)
    b.end_region([(c, second)])


@pytest.mark.parametrize(
    "write",
    [
        _read_twice,
        _other_group,
        _other_size,
        _other_type,
        _other_operation,
        _one_operand,
        _itself,
        _maximum,
        _other_region,
        _yielded,
    ],
)
def test_anything_else_is_left_alone(write: Callable[[Rows], None]) -> None:
    b = Rows()
    write(b)
    program = b.build()
    program.verify()
    assert ReassociateAllReduce().apply(program) is program


def _scattered(b: Rows, shape: tuple[int, ...] = (16,), over: str = "x") -> int:
    """A reduce-scatter over 8 devices of an argument of 64 bytes."""
    whole = b.parameter(shape=shape)
    return b.op(
        "sdy.reduce_scatter",
        whole,
        kind=Kind.COLLECTIVE,
        collective=Collective.REDUCE_SCATTER,
        group=group(over),
        comm_bytes=64,
        result_bytes=8,
        shape=(2,),
    )


def test_three_reduce_scatters_become_one_of_the_sum_of_whole_arrays() -> None:
    """The additions are of 16 elements then, where they were of 2."""
    b = Rows()
    sizes = {"result_bytes": 8, "operand_bytes": 16, "shape": (2,), "flops": 2}
    total = b.op("add", _scattered(b), _scattered(b), **sizes)
    b.result(b.op("add", total, _scattered(b), **sizes))
    after = ReassociateAllReduce().apply(b.build())
    after.verify()
    assert lines(after) == [
        "%0 argument",
        "%1 argument",
        "%2 add %0 %1",
        "%3 argument",
        "%4 add %2 %3",
        "%5 reduce_scatter {x} 64->8 %4",
        "%6 result %5",
    ]
    for number in (2, 4):
        add = after.row(number)
        assert (add.shape, add.result_bytes, add.operand_bytes, add.flops) == ((16,), 64, 128, 16)
    assert after.row(5).shape == (2,) and after.row(5).comm_bytes == 64


@pytest.mark.parametrize("change", [{"over": "y"}, {"shape": (4, 4)}])
def test_reduce_scatters_of_other_groups_or_dimensions_stay(change: dict[str, Any]) -> None:
    b = Rows()
    total = b.op("add", _scattered(b), _scattered(b, **change), result_bytes=8, shape=(2,), flops=2)
    b.result(total)
    program = b.build()
    assert lines(ReassociateAllReduce().apply(program)) == lines(program)


def test_a_sum_of_an_all_reduce_and_a_reduce_scatter_stays() -> None:
    b = Rows()
    reduced = b.all_reduce(b.parameter(), result_bytes=8, shape=(2,))
    b.result(b.op("add", reduced, _scattered(b), result_bytes=8, shape=(2,), flops=2))
    program = b.build()
    assert lines(ReassociateAllReduce().apply(program)) == lines(program)
