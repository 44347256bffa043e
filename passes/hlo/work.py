"""The work of an HLO instruction: by rules of single ones, of custom calls, and of fusions.

A fusion has the work of what is fused and moves only what crosses its edges. Instructions without a
rule here, whose class does not tell their work, are unpriced: their bytes are known, their work not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from flint.ir.dims import DimsRow
from flint.ir.op_class import ELEMENTWISE, OpClass
from flint.passes.fusion.merging import MERGED_NAMES
from flint.passes.hlo import instruction_work as rules
from flint.passes.hlo import shapes
from flint.passes.hlo.calls import custom_call
from flint.passes.hlo.instruction_work import HloOperation
from flint.passes.hlo.module import Computation, HloModule, Instruction
from flint.passes.hlo.op_classes import class_of
from flint.passes.work import formulas
from flint.passes.work.work import Work

WorkRule = Callable[[HloOperation], Work]


def work_of(instruction: Instruction, computation: Computation, module: HloModule) -> Work:
    """The work of an instruction of `computation`; `unpriced` is set where no rule knows it."""
    rule = RULES.get(instruction.opcode)
    if rule is not None:
        return rule(HloOperation(instruction, module.operands(computation, instruction), module))
    if instruction.opcode in IDLE:
        return Work()
    op, elements = class_of(instruction.opcode), shapes.num_elements(instruction.shape)
    return formulas.by_class(op, elements) or Work(unpriced=True)


def fusion(o: HloOperation) -> Work:
    """The work of what is fused; bytes are those that cross its edges.

    A parameter of which the fused computation only reads slices counts those slices; a result
    that is updated in place counts the update. A kernel as Flint makes them has its name.
    """
    written, in_place = _written(o)
    from flint.passes.hlo.fused import class_of_fusion  # a captured program holds no fusions

    op = class_of_fusion(o, work_of)
    inside = _work_inside(o)
    return replace(
        inside,
        dims=_rows_by_index(o, op) or inside.dims,
        operand_bytes=_read(o),
        result_bytes=written,
        in_place=in_place,
        op=op,
        called=MERGED_NAMES.get(op, ""),
    )


def _work_inside(o: HloOperation) -> Work:
    """The work of the computation that an instruction calls, and of those called from it.

    `dims` and `product` are of its largest product of matrices; where there are several, or one
    of attention, k is longer, so that `dims` hold the flops of all: they follow each other.
    Without a product `dims` are of the largest reduction.
    """
    inside = [work_of(i, o.called, o.module) for i in _fused(o.called)]
    products = [w for w in inside if w.product or w.dims[2] > 1]
    if products:
        largest = max(products, key=_product_flops)
    else:
        largest = max(inside, key=lambda w: (any(w.dims) and w.flops > 0, w.flops), default=Work())
    batch, m, n, k = largest.dims
    needed = -(-sum(map(_product_flops, products)) // max(2 * batch * m * n, 1))
    return Work(
        flops=sum(w.flops for w in inside),
        dims=(batch, m, n, max(k, needed)),
        product=largest.product,
        unpriced=any(w.unpriced for w in inside),
    )


def _rows_by_index(o: HloOperation, op: OpClass) -> DimsRow | None:
    """The rows that a fusion looks up or writes by index, if that is what it is: the most."""
    if op not in (OpClass.GATHER, OpClass.SCATTER):
        return None
    works = ((i, work_of(i, o.called, o.module)) for i in o.called.instructions)
    return max((w.dims for i, w in works if w.class_or(class_of(i.opcode)) is op), default=None)


def _product_flops(work: Work) -> int:
    """The flops of the products of a work, without what is fused to them."""
    return work.flops if work.called else min(work.flops, 2 * math.prod(work.dims))


def _fused(computation: Computation) -> list[Instruction]:
    idle = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all")
    return [i for i in computation.instructions if i.opcode not in idle]


def _read(o: HloOperation) -> int:
    """Bytes that a fusion reads: of each parameter no more than what leads to its results."""
    needed = _Needed(o)
    return sum(
        shapes.num_bytes(p.shape) * needed.of(p) // max(shapes.num_elements(p.shape), 1)
        for p in o.called.instructions
        if p.opcode == "parameter"
    )


class _Needed:
    """How many elements of what is calculated inside a fusion its results need.

    Code is made for each element of a result, so that a slice of a value needs that part of what
    leads to the value. What is updated in place is not read, but for places that a scatter adds to.
    """

    def __init__(self, o: HloOperation) -> None:
        self._module, self._called = o.module, o.called
        self._users: dict[int, list[tuple[Instruction, int]]] = {}
        for instruction in o.called.instructions:
            for position, operand in enumerate(instruction.operand_ids):
                self._users.setdefault(operand, []).append((instruction, position))
        self._root = o.called.root_id
        self._placed = {i.id for i in _results(o) if _is_placed(o, i)}
        self._known: dict[int, int] = {}
        for instruction in reversed(o.called.instructions):  # users first: chains may be long
            self.of(instruction)

    def of(self, i: Instruction) -> int:
        """Elements of the result of `i`, all of a parameter that is a tuple."""
        if i.id not in self._known:
            whole = shapes.num_elements(i.shape)
            users = self._users.get(i.id, [])
            part = sum(self._read_by(user, at, whole) for user, at in users)
            self._known[i.id] = whole if i.id == self._root else min(part, whole)
        return self._known[i.id]

    def _read_by(self, user: Instruction, position: int, whole: int) -> int:
        if user.opcode == "tuple":
            return whole
        if position == 0 and user.id in self._placed:
            return self._written_by(user)
        if user.opcode in ("fusion", "call"):
            return self._read_inside(user, position)
        one_by_one = user.opcode in _ONE_BY_ONE or class_of(user.opcode) in ELEMENTWISE
        if one_by_one or (position == 0 and user.opcode in _OF_A_PART):
            return self.of(user)
        if user.opcode == "reduce":
            return math.ceil(whole * self.of(user) / max(shapes.num_elements(user.shape), 1))
        return whole

    def _written_by(self, user: Instruction) -> int:
        """Elements of an array that are read where it is updated: the places that a scatter writes."""
        if user.opcode != "scatter":
            return 0
        return shapes.num_elements(self._module.operands(self._called, user)[2].shape)

    def _read_inside(self, user: Instruction, position: int) -> int:
        """Elements of an operand that a fusion inside the fusion needs for what it is asked."""
        inside = HloOperation(user, [], self._module)
        (argument,) = (
            i
            for i in inside.called.instructions
            if i.opcode == "parameter" and i.parameter_number == position
        )
        asked = self.of(user) / max(shapes.num_elements(user.shape), 1)
        return math.ceil(_Needed(inside).of(argument) * asked)


def _results(o: HloOperation) -> list[Instruction]:
    """What makes the results of a fusion, before their shapes are seen differently."""
    root = o.module.root(o.called)
    parts = o.module.operands(o.called, root) if root.opcode == "tuple" else [root]
    return [_behind(o, part) for part in parts]


def _behind(o: HloOperation, i: Instruction) -> Instruction:
    while i.opcode == "bitcast":
        i = o.module.operands(o.called, i)[0]
    return i


def _is_placed(o: HloOperation, i: Instruction) -> bool:
    """Whether a result is an update of an operand of the fusion: only that part is written."""
    if i.opcode not in _UPDATES:
        return False
    return bool(_behind(o, o.module.operands(o.called, i)[0]).opcode == "parameter")


def _written(o: HloOperation) -> tuple[int, bool]:
    """Bytes that a fusion writes, and whether its result is an operand updated in place."""
    parts = _results(o)
    placed = [_is_placed(o, part) for part in parts]
    sizes = (
        (work_of(part, o.called, o.module).result_bytes or 0)
        if in_place
        else shapes.num_bytes(part.shape)
        for part, in_place in zip(parts, placed, strict=True)
    )
    return sum(sizes), placed[0]


#: Instructions that change a part of their first operand.
_UPDATES = ("dynamic-update-slice", "scatter")
#: Instructions whose result has an element for each that they read, beside element-wise ones.
_ONE_BY_ONE = frozenset(
    ("bitcast", "reshape", "transpose", "copy", "reverse", "select", "broadcast", "concatenate")
)
#: Instructions that read no more of their first operand than their result has.
_OF_A_PART = ("slice", "dynamic-slice", "gather", "dynamic-update-slice", "pad")
#: Instructions that name values, wait, or copy.
IDLE = frozenset(
    ("bitcast-convert", "tuple", "get-tuple-element", "parameter", "after-all", "add-dependency",
     "opt-barrier", "domain", "copy-start", "copy-done", "get-dimension-size",
     "set-dimension-size", "optimization-barrier")
)  # fmt: skip
#: Opcode to rule.
RULES: dict[str, WorkRule] = {
    "dot": rules.dot,
    "scaled-dot": rules.scaled_dot,
    "ragged-dot": rules.ragged_dot,
    "convolution": rules.convolution,
    "reduce": rules.reduce,
    "reduce-window": rules.reduce_window,
    "select-and-scatter": rules.select_and_scatter,
    "batch-norm-training": rules.batch_norm,
    "batch-norm-grad": rules.batch_norm,
    "batch-norm-inference": rules.batch_norm,
    "sort": rules.sort,
    "topk": rules.top_k,
    "fft": rules.fft,
    "cholesky": rules.cholesky,
    "triangular-solve": rules.triangular_solve,
    "rng": rules.rng,
    "rng-bit-generator": rules.rng,
    "gather": rules.gather,
    "slice": rules.slice_,
    "dynamic-slice": rules.slice_,
    "dynamic-update-slice": rules.dynamic_update_slice,
    "scatter": rules.scatter,
    "fusion": fusion,
    "call": _work_inside,  # inside a fusion: elsewhere calls are taken apart
    "custom-call": custom_call,
}
