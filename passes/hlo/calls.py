"""The work of custom calls: of libraries by their shapes, of others by the estimate that they carry."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

from flint.errors import Malformed
from flint.ir.op_class import OpClass
from flint.ir.product_types import by_block
from flint.passes.hlo import shapes
from flint.passes.hlo.instruction_work import (
    HloOperation,
    convolution_with,
    product_with,
    triangular_solve,
)
from flint.passes.hlo.module import Instruction
from flint.passes.hlo.precision import product_of, product_of_call
from flint.passes.mlir import attention_mask, attention_name, is_attention, is_attention_backward
from flint.passes.work import formulas
from flint.passes.work.declared import KERNEL_NAME, SAID, ArrayType, KernelCall, declared_in
from flint.passes.work.formulas import FACTORIZATIONS
from flint.passes.work.hand_written import BLOCKS, PALLAS_TARGETS, work_of_call, work_of_kernel
from flint.passes.work.host_copies import (
    CALLBACK,
    CALLBACK_TARGET,
    LOAD,
    MOVES,
    OPCODES,
    PLACEMENTS,
    STORE,
)
from flint.passes.work.work import Work

#: Custom calls that are annotations, or (`ConcatBitcast`) name slices that were copied side by side,
#: and do not run.
FREE_TARGETS = frozenset(
    {"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape",
     "LayoutConstraint", "AllocateBuffer", "CreateBuffer", "AssumeGatherIndicesInBound",
     "GatherScatterIndicesBitpacked", "PrepareAsyncCallStart", "PrepareAsyncCallDone",
     "ConcatBitcast"}
)  # fmt: skip
_PLACED = {
    **dict.fromkeys((STORE, "MoveToHost", MOVES[OpClass.TO_HOST]), OpClass.TO_HOST),
    **dict.fromkeys((LOAD, "MoveToDevice", MOVES[OpClass.FROM_HOST]), OpClass.FROM_HOST),
}
#: What TPUs do with integers of 64 bits: the two halves are arrays of their own.
_HALVES = frozenset({"X64SplitHigh", "X64SplitLow", "X64Combine"})


def _top_k(o: HloOperation) -> Work:
    """Along the last dimension; how many are taken is that of the results."""
    (*_, size), (*_, taken) = (shapes.first(v.shape)[1] for v in (o.operands[0], o.instruction))
    return formulas.top_k(shapes.num_elements(o.operands[0].shape), size, taken)


#: Calls of libraries that are an operation of HLO, which the compiler for GPUs writes for it.
_LIKE_OPERATIONS = {
    "__cublas$triangularSolve": (2, OpClass.SOLVE, triangular_solve),
    "__gpu$TopK": (1, OpClass.TOP_K, _top_k),
    "TopK": (1, OpClass.TOP_K, _top_k),
}


def custom_call(o: HloOperation) -> Work:
    """cuBLAS and cuDNN calls are priced from shapes, others by the estimate that they carry."""
    target, config = o.instruction.custom_call_target, backend_config(o.instruction)
    if target in FREE_TARGETS:
        return Work(operand_bytes=0, result_bytes=0)
    placed, called = _placement(o.instruction), f"custom_call.{target}"
    if placed is not None:
        return Work(op=placed, called=OPCODES[placed])
    if target.startswith(CALLBACK_TARGET):
        return Work(op=OpClass.HOST_VALUE, called=CALLBACK, operand_bytes=0, result_bytes=0)
    if target in _HALVES:
        return Work(op=OpClass.COPY, called=called)
    if target in FACTORIZATIONS and o.operands and len(o.operands[0].shape.dimensions) > 1:
        *batch, m, n = o.operands[0].shape.dimensions
        return replace(FACTORIZATIONS[target](math.prod(batch), m, n), called=called)
    operands, op, work_of = _LIKE_OPERATIONS.get(target, (0, None, None))
    if work_of and len(o.operands) >= operands:
        return replace(work_of(o), op=op, called=called)
    if target == formulas.SCALED_DOT and len(o.operands) > 1:
        return replace(_scaled_product(o), called=called)
    gemm = _table(config, "gemm_backend_config") or config
    if "dot_dimension_numbers" in gemm and len(o.operands) > 1:
        work = product_with(o, _JsonDims(gemm["dot_dimension_numbers"], o.operands[0]))
        return replace(work, product=product_of_call(o, gemm), called=called)
    if target.startswith("__cudnn$conv") and len(o.operands) > 1:
        return replace(_cudnn_convolution(o), op=OpClass.CONVOLUTION, called=called)
    if is_attention(target) and len(o.operands) > 2:
        mask = attention_mask(target, config)
        work = _attention(o, backward=is_attention_backward(target))
        called = attention_name(target, mask)
        return replace(work, mask=mask, called=called)
    estimate, attributes = declared_in(config)
    given = {**_said(o.instruction), **(attributes or config)}
    call = KernelCall(_arrays(o.operands), _arrays([o.instruction]), given)
    if target in PALLAS_TARGETS:
        return work_of_kernel(_kernel_name(o, given), call, estimate)
    return work_of_call(target, call, estimate)


def _scaled_product(o: HloOperation) -> Work:
    """Operands are (batch, m, k) and (batch, n, k)."""
    batch, m, k = o.operands[0].shape.dimensions
    n = o.operands[1].shape.dimensions[1]
    work = formulas.product(batch, m, n, k, product=by_block(product_of(o)))
    return replace(work, op=OpClass.MATMUL)


def _placement(i: Instruction) -> OpClass | None:
    """What a call does that moves a value to the host or to the device; None of anything else."""
    if i.custom_call_target != PLACEMENTS[0]:
        return _PLACED.get(i.custom_call_target)
    on_host = "host" in _frontend(i).get("_xla_buffer_placement", "")
    return OpClass.TO_HOST if on_host else OpClass.FROM_HOST


def _arrays(instructions: list[Instruction]) -> tuple[ArrayType, ...]:
    return tuple(
        ArrayType(dimensions, dtype, shapes.num_bytes(leaf))
        for instruction in instructions
        for leaf in shapes.leaves(instruction.shape)
        for dtype, dimensions in [shapes.first(leaf)]
    )


def _said(i: Instruction) -> dict[str, Any]:
    """What a call was given by name before it was partitioned, and the blocks of its mask."""
    frontend = _frontend(i)
    said: dict[str, Any] = json.loads(frontend.get(SAID, "{}"))
    return said | {name: frontend[name] for name in (BLOCKS,) if name in frontend}


def _frontend(i: Instruction) -> dict[str, str]:
    return {a.key: a.value for a in i.frontend_attributes.map}


def _kernel_name(o: HloOperation, given: dict[str, Any]) -> str:
    """Mosaic's, or what Flint's own lowering writes down; XLA keeps it as a scope, or names the call by it."""
    if KERNEL_NAME in given:
        return str(given[KERNEL_NAME])
    scopes = o.instruction.metadata.op_name.split("/")
    inner = scopes[-2] if scopes[-1] == "pallas_call" and len(scopes) > 2 else ""
    own = o.instruction.name.split(".")[0]
    return str(given.get("name", "")) or inner.strip("()") or own


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
        return convolution_with(o, lhs, rhs)
    if target == "__cudnn$convBackwardFilter":
        return convolution_with(o, rhs, result)
    return convolution_with(o, result, rhs)


def _attention(o: HloOperation, *, backward: bool) -> Work:
    """Queries and keys are (batch, heads, sequence, size) in Flint's own calls. In cuDNN's they may
    also be (batch, sequence, heads, size): the configuration says so, or the longer of the two middle
    dimensions of the keys is taken for their sequence.
    """
    query, key, value = (v.shape.dimensions for v in o.operands[:3])
    if len(query) != 4 or len(key) != 4 or not value:
        return Work(unpriced=True, product=product_of(o))
    config = _table(backend_config(o.instruction), "cudnn_fmha_backend_config")
    batch = _table(config, "bmm1_dot_dimension_numbers").get("lhs_batch_dimensions")
    heads_first = o.instruction.custom_call_target.startswith("flint.") or batch == ["0", "1"]
    known = 2 if heads_first else 1 if batch else 0
    keys, queries = (s[known] if known else max(s[1:3]) for s in (key, query))
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
    """A table inside a configuration; empty if it is none."""
    found = config.get(name)
    return found if isinstance(found, dict) else {}
