"""Operators of serving engines (vLLM, SGLang, AITER, FlashAttention): work that shapes tell.

What depends on numbers that a profile does not have (lengths of contexts, experts chosen) has no
work here; such calls are unpriced, and measured all the same.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

from flint.ir.dims import ReductionDims
from flint.ir.op_class import OpClass
from flint.ir.product_types import product_type
from flint.passes.work import formulas
from flint.passes.work.work import Work
from flint.tools.measure.profiles.operators.arguments import GivenTensor
from flint.tools.measure.profiles.operators.call import CallEffects, OperatorCall, tensor

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


def _moved(read: Sequence[GivenTensor], stored: Sequence[GivenTensor]) -> tuple[int, int]:
    return sum(t.num_bytes for t in read), sum(t.num_bytes for t in stored)


def _found(
    call: OperatorCall, work: Work, read: Sequence[GivenTensor], stored: Sequence[GivenTensor]
) -> CallEffects:
    operands, results = _moved(read, stored)
    said = Work(
        flops=work.flops, dims=work.dims, product=work.product, mask=work.mask,
        operand_bytes=operands, result_bytes=results, op=work.op,
    )  # fmt: skip
    return CallEffects(tuple(read), tuple(stored), (), {}, said)


def rms_norm(call: OperatorCall) -> CallEffects | None:
    """`rms_norm(out, input, weight, eps)`; some have no result argument."""
    data = _data(call)
    if len(data) < 2 or not data[0].shape:
        return None
    out, given, *rest = data if len(data) > 2 else (data[0], *data)
    rows = _elements(given) // max(given.shape[-1] if given.shape else 1, 1)
    work = Work(
        flops=_RMS_NORM * _elements(given), op=OpClass.NORM,
        dims=ReductionDims(rows, given.shape[-1] if given.shape else 1).row,
    )  # fmt: skip
    return _found(call, work, (given, *rest), (tensor(given.shape, out.dtype),))


def added_rms_norm(call: OperatorCall) -> CallEffects | None:
    """`fused_add_rms_norm(input, residual, weight, eps)`: both are read and written."""
    data = _data(call)
    if len(data) < 2 or not data[0].shape:
        return None
    given = data[0]
    rows = _elements(given) // max(given.shape[-1], 1)
    work = Work(
        flops=(_RMS_NORM + 1) * _elements(given), op=OpClass.NORM,
        dims=ReductionDims(rows, given.shape[-1]).row,
    )  # fmt: skip
    return _found(call, work, data, data[:2])


def activation(call: OperatorCall) -> CallEffects | None:
    """`silu_and_mul(out, input)`: the input is twice as wide."""
    data = sorted(_data(call)[:2], key=_elements)
    if len(data) < 2:
        return None
    out, given = data
    work = Work(flops=_ACTIVATION * _elements(out), op=OpClass.FUNCTION)
    return _found(call, work, (given,), (out,))


def quantization(call: OperatorCall) -> CallEffects | None:
    """`static_scaled_fp8_quant(out, input, scale)` and kin."""
    data = _data(call)
    if len(data) < 2:
        return None
    out, given, *scales = data
    each = _QUANTIZE if "static" in call.base else _QUANTIZE_DYNAMIC
    work = Work(flops=each * _elements(given), op=OpClass.CONVERT)
    return _found(call, work, (given, *scales[:1]), (out,))


def rotary(call: OperatorCall) -> CallEffects | None:
    """`rotary_embedding(positions, query, key, head size, cosines and sines, neox)`, in place."""
    data = _data(call)
    if len(data) < 3:
        return None
    positions, *turned = data[:3]
    work = Work(flops=_ROTATE * sum(map(_elements, turned)), op=OpClass.ARITHMETIC)
    return _found(call, work, (positions, *turned), turned)


def cache_write(call: OperatorCall) -> CallEffects | None:
    """`reshape_and_cache(key, value, caches ..., slots, ...)`: keys and values go into pages."""
    tensors = _data(call)
    if len(tensors) < 5:
        return None
    keys, values, key_cache, value_cache, slots = tensors[:5]
    stored = [tensor(t.shape, c.dtype) for t, c in ((keys, key_cache), (values, value_cache))]
    return _found(call, Work(op=OpClass.SCATTER), (keys, values, slots), stored)


def flash_attention(call: OperatorCall) -> CallEffects | None:
    """(queries, keys, values, ...), (batch, sequence, heads, size): FlashAttention's own operators."""
    data = _data(call)
    if len(data) < 3 or any(len(t.shape) != 4 for t in data[:3]):
        return None
    backward = "bwd" in call.base or "backward" in call.base
    q, k, v = data[1:4] if backward and len(data) > 3 and len(data[3].shape) == 4 else data[:3]
    work = formulas.attention(
        1, _elements(q) // max(q.shape[-1], 1), k.shape[1], q.shape[-1], v.shape[-1],
        backward=backward, product=product_type([q.dtype, k.dtype]),
    )  # fmt: skip
    made = (q, k, v) if backward else (tensor((*q.shape[:-1], v.shape[-1]), q.dtype),)
    said = Work(
        flops=work.flops, dims=work.dims, product=work.product,
        op=OpClass.ATTENTION_BACKWARD if backward else OpClass.ATTENTION,
    )  # fmt: skip
    return _found(call, said, data if backward else data[:3], made)


def scaled_product(call: OperatorCall) -> CallEffects | None:
    """`cutlass_scaled_mm(out (m, n), a (m, k), b (k, n), scales ...)` and kin."""
    data = [t for t in _data(call) if len(t.shape) == 2]
    if len(data) < 3:
        return None
    out, left, right = data[:3]
    if left.shape[0] != out.shape[0] or left.shape[1] not in right.shape:
        return None
    (m, n), k = out.shape, left.shape[1]
    work = formulas.product(1, m, n, k, product=product_type([left.dtype, right.dtype]))
    said = Work(flops=work.flops, dims=work.dims, product=work.product, op=OpClass.MATMUL)
    return _found(call, said, (left, right), (out,))


def compiled(call: OperatorCall) -> CallEffects | None:
    """Inductor's kernels: all arrays are arguments, each read or written once; work is not known."""
    data = _data(call)
    if not data:
        return None
    moved = sum(t.num_bytes for t in data)
    largest = max(data, key=_elements)
    work = Work(operand_bytes=moved, result_bytes=0, unpriced=True, op=OpClass.COMPILED)
    return CallEffects(data, (tensor(largest.shape, largest.dtype),), (), {}, work)


def _data(call: OperatorCall) -> tuple[GivenTensor, ...]:
    return call.given.tensors


#: The first pattern that an operator's whole name holds says what it is.
_FORMS: tuple[tuple[re.Pattern[str], Callable[[OperatorCall], CallEffects | None]], ...] = (
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


def form_of(name: str) -> Callable[[OperatorCall], CallEffects | None] | None:
    """How an operator outside PyTorch is read, by its whole name (`_C::rms_norm`)."""
    if name.startswith("aten::"):
        return None
    return next((form for pattern, form in _FORMS if pattern.search(name)), None)
