"""Operands of products as XLA for GPUs hands them to its library."""

from __future__ import annotations

from typing import Any

from flint.ir.program import Flag, Kind, Program
from flint.passes.base import run_passes
from flint.passes.rewrites.library_convolutions import LibraryConvolutions
from flint.passes.rewrites.turn_operands import TurnOperands
from tests.program_text import Rows, lines

#: Both operands of a product of a batch of two, [2, 2, 4] and [2, 4, 2].
DOT: dict[str, Any] = {"dims": (2, 2, 2, 4), "flops": 64, "shape": (2, 2, 2)}
LHS: dict[str, Any] = {"shape": (2, 2, 4)}
RHS: dict[str, Any] = {"shape": (2, 4, 2)}


def turned(b: Rows) -> Program:
    return run_passes(b.build(), [TurnOperands()])


def test_an_operand_in_another_order_is_copied_for_each_product() -> None:
    b = Rows()
    x, w = b.parameter(**LHS), b.parameter(**RHS)
    first = b.op("dot_general", x, w, flags=Flag.TURNED_LAST, **DOT)
    second = b.op("dot_general", x, w, flags=Flag.TURNED_LAST, **DOT)
    straight = b.op("dot_general", x, w, **DOT)
    b.result(first, second, straight)
    assert lines(turned(b))[2:7] == [
        "%2 transpose %1",
        "%3 dot_general %0 %2",
        "%4 transpose %1",
        "%5 dot_general %0 %4",
        "%6 dot_general %0 %1",
    ]


def test_operands_of_more_dimensions_are_seen_as_matrices_once() -> None:
    b = Rows()
    x, w = b.parameter(shape=(2, 2, 4)), b.parameter(shape=(4, 4))
    flat: dict[str, Any] = {"dims": (1, 4, 4, 4), "shape": (2, 2, 4)}
    b.result(b.op("dot_general", x, w, **flat), b.op("dot_general", x, w, **flat))
    after = turned(b)
    assert lines(after)[2:5] == ["%2 reshape %0", "%3 dot_general %1 %2", "%4 dot_general %1 %2"]
    assert (after.row(2).kind, after.row(2).alias) == (Kind.VALUE, 0)
    assert after.row(3).shape == (16,)  # a matrix: nothing of three dimensions is written over it


def test_plain_products_stay() -> None:
    b = Rows()
    b.result(b.op("dot_general", b.parameter(**LHS), b.parameter(**RHS), **DOT))
    before = b.build()
    assert TurnOperands().apply(before) is before


def test_only_views_of_a_convolution_become_kernels_or_go() -> None:
    b = Rows()
    image, kernel = b.parameter(shape=(1, 8, 8, 4)), b.parameter(shape=(3, 3, 4, 4))
    made = b.op("convolution", image, kernel, shape=(1, 8, 8, 4), dims=(1, 64, 4, 36))
    view: dict[str, Any] = {"kind": Kind.VALUE, "flags": Flag.VIEW, "shape": (1, 9, 8, 4)}
    padded = b.op("pad", made, alias=made, **view)  # as a stage of a pipeline is handed one
    b.result(b.op("tanh", padded, shape=(1, 9, 8, 4)))
    for kernels in (True, False):
        assert lines(run_passes(b.build(), [LibraryConvolutions(kernels)])) == lines(b.build())
