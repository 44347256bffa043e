"""The sizes of an HLO instruction that its work depends on (`flint.passes.work.formulas`).

A fusion has the work of what is fused and moves only what crosses its edges. Instructions without a
rule here, whose class does not tell their work, are unpriced: their bytes are known, their work not.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from flint.io.malformed import Malformed
from flint.ir.op_class import ELEMENTWISE, OpClass
from flint.ir.product_types import by_block, grouped
from flint.passes.hlo import shapes
from flint.passes.hlo.module import Computation, HloModule, Instruction
from flint.passes.hlo.op_classes import class_of
from flint.passes.hlo.precision import product_of, product_of_call
from flint.passes.mlir import attention_mask, attention_name, is_attention, is_attention_backward
from flint.passes.work import formulas
from flint.passes.work.declared import ArrayType, KernelCall, declared_in
from flint.passes.work.factorizations import FACTORIZATIONS
from flint.passes.work.hand_written import PALLAS_TARGETS, work_of_call, work_of_kernel
from flint.passes.work.sliding import Sliding, reduced_elements, used_taps
from flint.passes.work.work import Work


@dataclass(frozen=True, slots=True)
class HloOperation:
    """An instruction with its operands, and the module that both are in."""

    instruction: Instruction
    operands: list[Instruction]
    module: HloModule

    @property
    def called(self) -> Computation:
        """The first computation that the instruction runs."""
        return self.module.called(self.instruction)[0]


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


def dot(o: HloOperation) -> Work:
    """2 x batch x m x n x k."""
    return _product(o, o.instruction.dot_dimension_numbers)


def scaled_dot(o: HloOperation) -> Work:
    """A product of operands with scales for blocks of k."""
    found = dot(o)
    return replace(found, product=by_block(found.product))


def ragged_dot(o: HloOperation) -> Work:
    """Each row of the left side meets one group's matrix: 2 x m x n x k."""
    lhs = list(o.operands[0].shape.dimensions)
    numbers = o.instruction.ragged_dot_dimension_numbers.dot_dimension_numbers
    k = math.prod(lhs[d] for d in numbers.lhs_contracting_dimensions)
    result = list(o.instruction.shape.dimensions)
    m = math.prod(lhs) // max(k, 1)
    n = math.prod(result) // max(m, 1)
    groups = list(o.operands[2].shape.dimensions)[-1]
    name = grouped(product_of(o), groups, sums=len(result) == len(lhs) + 1)
    return formulas.product(1, m, n, k, product=name)


def _product(o: HloOperation, numbers: Any) -> Work:
    lhs, rhs = list(o.operands[0].shape.dimensions), list(o.operands[1].shape.dimensions)
    batch = math.prod(lhs[d] for d in numbers.lhs_batch_dimensions)
    k = math.prod(lhs[d] for d in numbers.lhs_contracting_dimensions)
    m = math.prod(lhs) // max(batch * k, 1)
    n = math.prod(rhs) // max(batch * k, 1)
    return formulas.product(batch, m, n, k, product=product_of(o))


def convolution(o: HloOperation) -> Work:
    """`formulas.convolution`, with the window elements that meet an element."""
    used, taps = used_taps(_slidings(o))
    shape, kernel = o.instruction.shape, o.operands[1].shape
    return _convolution(o, shape, kernel, used=used, taps=taps)


def _slidings(o: HloOperation) -> list[Sliding]:
    """The spatial dimensions of a convolution."""
    numbers, instruction = o.instruction.convolution_dimension_numbers, o.instruction
    inputs, outputs = o.operands[0].shape.dimensions, instruction.shape.dimensions
    return [
        _sliding(window, inputs[i], outputs[r])
        for window, i, r in zip(
            instruction.window.dimensions,
            numbers.input_spatial_dimensions,
            numbers.output_spatial_dimensions,
            strict=False,
        )
    ]


def _sliding(window: Any, inputs: int, outputs: int) -> Sliding:
    return Sliding(
        window.size,
        inputs,
        outputs,
        max(window.stride, 1),
        window.padding_low,
        window.padding_high,
        max(window.base_dilation, 1),
        max(window.window_dilation, 1),
    )


