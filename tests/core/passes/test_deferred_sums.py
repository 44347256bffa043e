"""Which sums of gradients leave a compiled backward pass, and what is left of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from flint.ir.builder import ProgramBuilder
from flint.ir.mesh import AxisRef, Group, Mesh
from flint.ir.op_class import OpClass
from flint.ir.program import Collective, Flag, Kind, Program, RegionKind
from flint.passes.compilers.positions.deferred import Deferred, deferred
from flint.passes.pipeline.split.parts import Key, Partial, Saved, StageProgram
from flint.steps.captured import Port, Role

MESH = Mesh(("pipe", "data"), (2, 4))
DATA = Group((AxisRef("data"),))
LAYERS, WIDE = 3, 64
SIZE = WIDE * WIDE * 4
F32: dict[str, Any] = {"dtype": "float32", "shape": (WIDE, WIDE), "result_bytes": SIZE}
PRODUCT: dict[str, Any] = {
    "op": OpClass.MATMUL,
    "flops": 2 * WIDE**3,
    "dims": (1, WIDE, WIDE, WIDE),
    "product": "float32",
}


class Pass:
    """A backward pass that is written row by row."""

    def __init__(self) -> None:
        self.b = ProgramBuilder(MESH)
        self.inputs: dict[Key, int] = {}
        for key in (Port(Role.COTANGENT), Saved(0), Port(Role.PARAMETER, "w")):
            self.inputs[key] = self.b.add("parameter", Kind.PARAMETER, **F32)
        self.cotangent, self.saved, self.weight = self.inputs.values()

    def product(self, *deps: int) -> int:
        return self.b.add("dot", deps=deps, operand_bytes=2 * SIZE, **PRODUCT, **F32)

    def sum(self, *deps: int, kind: Collective = Collective.ALL_REDUCE, **columns: Any) -> int:
        size = len(deps) * SIZE
        given = {**F32, "result_bytes": size, "operand_bytes": size, **columns}
        return self.b.add(
            "sum", Kind.COLLECTIVE, deps=deps, collective=kind, group=DATA, comm_bytes=size,
            op=OpClass.ADD, **given,
        )  # fmt: skip

    def moved(self, *deps: int, **columns: Any) -> int:
        given = {**F32, "operand_bytes": SIZE, **columns}
        return self.b.add("fusion", op=OpClass.FUSED_LOOP, deps=deps, **given)

    def done(self, *, accumulates: bool = True, **results: int) -> Deferred:
        outputs: dict[Key, int] = {}
        for name, row in results.items():
            of = self.b.add("hlo.result", Kind.VALUE, deps=[row], alias=row, flags=Flag.VIEW, **F32)
            outputs[Partial(name) if name != "x" else Port(Role.INPUT_GRADIENT)] = of
        found = deferred(
            StageProgram(self.b.build(), self.inputs, outputs), accumulates=accumulates
        )
        for part in (found.backward, found.reduce):
            part.program.verify()
        return found


def sums(program: Program) -> list[tuple[Collective, int, int]]:
    rows = map(program.row, np.flatnonzero(program.kind == Kind.COLLECTIVE).tolist())
    return [(r.collective, r.comm_bytes, int(program.trips[r.number])) for r in rows]


def test_a_joined_sum_of_two_gradients_waits() -> None:
    p = Pass()
    x = p.product(p.cotangent, p.weight)
    one, two = p.product(x, p.saved), p.product(p.cotangent, p.saved)
    both = p.sum(one, two)
    found = p.done(one=p.moved(both), two=p.moved(both), x=x)
    assert sums(found.backward.program) == []
    assert sums(found.reduce.program) == [(Collective.ALL_REDUCE, 2 * SIZE, 1)]
    for name in ("one", "two"):
        row = found.backward.program.row(found.backward.outputs[Partial(name)])
        assert (row.shape, row.result_bytes) == ((WIDE, WIDE), SIZE)
        reduced = found.reduce.outputs[Port(Role.GRADIENT, name)]
        assert found.reduce.program.row(reduced).result_bytes == SIZE
    assert found.undeferred == ()


def test_slices_that_a_loop_scatters_are_scattered_in_one() -> None:
    p = Pass()
    part = {"shape": (WIDE // 4, WIDE), "result_bytes": SIZE // 4}
    whole = {"shape": (LAYERS, WIDE // 4, WIDE), "result_bytes": LAYERS * SIZE // 4}
    empty = p.b.add("constant", Kind.VALUE, dtype="float32", **whole)
    p.b.begin_region(RegionKind.LOOP, LAYERS, name="layers")
    x = p.b.add("hlo.carried", Kind.VALUE, deps=[p.cotangent], **F32)
    stack = p.b.add("hlo.carried", Kind.VALUE, deps=[empty], dtype="float32", **whole)
    scattered = p.sum(p.product(x, p.saved), kind=Collective.REDUCE_SCATTER, **part)
    wrote = p.moved(
        stack, scattered, alias=stack, flags=Flag.IN_PLACE, operand_bytes=SIZE // 4,
        **{**whole, "result_bytes": SIZE // 4},
    )  # fmt: skip
    p.b.end_region([(x, p.product(x, p.weight)), (stack, wrote)])
    outputs = {Partial("w"): p.b.add("hlo.result", Kind.VALUE, deps=[wrote], alias=wrote,
                                     flags=Flag.VIEW, dtype="float32", **whole)}  # fmt: skip
    found = deferred(StageProgram(p.b.build(), p.inputs, outputs), accumulates=True)
    found.backward.program.verify()
    found.reduce.program.verify()
    assert sums(found.backward.program) == []
    assert sums(found.reduce.program) == [(Collective.REDUCE_SCATTER, SIZE, LAYERS)]
    row = found.backward.program.row(found.backward.outputs[Partial("w")])
    assert (row.shape, row.result_bytes) == ((4 * LAYERS, WIDE // 4, WIDE), LAYERS * SIZE)
    written = next(
        r for r in map(found.backward.program.row, range(wrote + 1)) if r.opcode == "fusion"
    )
    assert (written.result_bytes, written.operand_bytes) == (SIZE, SIZE)
    gradient = found.reduce.program.row(found.reduce.outputs[Port(Role.GRADIENT, "w")])
    assert (gradient.shape, gradient.result_bytes) == (whole["shape"], whole["result_bytes"])


def test_a_sum_that_is_multiplied_by_what_a_microbatch_saved_stays() -> None:
    p = Pass()
    one = p.sum(p.product(p.cotangent, p.saved))
    other = p.sum(p.product(p.cotangent, p.saved))
    found = p.done(one=p.moved(one, p.saved), other=p.moved(other, p.weight))
    assert sums(found.backward.program) == [(Collective.ALL_REDUCE, SIZE, 1)]
    assert sums(found.reduce.program) == [(Collective.ALL_REDUCE, SIZE, 1)]
    assert found.undeferred == ("one",)


def test_sums_that_products_or_neighbours_wait_for_are_no_ends() -> None:
    p = Pass()
    x = p.sum(p.product(p.cotangent, p.weight))
    found = p.done(one=p.product(x, p.saved), x=x)
    assert sums(found.backward.program) == [(Collective.ALL_REDUCE, SIZE, 1)]
    assert sums(found.reduce.program) == [] and found.undeferred == ()


def test_one_microbatch_has_nothing_to_wait_for() -> None:
    p = Pass()
    found = p.done(one=p.sum(p.product(p.cotangent, p.saved)), accumulates=False)
    assert sums(found.backward.program) == [(Collective.ALL_REDUCE, SIZE, 1)]
    assert sums(found.reduce.program) == [] and found.undeferred == ()
