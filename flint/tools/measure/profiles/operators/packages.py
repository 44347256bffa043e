"""Operators of serving engines (vLLM, SGLang, AITER, FlashAttention): work that shapes tell.

What depends on numbers that a profile does not have (lengths of contexts, experts chosen) has no
work here; such calls are unpriced, and measured all the same.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace

from flint.ir.dims import ReductionDims
from flint.ir.op_class import OpClass
from flint.ir.product_types import product_type
from flint.passes.work import formulas
from flint.passes.work.work import Work
from flint.tools.measure.profiles.operators.arguments import GivenTensor
from flint.tools.measure.profiles.operators.call import CallEffects, Form, OperatorCall, tensor

#: Operations for each element: mean of squares, scale, weight; one more to add a residual.
_RMS_NORM = 4
#: silu of one half times the other: exponential, sum, quotient, product.
_ACTIVATION = 4
#: Scale, limit twice, convert; its largest number first where the scale is found.
_QUANTIZE, _QUANTIZE_DYNAMIC = 3, 5
#: Two products and a sum for each of two numbers that are turned together.
_ROTATE = 3


def _elements(t: GivenTensor) -> int:
    return math.prod(t.shape)


def _found(work: Work, read: Sequence[GivenTensor], stored: Sequence[GivenTensor]) -> CallEffects:
    """What a call does whose bytes are those of what it reads and stores."""
    operands, results = (sum(t.num_bytes for t in side) for side in (read, stored))
    said = replace(work, operand_bytes=operands, result_bytes=results)
    return CallEffects(tuple(read), tuple(stored), (), {}, said)


def rms_norm(call: OperatorCall) -> CallEffects | None:
    """`rms_norm(out, input, weight, eps)`; some have no result argument."""
    data = call.given.tensors
    if len(data) < 2 or not data[0].shape:
        return None
    out, given, *rest = data if len(data) > 2 else (data[0], *data)
    rows = _elements(given) // max(given.shape[-1] if given.shape else 1, 1)
    work = Work(
        flops=_RMS_NORM * _elements(given), op=OpClass.NORM,
        dims=ReductionDims(rows, given.shape[-1] if given.shape else 1).row,
    )  # fmt: skip
    return _found(work, (given, *rest), (tensor(given.shape, out.dtype),))


def added_rms_norm(call: OperatorCall) -> CallEffects | None:
    """`fused_add_rms_norm(input, residual, weight, eps)`: both are read and written."""
    data = call.given.tensors
    if len(data) < 2 or not data[0].shape:
        return None
    given = data[0]
    rows = _elements(given) // max(given.shape[-1], 1)
    work = Work(
        flops=(_RMS_NORM + 1) * _elements(given), op=OpClass.NORM,
        dims=ReductionDims(rows, given.shape[-1]).row,
    )  # fmt: skip
    return _found(work, data, data[:2])


def activation(call: OperatorCall) -> CallEffects:
    """`silu_and_mul(out, input)`: the input is twice as wide."""
    out, given = sorted(call.given.tensors[:2], key=_elements)
    work = Work(flops=_ACTIVATION * _elements(out), op=OpClass.FUNCTION)
    return _found(work, (given,), (out,))


def quantization(call: OperatorCall) -> CallEffects:
    """`static_scaled_fp8_quant(out, input, scale)` and kin."""
    out, given, *scales = call.given.tensors
    each = _QUANTIZE if "static" in call.base else _QUANTIZE_DYNAMIC
    work = Work(flops=each * _elements(given), op=OpClass.CONVERT)
    return _found(work, (given, *scales[:1]), (out,))


def rotary(call: OperatorCall) -> CallEffects | None:
    """`rotary_embedding(positions, query, key, head size, cosines and sines, neox)`, in place."""
    positions, *turned = call.given.tensors[:3]
    if len(turned) < 2:
        return None
    work = Work(flops=_ROTATE * sum(map(_elements, turned)), op=OpClass.ARITHMETIC)
    return _found(work, (positions, *turned), turned)


def cache_write(call: OperatorCall) -> CallEffects:
    """`reshape_and_cache(key, value, caches ..., slots, ...)`: keys and values go into pages."""
    keys, values, key_cache, value_cache, slots, *_ = call.given.tensors
    stored = [tensor(t.shape, c.dtype) for t, c in ((keys, key_cache), (values, value_cache))]
    return _found(Work(op=OpClass.SCATTER), (keys, values, slots), stored)


def flash_attention(call: OperatorCall) -> CallEffects | None:
    """(queries, keys, values, ...), (batch, sequence, heads, size): FlashAttention's own operators."""
    data = call.given.tensors
    if len(data) < 3 or any(len(t.shape) != 4 for t in data[:3]):
        return None
    backward = "bwd" in call.base or "backward" in call.base
    q, k, v = data[1:4] if backward and len(data) > 3 and len(data[3].shape) == 4 else data[:3]
    work = formulas.attention(
        1, _elements(q) // max(q.shape[-1], 1), k.shape[1], q.shape[-1], v.shape[-1],
        backward=backward, product=product_type([q.dtype, k.dtype]),
    )  # fmt: skip
    made = (q, k, v) if backward else (tensor((*q.shape[:-1], v.shape[-1]), q.dtype),)
    op = OpClass.ATTENTION_BACKWARD if backward else OpClass.ATTENTION
    return _found(replace(work, op=op), data if backward else data[:3], made)


