"""What one HLO instruction costs to run: floating-point operations, GEMM dimensions, bytes.

The same counts as for StableHLO: a multiply-add is 2, elementwise arithmetic 1 for each result
element, moving and converting data 0. A fusion has the work of what is fused and moves only what
crosses its edges. Instructions without a rule are unpriced: their bytes are known, their work not.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from flint.ir.op_class import DATA_MOVEMENT, ELEMENTWISE, GENERATED, LAYOUT, OpClass
from flint.passes.hlo import shapes
from flint.passes.hlo.module import Computation, HloModule, Instruction
from flint.passes.hlo.op_classes import class_of
from flint.passes.hlo.precision import product_of, product_of_call
from flint.passes.mlir import attention_name, is_attention, is_attention_backward, mask_in_config
from flint.passes.work.fourier import fft_work
from flint.passes.work.hand_written import PALLAS_TARGETS, Array, declared_work, work_of_kernel
from flint.passes.work.sliding import Sliding, used_taps
from flint.passes.work.work import Work


@dataclass(frozen=True, slots=True)
class Operation:
    """An instruction with its operands, and the module that both are in."""

    instruction: Instruction
    operands: list[Instruction]
    module: HloModule

    @property
    def called(self) -> Computation:
        """The first computation that the instruction runs."""
        return self.module.called(self.instruction)[0]


WorkRule = Callable[[Operation], Work]


def work_of(instruction: Instruction, computation: Computation, module: HloModule) -> Work:
    """The work of an instruction of `computation`; `unpriced` is set where no rule knows it."""
    rule = RULES.get(instruction.opcode)
    if rule is not None:
        return rule(Operation(instruction, module.operands(computation, instruction), module))
    op = class_of(instruction.opcode)
    if op in NO_ARITHMETIC or instruction.opcode in IDLE:
        return Work()
    if op in ELEMENTWISE:
        return Work(flops=shapes.num_elements(instruction.shape))
    return Work(unpriced=True)


def dot(o: Operation) -> Work:
    """2 x batch x m x n x k."""
    return _product(o, o.instruction.dot_dimension_numbers)


def ragged_dot(o: Operation) -> Work:
    """Each row of the left side meets one group's matrix: 2 x m x n x k."""
    lhs = list(o.operands[0].shape.dimensions)
    numbers = o.instruction.ragged_dot_dimension_numbers.dot_dimension_numbers
    k = math.prod(lhs[d] for d in numbers.lhs_contracting_dimensions)
    result = list(o.instruction.shape.dimensions)
    m = math.prod(lhs) // max(k, 1)
    n = math.prod(result) // max(m, 1)
    return Work(flops=2 * m * n * k, dims=(1, m, n, k), product=product_of(o))


def _product(o: Operation, numbers: Any) -> Work:
    lhs, rhs = list(o.operands[0].shape.dimensions), list(o.operands[1].shape.dimensions)
    batch = math.prod(lhs[d] for d in numbers.lhs_batch_dimensions)
    k = math.prod(lhs[d] for d in numbers.lhs_contracting_dimensions)
    m = math.prod(lhs) // max(batch * k, 1)
    n = math.prod(rhs) // max(batch * k, 1)
    return Work(flops=2 * batch * m * n * k, dims=(batch, m, n, k), product=product_of(o))