def _convolution(
    o: HloOperation, result: Any, kernel: Any, *, used: int = 1, taps: int = 1
) -> Work:
    numbers = o.instruction.convolution_dimension_numbers
    sizes, out = list(kernel.dimensions), list(result.dimensions)
    k = math.prod(sizes[d] for d in numbers.kernel_spatial_dimensions)
    k *= sizes[numbers.kernel_input_feature_dimension]
    features = out[numbers.output_feature_dimension]
    positions = math.prod(out) // max(features, 1)
    groups = max(o.instruction.feature_group_count, 1) * max(o.instruction.batch_group_count, 1)
    return formulas.convolution(
        positions, features, k, groups, product=product_of(o), used=used, taps=taps
    )


def reduce(o: HloOperation) -> Work:
    """The body runs for each input element."""
    rows = math.prod(shapes.first(o.instruction.shape)[1])
    return formulas.reduction(shapes.num_elements(o.operands[0].shape), rows, _body_operations(o))


def reduce_window(o: HloOperation) -> Work:
    """The body runs for each element of a window that its neighbours do not know."""
    result = shapes.first(o.instruction.shape)[1]
    inputs = shapes.first(o.operands[0].shape)[1]
    reduced = reduced_elements(map(_sliding, o.instruction.window.dimensions, inputs, result))
    return formulas.windows(math.prod(result), *reduced, _body_operations(o))


def select_and_scatter(o: HloOperation) -> Work:
    """The source is the second operand."""
    window = math.prod(d.size for d in o.instruction.window.dimensions)
    return formulas.select_and_scatter(shapes.num_elements(o.operands[1].shape), window)


def batch_norm(o: HloOperation) -> Work:
    """Training, inference and the gradient."""
    return formulas.batch_norm(shapes.num_elements(o.operands[0].shape))


def sort(o: HloOperation) -> Work:
    """Along the sorted dimension."""
    sizes = shapes.first(o.operands[0].shape)[1]
    dimensions = list(o.instruction.dimensions)
    length = sizes[dimensions[0]] if dimensions and sizes else 1
    return formulas.sort(math.prod(sizes), length)


def top_k(o: HloOperation) -> Work:
    """Along the last dimension."""
    sizes = shapes.first(o.operands[0].shape)[1]
    return formulas.top_k(math.prod(sizes), sizes[-1] if sizes else 1, o.instruction.k)


def fft(o: HloOperation) -> Work:
    """Of real numbers the side that has more of them is counted."""
    sides = (o.operands[0].shape, o.instruction.shape)
    return formulas.fft(max(map(shapes.num_elements, sides)), o.instruction.fft_length)


def cholesky(o: HloOperation) -> Work:
    """Of each matrix of the batch."""
    *batch, n, _ = o.operands[0].shape.dimensions
    return formulas.cholesky(math.prod(batch), n)


def triangular_solve(o: HloOperation) -> Work:
    """Of all right-hand sides."""
    n = o.operands[0].shape.dimensions[-1]
    return formulas.triangular_solve(shapes.num_elements(o.operands[1].shape), n)


def rng(o: HloOperation) -> Work:
    """All results together."""
    return formulas.random(shapes.num_bytes(o.instruction.shape))


def gather(o: HloOperation) -> Work:
    """Indices are the second operand."""
    result, indices = o.instruction.shape, o.operands[1].shape
    numbers = o.instruction.gather_dimension_numbers
    row = math.prod(result.dimensions[d] for d in numbers.offset_dims)
    elements = shapes.num_elements(result)
    return formulas.gather(shapes.num_bytes(result), shapes.num_bytes(indices), elements, row)


def slice_(o: HloOperation) -> Work:
    """What it returns."""
    return formulas.slice_(shapes.num_bytes(o.instruction.shape))


def dynamic_update_slice(o: HloOperation) -> Work:
    """The update is the second operand."""
    return formulas.update_slice(shapes.num_bytes(o.operands[1].shape))


