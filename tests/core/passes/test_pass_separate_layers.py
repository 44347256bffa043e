"""Layers of a scan as arrays of their own: before and after."""

from __future__ import annotations

import numpy as np

from flint.ir.program import Flag, Kind, Program, RegionKind
from flint.passes.profiles import profile
from flint.passes.rewrites.separate_layers import SeparateLayers
from tests.program_text import Rows

LAYERS = 4


def scan(*, filled_for_more: bool = False, parts: int = LAYERS) -> tuple[Program, dict[str, int]]:
    """A loop that reads a layer of stacked weights and writes a layer of stacked results."""
    b = Rows()
    whole = {"shape": (LAYERS, 16), "result_bytes": 256}
    at = {"weights": b.parameter(**whole), "zero": b.op("constant", kind=Kind.VALUE, shape=())}
    at["filled"] = b.op("broadcast_in_dim", at["zero"], **whole)
    if filled_for_more:
        b.op("negate", at["filled"], **whole)
    b.begin_region(RegionKind.LOOP, parts, name="layers")
    weights = b.op("carry", at["weights"], kind=Kind.VALUE, **whole)
    results = b.op("carry", at["filled"], kind=Kind.VALUE, **whole)
    index = b.op("carry", at["zero"], kind=Kind.VALUE, shape=())
    at["slice"] = b.op("dynamic_slice", weights, index, shape=(1, 16))
    at["row"] = b.op("tanh", at["slice"], shape=(1, 16))
    at["update"] = b.op(
        "dynamic_update_slice",
        results,
        index,
        at["row"],
        flags=Flag.IN_PLACE,
        alias=results,
        **whole,
    )
    b.end_region([(weights, weights), (results, at["update"]), (index, index)])
    b.result(at["update"])
    return b.build(), at | {"results": results, "stack": weights}


def kinds(program: Program, at: dict[str, int]) -> dict[str, Kind]:
    """Kinds of the three rows that a scan needs only for its stacks."""
    return {name: program.row(at[name]).kind for name in ("filled", "slice", "update")}


def test_parts_of_stacks_are_neither_copied_nor_filled() -> None:
    before, at = scan()
    after = SeparateLayers().apply(before)
    after.verify()
    assert set(kinds(before, at).values()) == {Kind.COMPUTE}
    assert set(kinds(after, at).values()) == {Kind.VALUE}
    part, update = after.row(at["slice"]), after.row(at["update"])
    assert (part.deps, part.alias, part.flags) == ((at["stack"],), at["stack"], Flag.VIEW)
    assert (update.deps, update.alias) == ((at["results"], at["row"]), at["results"])
    assert update.flags == Flag.VIEW
    assert after.row(at["row"]) == before.row(at["row"])
    assert before.row(at["filled"]).deps == (at["zero"],)
    assert after.row(at["filled"]).deps == ()  # else each part waits for all before the loop


def test_a_kernel_reads_its_layer_and_not_the_stack() -> None:
    b = Rows()
    weights = b.parameter(shape=(LAYERS, 16), result_bytes=256)
    zero = b.op("constant", kind=Kind.VALUE, shape=())
    b.begin_region(RegionKind.LOOP, LAYERS, name="layers")
    stack = b.op("carry", weights, kind=Kind.VALUE, shape=(LAYERS, 16), result_bytes=256)
    x = b.op("carry", zero, kind=Kind.VALUE)
    index = b.op("carry", zero, kind=Kind.VALUE, shape=())
    bias = b.op("reshape", b.op("dynamic_slice", stack, index, shape=(1, 16)))
    y = b.op("tanh", b.op("add", x, bias, flops=16), flops=16)
    b.end_region([(stack, stack), (x, y), (index, index)])
    b.result(y)
    program = b.build()
    for rules in profile("megatron").kernels:
        program = rules.apply(program)
    (kernel,) = np.flatnonzero(program.kind == Kind.COMPUTE)
    assert program.operand_bytes[kernel] == 64 + 64


def test_what_others_read_is_filled() -> None:
    before, at = scan(filled_for_more=True)
    after = SeparateLayers().apply(before)
    assert kinds(after, at) == {
        "filled": Kind.COMPUTE,
        "slice": Kind.VALUE,
        "update": Kind.VALUE,
    }


def test_a_slice_of_something_else_is_a_copy() -> None:
    """A loop that runs twice over four parts does not go layer by layer."""
    before, _ = scan(parts=2)
    assert SeparateLayers().apply(before) is before