def scaled_product(call: OperatorCall) -> CallEffects | None:
    """`cutlass_scaled_mm(out (m, n), a (m, k), b (k, n), scales ...)` and kin."""
    out, left, right, *_ = (t for t in call.given.tensors if len(t.shape) == 2)
    if left.shape[0] != out.shape[0] or left.shape[1] not in right.shape:
        return None
    (m, n), k = out.shape, left.shape[1]
    work = formulas.product(1, m, n, k, product=product_type([left.dtype, right.dtype]))
    return _found(replace(work, op=OpClass.MATMUL), (left, right), (out,))


def compiled(call: OperatorCall) -> CallEffects:
    """Inductor's kernels: all arrays are arguments, each read or written once; work is not known."""
    data = call.given.tensors
    moved = sum(t.num_bytes for t in data)
    largest = max(data, key=_elements)
    work = Work(operand_bytes=moved, result_bytes=0, unpriced=True, op=OpClass.COMPILED)
    return CallEffects(data, (tensor(largest.shape, largest.dtype),), (), {}, work)


#: The first pattern that an operator's whole name holds says what it is.
_FORMS: tuple[tuple[re.Pattern[str], Form], ...] = (
    (re.compile(r"^triton_"), compiled),
    (re.compile(r"fused_add_rms_?norm|add_rms_?norm"), added_rms_norm),
    (re.compile(r"::rms_?norm$"), rms_norm),
    (re.compile(r"(silu|gelu|swiglu|gelu_tanh)_and_mul$|act_and_mul"), activation),
    (re.compile(r"(static|dynamic)\w*_quant$|_quant_fp8$|per_token\w*quant"), quantization),
    (re.compile(r"rotary_embedding|apply_rope|rope_fwd"), rotary),
    (re.compile(r"reshape_and_cache"), cache_write),
    (re.compile(r"scaled_mm(_azp)?$|gemm_a8w8$|fp8_scaled_mm$"), scaled_product),
    (re.compile(r"(flash_attn\w*::|aiter::)\w*(fwd|bwd|forward|backward)\w*$"), flash_attention),
)


def form_of(name: str) -> Form | None:
    """How an operator outside PyTorch is read, by its whole name (`_C::rms_norm`)."""
    if name.startswith("aten::"):
        return None
    return next((form for pattern, form in _FORMS if pattern.search(name)), None)