def scatter(o: HloOperation) -> Work:
    """A scatter without arithmetic in its body adds nothing."""
    results = len(shapes.leaves(o.instruction.shape))
    updates = [u.shape for u in o.operands[results + 1 :]]
    windows = o.instruction.scatter_dimension_numbers.update_window_dims
    row = math.prod(updates[0].dimensions[d] for d in windows)
    elements, written = (sum(map(f, updates)) for f in (shapes.num_elements, shapes.num_bytes))
    adds = elements if _body_operations(o, least=0) else 0
    indices = shapes.num_bytes(o.operands[results].shape)
    return formulas.scatter(adds, written, indices, elements, row)


def _body_operations(o: HloOperation, least: int = 1) -> int:
    """Arithmetic instructions in the body of a reduction."""
    idle = ("parameter", "constant", "tuple", "get-tuple-element")
    count = sum(i.opcode not in idle for i in o.called.instructions)
    return max(count, least)


def fusion(o: HloOperation) -> Work:
    """The work of what is fused; bytes are those that cross its edges.

    A parameter of which the fused computation only reads slices counts those slices; a result
    that is updated in place counts the update.
    """
    written, in_place = _written(o)
    return replace(_work_inside(o), operand_bytes=_read(o), result_bytes=written, in_place=in_place)


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
    """How many elements of what is calculated inside of a fusion its results need.

    Code is made for each element of a result, so that a slice of a value needs that part of what
    leads to the value. What is updated in place is not read.
    """

    def __init__(self, o: HloOperation) -> None:
        self._module = o.module
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
            return 0
        if user.opcode in ("fusion", "call"):
            return self._read_inside(user, position)
        one_by_one = user.opcode in _ONE_BY_ONE or class_of(user.opcode) in ELEMENTWISE
        if one_by_one or (position == 0 and user.opcode in _OF_A_PART):
            return self.of(user)
        return whole

    def _read_inside(self, user: Instruction, position: int) -> int:
        """Elements of an operand that a fusion inside of the fusion needs for what it is asked."""
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


def custom_call(o: HloOperation) -> Work:
    """cuBLAS and cuDNN calls are priced from shapes, others by the estimate that they carry."""
    target, config = o.instruction.custom_call_target, backend_config(o.instruction)
    if target in FREE_TARGETS:
        return Work(operand_bytes=0, result_bytes=0)
    called = f"custom_call.{target}"
    if target in _HALVES:
        return Work(op=OpClass.COPY, called=called)
    if target in FACTORIZATIONS and o.operands and len(o.operands[0].shape.dimensions) > 1:
        *batch, m, n = o.operands[0].shape.dimensions
        return replace(FACTORIZATIONS[target](math.prod(batch), m, n), called=called)
    gemm = _table(config, "gemm_backend_config") or config
    if "dot_dimension_numbers" in gemm and len(o.operands) > 1:
        work = _product(o, _JsonDims(gemm["dot_dimension_numbers"], o.operands[0]))
        return replace(work, product=product_of_call(o, gemm), called=called)
    if target.startswith("__cudnn$conv") and len(o.operands) > 1:
        return replace(_cudnn_convolution(o), called=called)
    if is_attention(target) and len(o.operands) > 2:
        mask = attention_mask(target, config)
        work = _attention(o, backward=is_attention_backward(target))
        called = attention_name(target, mask)
        return replace(work, mask=mask, called=called)
    estimate, attributes = declared_in(config)
    call = KernelCall(_arrays(o.operands), _arrays([o.instruction]), attributes or config)
    if target in PALLAS_TARGETS:
        return work_of_kernel(_kernel_name(o, config), call, estimate)
    return work_of_call(target, call, estimate)


def _arrays(instructions: list[Instruction]) -> tuple[ArrayType, ...]:
    return tuple(
        ArrayType(dimensions, dtype, shapes.num_bytes(leaf))
        for instruction in instructions
        for leaf in shapes.leaves(instruction.shape)
        for dtype, dimensions in [shapes.first(leaf)]
    )


def _kernel_name(o: HloOperation, config: dict[str, Any]) -> str:
    """Flint's own lowering writes it down; XLA keeps it as a scope, or names the call by it."""
    scopes = o.instruction.metadata.op_name.split("/")
    inner = scopes[-2] if scopes[-1] == "pallas_call" and len(scopes) > 2 else ""
    own = o.instruction.name.split(".")[0]
    return str(config.get("name", "")) or inner.strip("()") or own


