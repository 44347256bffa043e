"""Slices of stacks on a TPU: before and after of each rule."""

from __future__ import annotations

import pytest

from flint.ir.program import Flag, Kind, Program, RegionKind
from flint.passes.fusion.tpu import ReadSlices, WriteSlices
from flint.passes.profiles import profile
from tests.program_text import Rows

LAYERS, SIDE = 4, 64
BYTES = SIDE * SIDE * 4
WHOLE = {"shape": (SIDE, SIDE), "result_bytes": BYTES}
STACK = {"shape": (LAYERS, SIDE, SIDE), "result_bytes": LAYERS * BYTES}


class Scan(Rows):
    """A loop over layers that slices its weights out of a stack."""

    def __init__(self, *, barrier: bool = False) -> None:
        super().__init__()
        x = self.parameter(**WHOLE, flags=Flag.DONATED)
        stack = self.parameter(**STACK)
        zero = self.op("constant", kind=Kind.VALUE, shape=(), result_bytes=4)
        self.begin_region(RegionKind.LOOP, LAYERS, barrier=barrier)
        self.x = self.op("carry", x, kind=Kind.VALUE, **WHOLE)
        self.stack = self.op("carry", stack, kind=Kind.VALUE, alias=stack, **STACK)
        self.index = self.op("carry", zero, kind=Kind.VALUE, shape=(), result_bytes=4)
        self.slice = self.layer(self.stack, self.index)
        self.weights = self.op(
            "reshape", self.slice, kind=Kind.VALUE, flags=Flag.VIEW, alias=self.slice, **WHOLE
        )

    def layer(self, stack: int, index: int) -> int:
        columns = {"shape": (1, SIDE, SIDE), "result_bytes": BYTES, "operand_bytes": BYTES}
        return self.op("dynamic_slice", stack, index, **columns)

    def product(self, a: int, b: int) -> int:
        sized = {"operand_bytes": 2 * BYTES, "dims": (1, SIDE, SIDE, SIDE), "flops": 2 * SIDE**3}
        return self.op("dot_general", a, b, **WHOLE, **sized)

    def element(self, *deps: int) -> int:
        sized = {"operand_bytes": len(deps) * BYTES, "flops": SIDE * SIDE}
        return self.op("tanh", *deps, **WHOLE, **sized)

    def update(self, array: int, part: int, **columns: object) -> int:
        sized = {"operand_bytes": BYTES, "flags": Flag.IN_PLACE, "alias": array}
        return self.op("dynamic_update_slice", array, part, self.index, **{**sized, **columns})

    def end(self, x: int, *, stack: int | None = None, index: int | None = None) -> Program:
        carries = [(self.x, x), (self.stack, self.stack if stack is None else stack)]
        self.end_region([*carries, (self.index, self.index if index is None else index)])
        self.result(x)
        program = self.build()
        program.verify()
        return program


def copies(program: Program) -> int:
    """Slices that are kernels after the rule."""
    found = ReadSlices().apply(program)
    found.verify()
    assert len(found) == len(program)
    rows = (found.row(i) for i in range(len(found)))
    return sum(r.opcode.endswith("dynamic_slice") and r.kind is Kind.COMPUTE for r in rows)