def convolution(o: Operation) -> Work:
    """As implicit GEMM: m = output positions, n = output features, k = window x input features."""
    found = _convolution(o.instruction, o.instruction.shape, o.operands[1].shape)
    dense = replace(found, product=product_of(o))
    used, all_taps = used_taps(_slidings(o))
    if used == all_taps or not all_taps:
        return dense
    batch, m, n, k = dense.dims
    return replace(
        dense,
        flops=dense.flops * used // all_taps,
        dims=(batch, m, n, -(-k * used // all_taps)),
    )


def _slidings(o: Operation) -> list[Sliding]:
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


def _convolution(instruction: Instruction, result: Any, kernel: Any) -> Work:
    numbers = instruction.convolution_dimension_numbers
    sizes, out = list(kernel.dimensions), list(result.dimensions)
    k = math.prod(sizes[d] for d in numbers.kernel_spatial_dimensions)
    k *= sizes[numbers.kernel_input_feature_dimension]
    features = out[numbers.output_feature_dimension]
    positions = math.prod(out) // max(features, 1)
    groups = max(instruction.feature_group_count, 1) * max(instruction.batch_group_count, 1)
    split = max(min(groups, features), 1)
    return Work(flops=2 * positions * features * k, dims=(split, positions, features // split, k))


def reduce(o: Operation) -> Work:
    """One operation of the body for each input element; dims are (1, rows, 1, reduced)."""
    elements = shapes.num_elements(o.operands[0].shape)
    rows = max(math.prod(shapes.first(o.instruction.shape)[1]), 1)
    dims = (1, rows, 1, max(elements // rows, 1))
    return Work(flops=elements * _body_operations(o), dims=dims)


def reduce_window(o: Operation) -> Work:
    """Window size operations of the body for each result element; one where it runs along."""
    result = shapes.first(o.instruction.shape)[1]
    inputs = shapes.first(o.operands[0].shape)[1]
    slidings = map(_sliding, o.instruction.window.dimensions, inputs, result)
    window = math.prod(1 if s.is_running else s.size for s in slidings)
    elements = math.prod(result)
    return Work(flops=elements * window * _body_operations(o), dims=(1, elements, 1, window))


def select_and_scatter(o: Operation) -> Work:
    """One comparison for each window element of each source element, and one addition."""
    window = math.prod(d.size for d in o.instruction.window.dimensions)
    return Work(flops=shapes.num_elements(o.operands[1].shape) * (window + 1))


def batch_norm(o: Operation) -> Work:
    """About eight operations an element: mean, variance, scale and shift (two passes)."""
    return Work(flops=8 * shapes.num_elements(o.operands[0].shape))


def sort(o: Operation) -> Work:
    """n log2 n comparisons along the sorted dimension."""
    sizes = shapes.first(o.operands[0].shape)[1]
    dimensions = list(o.instruction.dimensions)
    length = sizes[dimensions[0]] if dimensions and sizes else 1
    rows = math.prod(sizes) // max(length, 1)
    steps = max(math.ceil(math.log2(max(length, 2))), 1)
    return Work(flops=rows * length * steps, dims=(1, rows, 1, length))


def top_k(o: Operation) -> Work:
    """One comparison for each element and each doubling of k."""
    sizes = shapes.first(o.operands[0].shape)[1]
    steps = max(math.ceil(math.log2(max(o.instruction.k, 2))), 1)
    rows = math.prod(sizes[:-1])
    return Work(flops=math.prod(sizes) * steps, dims=(1, rows, 1, sizes[-1] if sizes else 1))


def fft(o: Operation) -> Work:
    """5 n log2 n for each transform of length n (Cooley-Tukey)."""
    *outer, last = o.instruction.fft_length
    elements = max(
        shapes.num_elements(o.operands[0].shape), shapes.num_elements(o.instruction.shape)
    )
    return fft_work(elements, math.prod(outer), last)


def cholesky(o: Operation) -> Work:
    """n^3 / 3 for each matrix (Golub and Van Loan, section 4.2)."""
    *batch, n, _ = o.operands[0].shape.dimensions
    return Work(flops=math.prod(batch) * n**3 // 3)


def triangular_solve(o: Operation) -> Work:
    """n^2 x right-hand sides for each matrix (Golub and Van Loan, section 3.1)."""
    n = o.operands[0].shape.dimensions[-1]
    return Work(flops=shapes.num_elements(o.operands[1].shape) * n)


def rng(o: Operation) -> Work:
    """About ten integer operations for each 32-bit word (Philox 4x32: 10 rounds for 4 words)."""
    return Work(flops=10 * shapes.num_bytes(o.instruction.shape) // 4)


def gather(o: Operation) -> Work:
    """Reads what it returns, and the indices; never the whole operand."""
    read = shapes.num_bytes(o.instruction.shape) + shapes.num_bytes(o.operands[1].shape)
    return Work(operand_bytes=read)


def slice_(o: Operation) -> Work:
    """Reads what it returns."""
    return Work(operand_bytes=shapes.num_bytes(o.instruction.shape))


def dynamic_update_slice(o: Operation) -> Work:
    """Reads and writes the update; the rest of the buffer stays where it is."""
    update = shapes.num_bytes(o.operands[1].shape)
    return Work(operand_bytes=update, result_bytes=update, in_place=True)


def scatter(o: Operation) -> Work:
    """Reads updates, indices and the places written; one operation for each update element."""
    results = len(shapes.leaves(o.instruction.shape))
    updates = o.operands[results + 1 :]
    written = sum(shapes.num_bytes(u.shape) for u in updates)
    adds = _body_operations(o, least=0) > 0
    return Work(
        flops=sum(shapes.num_elements(u.shape) for u in updates) if adds else 0,
        operand_bytes=2 * written + shapes.num_bytes(o.operands[results].shape),
        result_bytes=written,
        in_place=True,
    )


def _body_operations(o: Operation, least: int = 1) -> int:
    """Arithmetic instructions in the body of a reduction."""
    idle = ("parameter", "constant", "tuple", "get-tuple-element")
    count = sum(i.opcode not in idle for i in o.called.instructions)
    return max(count, least)


def fusion(o: Operation) -> Work:
    """The work of what is fused; bytes are those that cross its edges.

    A parameter of which the fused computation only reads slices counts those slices; a result
    that is updated in place counts the update.
    """
    written, in_place = _written(o)
    return replace(_work_inside(o), operand_bytes=_read(o), result_bytes=written, in_place=in_place)


def _work_inside(o: Operation) -> Work:
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
        largest = max(inside, key=lambda w: (any(w.dims), w.flops), default=Work())
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


def _read(o: Operation) -> int:
    computation = o.called
    users: dict[int, list[tuple[Instruction, int]]] = {}
    for instruction in computation.instructions:
        for position, operand in enumerate(instruction.operand_ids):
            users.setdefault(operand, []).append((instruction, position))
    total = 0
    for parameter in computation.instructions:
        if parameter.opcode == "parameter":
            reads = [_read_by(u, at, o) for u, at in users.get(parameter.id, [])]
            whole = shapes.num_bytes(parameter.shape)
            total += min(sum(whole if r is None else r for r in reads), whole)
    return total


def _read_by(user: Instruction, position: int, o: Operation) -> int | None:
    """Bytes that `user` reads of its operand at `position`; None for all of it."""
    if position == 0 and user.opcode in ("slice", "dynamic-slice", "gather"):
        return shapes.num_bytes(user.shape)
    if position == 0 and user.opcode == "dynamic-update-slice":
        return 0
    return None


def _written(o: Operation) -> tuple[int, bool]:
    """Bytes that a fusion writes, and whether its result is an operand updated in place."""
    root = o.module.root(o.called)
    if root.opcode == "bitcast":
        root = o.module.operands(o.called, root)[0]
    parts = o.module.operands(o.called, root) if root.opcode == "tuple" else [root]
    works = [work_of(p, o.called, o.module) for p in parts if p.opcode in _UPDATES]
    rest = sum(shapes.num_bytes(p.shape) for p in parts if p.opcode not in _UPDATES)
    written = sum(w.result_bytes or 0 for w in works)
    return written + rest, bool(works) and parts[0].opcode in _UPDATES


def custom_call(o: Operation) -> Work:
    """cuBLAS and cuDNN calls are priced from shapes, others by the estimate that they carry."""
    target, config = o.instruction.custom_call_target, backend_config(o.instruction)
    if target in FREE_TARGETS:
        return Work(operand_bytes=0, result_bytes=0)
    called = f"custom_call.{target}"
    gemm = config.get("gemm_backend_config", config)
    if "dot_dimension_numbers" in gemm and len(o.operands) > 1:
        work = _product(o, _JsonDims(gemm["dot_dimension_numbers"]))
        return replace(work, product=product_of_call(o, gemm), called=called)
    if target.startswith("__cudnn$conv") and len(o.operands) > 1:
        return replace(_cudnn_convolution(o), product=product_of(o), called=called)
    if is_attention(target) and len(o.operands) > 2:
        mask = mask_in_config(config)
        work = _attention(o, backward=is_attention_backward(target))
        called = attention_name(target, mask)
        return replace(work, product=product_of(o), mask=mask, called=called)
    estimate = config.get("custom_call_config", config).get("cost_estimate")
    results = _arrays([o.instruction])
    if target in PALLAS_TARGETS:
        return work_of_kernel(_kernel_name(o, config), _arrays(o.operands), results, estimate)
    return declared_work(called, results, estimate)


def _arrays(instructions: list[Instruction]) -> list[Array]:
    return [
        Array(dimensions, "float" in dtype, shapes.num_bytes(leaf))
        for instruction in instructions
        for leaf in shapes.leaves(instruction.shape)
        for dtype, dimensions in [shapes.first(leaf)]
    ]


def _kernel_name(o: Operation, config: dict[str, Any]) -> str:
    """Flint's own lowering writes it down; XLA keeps it as a scope, or names the call by it."""
    scopes = o.instruction.metadata.op_name.split("/")
    inner = scopes[-2] if scopes[-1] == "pallas_call" and len(scopes) > 2 else ""
    own = o.instruction.name.split(".")[0]
    return str(config.get("name", "")) or inner.strip("()") or own


class _JsonDims:
    """Dot dimension numbers as JSON writes them: lists of decimal strings."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document

    def __getattr__(self, name: str) -> list[int]:
        return [int(d) for d in self._document.get(name, ())]


def _cudnn_convolution(o: Operation) -> Work:
    """All three directions do the multiply-adds of the forward convolution."""
    result = shapes.leaves(o.instruction.shape)[0]
    lhs, rhs = o.operands[0].shape, o.operands[1].shape
    target = o.instruction.custom_call_target
    if target == "__cudnn$convBackwardInput":
        return _convolution(o.instruction, lhs, rhs)
    if target == "__cudnn$convBackwardFilter":
        return _convolution(o.instruction, rhs, result)
    return _convolution(o.instruction, result, rhs)


def _attention(o: Operation, *, backward: bool) -> Work:
    """Two matrix products forward, five backward (FlashAttention, arXiv 2205.14135, app. B).

    Queries and keys are (batch, heads, sequence, size) in Flint's own calls. In cuDNN's they may
    also be (batch, sequence, heads, size): the longer of the two middle dimensions of the keys is
    taken for their sequence.
    """
    query, key, value = (v.shape.dimensions for v in o.operands[:3])
    if len(query) != 4 or len(key) != 4:
        return Work(unpriced=True)
    ours = o.instruction.custom_call_target.startswith("flint.")
    size = query[-1]
    keys, queries = (s[2] if ours else max(s[1:3]) for s in (key, query))
    heads = math.prod(query[:-1]) // max(queries, 1)
    sizes = 3 * size + 2 * value[-1] if backward else size + value[-1]
    op = OpClass.ATTENTION_BACKWARD if backward else OpClass.ATTENTION
    flops = 2 * heads * queries * keys * sizes
    return Work(flops=flops, dims=(heads, queries, keys, size), op=op)


def backend_config(instruction: Instruction) -> dict[str, Any]:
    """The backend configuration as a JSON object; empty if it is none."""
    try:
        document = json.loads(instruction.backend_config or b"{}")
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


#: Window taps of one dimension that are looked at one by one.
#: Instructions that change a part of their first operand.
_UPDATES = ("dynamic-update-slice", "scatter")
#: Instructions that move, make or convert data without arithmetic.
NO_ARITHMETIC = DATA_MOVEMENT | LAYOUT | GENERATED | {OpClass.CONVERT, OpClass.REDUCE_PRECISION}
#: Instructions that name values, wait, or copy.
IDLE = frozenset(
    ("bitcast-convert", "tuple", "get-tuple-element", "parameter", "after-all", "add-dependency",
     "opt-barrier", "domain", "copy-start", "copy-done", "get-dimension-size",
     "set-dimension-size", "optimization-barrier")
)  # fmt: skip
#: Custom calls that are annotations and do not run.
FREE_TARGETS = frozenset(
    {"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "annotate_device_placement",
     "LayoutConstraint", "AllocateBuffer", "CreateBuffer", "AssumeGatherIndicesInBound",
     "GatherScatterIndicesBitpacked"}
)  # fmt: skip
#: Opcode to rule.
RULES: dict[str, WorkRule] = {
    "dot": dot,
    "scaled-dot": dot,
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