class _JsonDims:
    """Dot dimension numbers as JSON writes them: lists of decimal strings, of dimensions of `lhs`."""

    def __init__(self, document: object, lhs: Instruction) -> None:
        self._document = document if isinstance(document, dict) else {}
        self._of = [str(d) for d, _ in enumerate(lhs.shape.dimensions)]

    def __getattr__(self, name: str) -> list[int]:
        numbers = self._document.get(name, [])
        if not isinstance(numbers, list) or not all(str(d) in self._of for d in numbers):
            raise Malformed(f"a product has {name} {str(numbers)[:40]} of {len(self._of)}")
        return [int(d) for d in numbers]


def _cudnn_convolution(o: HloOperation) -> Work:
    """All three directions do the multiply-adds of the forward convolution."""
    result = shapes.leaves(o.instruction.shape)[0]
    lhs, rhs = o.operands[0].shape, o.operands[1].shape
    target = o.instruction.custom_call_target
    if target == "__cudnn$convBackwardInput":
        return _convolution(o, lhs, rhs)
    if target == "__cudnn$convBackwardFilter":
        return _convolution(o, rhs, result)
    return _convolution(o, result, rhs)


def _attention(o: HloOperation, *, backward: bool) -> Work:
    """Queries and keys are (batch, heads, sequence, size) in Flint's own calls. In cuDNN's they may
    also be (batch, sequence, heads, size): the longer of the two middle dimensions of the keys is
    taken for their sequence.
    """
    query, key, value = (v.shape.dimensions for v in o.operands[:3])
    if len(query) != 4 or len(key) != 4 or not value:
        return Work(unpriced=True, product=product_of(o))
    ours = o.instruction.custom_call_target.startswith("flint.")
    keys, queries = (s[2] if ours else max(s[1:3]) for s in (key, query))
    return formulas.attention(
        math.prod(query[:-1]) // max(queries, 1),
        queries,
        keys,
        query[-1],
        value[-1],
        backward=backward,
        product=product_of(o),
    )


def backend_config(instruction: Instruction) -> dict[str, Any]:
    """The backend configuration as a JSON object; empty if it is none."""
    try:
        document = json.loads(instruction.backend_config or b"{}")
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _table(config: dict[str, Any], name: str) -> dict[str, Any]:
    """A table inside of a configuration; empty if it is none."""
    found = config.get(name)
    return found if isinstance(found, dict) else {}


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
#: Custom calls that are annotations, or (`ConcatBitcast`) name slices that were copied side by side,
#: and do not run.
FREE_TARGETS = frozenset(
    {"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "annotate_device_placement",
     "LayoutConstraint", "AllocateBuffer", "CreateBuffer", "AssumeGatherIndicesInBound",
     "GatherScatterIndicesBitpacked", "PrepareAsyncCallStart", "PrepareAsyncCallDone",
     "ConcatBitcast"}
)  # fmt: skip
#: What TPUs do with integers of 64 bits: the two halves are arrays of their own.
_HALVES = frozenset({"X64SplitHigh", "X64SplitLow", "X64Combine"})
#: Opcode to rule.
RULES: dict[str, WorkRule] = {
    "dot": dot,
    "scaled-dot": scaled_dot,
    "ragged-dot": ragged_dot,
    "convolution": convolution,
    "reduce": reduce,
    "reduce-window": reduce_window,
    "select-and-scatter": select_and_scatter,
    "batch-norm-training": batch_norm,
    "batch-norm-grad": batch_norm,
    "batch-norm-inference": batch_norm,
    "sort": sort,
    "topk": top_k,
    "fft": fft,
    "cholesky": cholesky,
    "triangular-solve": triangular_solve,
    "rng": rng,
    "rng-bit-generator": rng,
    "gather": gather,
    "slice": slice_,
    "dynamic-slice": slice_,
    "dynamic-update-slice": dynamic_update_slice,
    "scatter": scatter,
    "fusion": fusion,
    "call": _work_inside,  # inside of a fusion: elsewhere calls are taken apart
    "custom-call": custom_call,
}