def kernels(program: Program, name: str = "xla-tpu") -> list[tuple[str, int, int]]:
    """Opcodes of kernels, and the arrays that each reads and writes."""
    for step in profile(name).kernels:
        program = step.apply(program)
        program.verify()
    rows = (program.row(i) for i in range(len(program)))
    return [
        (r.opcode.removeprefix("stablehlo."), r.operand_bytes // BYTES, r.result_bytes // BYTES)
        for r in rows
        if r.kind is Kind.COMPUTE
    ]


def test_slices_in_place_a_product_reads_its_layer_out_of_the_stack() -> None:
    b = Scan()
    program = b.end(b.product(b.x, b.weights))
    found = ReadSlices().apply(program).row(b.slice)
    assert (found.kind, found.alias, found.deps) == (Kind.VALUE, b.stack, (b.stack,))
    assert found.flags == Flag.VIEW
    assert kernels(program) == [("dot_general", 2, 1)]
    assert kernels(program, "xla-gpu") == [("dynamic_slice", 1, 1), ("dot_general", 2, 1)]


def test_slices_in_place_each_of_several_readers_reads_the_layer() -> None:
    b = Scan()
    first = b.product(b.x, b.weights)
    other = b.element(b.product(first, b.weights), b.weights)
    assert kernels(b.end(other)) == [("dot_general", 2, 1)] * 2  # each value once


def test_slices_in_place_element_wise_rows_read_no_more_than_the_layer() -> None:
    b = Scan()
    once = b.op("multiply", b.x, b.weights, **WHOLE, operand_bytes=2 * BYTES, flops=SIDE**2)
    twice = b.op("add", once, b.weights, **WHOLE, operand_bytes=2 * BYTES, flops=SIDE**2)
    assert kernels(b.end(twice)) == [("fusion", 2, 1)]


def test_slices_in_place_an_update_of_another_stack_reads_the_layer() -> None:
    b = Scan()
    other = b.op("carry", b.stack, kind=Kind.VALUE, **STACK)
    written = b.update(other, b.slice, **STACK)
    b.product(written, b.x)
    assert copies(b.end(b.x)) == 0


def read_by_a_collective(b: Scan) -> int:
    return b.product(b.x, b.all_reduce(b.weights, **WHOLE))


def read_by_a_collective_and_a_product(b: Scan) -> int:
    return b.product(b.product(b.x, b.weights), b.all_reduce(b.weights, **WHOLE))


def read_by_a_sort(b: Scan) -> int:
    return b.op("sort", b.weights, **WHOLE, operand_bytes=BYTES)


def read_by_a_loop_inside(b: Scan) -> int:
    b.begin_region(RegionKind.LOOP, 2)
    inner = b.product(b.x, b.weights)
    b.end_region([])
    return inner


def overwritten(b: Scan) -> int:
    return b.update(b.weights, b.x, **WHOLE)


def handed_on(b: Scan) -> int:
    return b.weights


@pytest.mark.parametrize(
    "reader",
    [
        read_by_a_collective,
        read_by_a_collective_and_a_product,
        read_by_a_sort,
        read_by_a_loop_inside,
        overwritten,
        handed_on,
    ],
)
def test_slices_in_place_not_where_a_reader_needs_an_array_of_its_own(reader: object) -> None:
    assert callable(reader)
    b = Scan()
    assert copies(b.end(reader(b))) == 1


def test_slices_in_place_not_where_the_stack_is_overwritten_in_the_loop() -> None:
    b = Scan()
    x = b.product(b.x, b.weights)
    assert copies(b.end(x, stack=b.update(b.stack, x, **STACK))) == 1


def test_slices_in_place_not_where_a_kernel_computes_the_place() -> None:
    b = Scan()
    place = b.op("reduce", b.x, shape=(), result_bytes=4, operand_bytes=BYTES)
    x = b.product(b.x, b.weights)
    assert copies(b.end(x, index=place)) == 1


def test_slices_in_place_not_in_a_loop_with_a_barrier() -> None:
    b = Scan(barrier=True)
    assert copies(b.end(b.product(b.x, b.weights))) == 1


def test_slices_in_place_of_nothing_is_nothing() -> None:
    b = Rows()
    b.result(b.op("tanh", b.parameter()))
    program = b.build()
    assert ReadSlices().apply(program) is program


def gradients(b: Scan) -> tuple[int, int]:
    """A carried stack, and its update by the product of a layer."""
    stack = b.op("carry", b.stack, kind=Kind.VALUE, alias=b.stack, **STACK)
    part = b.op("reshape", b.product(b.x, b.x), kind=Kind.VALUE, flags=Flag.VIEW, **WHOLE)
    return stack, part


@pytest.mark.parametrize("opcode", ["stablehlo.dynamic_update_slice", "fusion"])
def test_slices_written_a_product_writes_into_the_stack(opcode: str) -> None:
    """Also where the update has taken a transpose, and is called a fusion."""
    b = Scan()
    stack, part = gradients(b)
    columns = {"shape": STACK["shape"], "result_bytes": BYTES, "operand_bytes": BYTES}
    place = {"flags": Flag.IN_PLACE, "alias": stack}
    update = b.add(opcode, deps=(stack, part, b.index), dtype="f32", **columns, **place)
    before = b.end(b.x)
    found = WriteSlices().apply(before)
    found.verify()
    (kernel,) = (r for r in map(found.row, range(len(found))) if r.flops)
    assert (kernel.opcode, kernel.shape) == ("stablehlo.dot_general", STACK["shape"])
    assert (kernel.dims, kernel.flops) == ((1, SIDE, SIDE, SIDE), 2 * SIDE**3)
    assert (kernel.operand_bytes, kernel.result_bytes) == (2 * BYTES, BYTES)
    assert (kernel.alias, kernel.flags) == (stack, Flag.IN_PLACE)
    assert before.row(update).opcode == opcode


def test_slices_written_not_what_something_else_reads() -> None:
    b = Scan()
    stack, part = gradients(b)
    b.update(stack, part, shape=STACK["shape"], result_bytes=BYTES)
    before = b.end(b.element(part))
    assert WriteSlices().apply(before) is before


def test_slices_written_not_what_a_collective_makes() -> None:
    b = Scan()
    stack, part = gradients(b)
    b.update(stack, b.all_reduce(part, **WHOLE), shape=STACK["shape"], result_bytes=BYTES)
    before = b.end(b.x)
    assert WriteSlices().apply(before) is before
