"""Products of matrices, convolutions and attention: shapes of results, and what their work asks."""

from __future__ import annotations

from functools import partial
from typing import Any

from flint.tools.measure.profiles.operators.call import (
    CallEffects,
    Form,
    OperatorCall,
    like,
    tensor,
)
from flint.tools.measure.profiles.operators.types import type_of_number


def product(call: OperatorCall, first: int) -> CallEffects | None:
    """(..., m, k) x (k, n) or (batch, k, n); a vector counts as a row or a column.

    `first` is the place of the left operand: what is added to a product comes before it.
    """
    left, right = call.given.tensors[first : first + 2]
    if not left.shape or not right.shape:
        return None
    columns = right.shape[-1:] if len(right.shape) > 1 else ()
    made = tensor((*left.shape[:-1], *columns), left.dtype)
    return CallEffects(call.given.tensors[: first + 2], (made,))


def scaled_mm(call: OperatorCall) -> CallEffects | None:
    """(self, other, scales ..., out type): 8-bit numbers in, mostly bf16 out."""
    found = product(call, 0)
    if found is None:
        return None
    numbers = [call.given.integer(i) for i in range(2, len(call.given))]
    named = [type_of_number(n) for n in numbers if n is not None]
    dtype = next((t for t in named if t), "bf16")
    return CallEffects(call.given.tensors, (like(found.outputs[0], dtype),))


def linear(call: OperatorCall) -> CallEffects | None:
    """(input, weight (n, k), bias)."""
    data, weight, *_ = call.given.tensors
    if not data.shape or not weight.shape:
        return None
    columns = weight.shape[:1] if len(weight.shape) > 1 else ()
    return CallEffects(call.given.tensors, (tensor((*data.shape[:-1], *columns), data.dtype),))


def grouped_mm(call: OperatorCall) -> CallEffects:
    """Rows of all groups (m, k) times matrices (groups, k, n)."""
    left, right, *_ = call.given.tensors
    batch = right.shape[:1] if len(left.shape) == len(right.shape) == 3 else ()
    (*_, rows, _), (*_, _, columns) = left.shape, right.shape
    return CallEffects(call.given.tensors, (tensor((*batch, rows, columns), left.dtype),))


def convolution(call: OperatorCall) -> CallEffects | None:
    """(input, weight, bias, stride, padding, dilation, transposed, output padding, groups)."""
    return _convolution(call, bias=2, stride=3, padding=4, dilation=5, transposed=6, groups=8)


def backend_convolution(call: OperatorCall) -> CallEffects | None:
    """cuDNN's: (input, weight, padding, stride, dilation, groups); MIOpen's has a bias before."""
    shift = 0 if call.given.integers(2) is not None else 1
    return _convolution(
        call, bias=2 if shift else -1, padding=2 + shift, stride=3 + shift, dilation=4 + shift,
        transposed=-1, groups=5 + shift,
    )  # fmt: skip


def _convolution(
    call: OperatorCall,
    *,
    bias: int,
    stride: int,
    padding: int,
    dilation: int,
    transposed: int,
    groups: int,
) -> CallEffects | None:
    given = call.given
    data, weight = given.needed(0), given.needed(1)
    if not 3 <= len(data.shape) == len(weight.shape):
        return None
    spatial = len(weight.shape) - 2
    split = given.integer(groups, 1) or 1
    steps, edge, spread = (_each(given.integers(at), spatial, otherwise)
                           for at, otherwise in ((stride, 1), (padding, 0), (dilation, 1)))  # fmt: skip
    turned = transposed >= 0 and bool(given.truth(transposed))
    sizes = []
    for size, window, s, p, d in zip(
        data.shape[2:], weight.shape[2:], steps, edge, spread, strict=True
    ):
        reach = d * (window - 1)
        sizes.append((size - 1) * s - 2 * p + reach + 1 if turned else (size + 2 * p - reach - 1) // max(s, 1) + 1)  # fmt: skip
    features = weight.shape[1] * split if turned else weight.shape[0]
    added = given.tensor(bias) if bias >= 0 else None
    inputs = (data, weight) if added is None else (data, weight, added)
    attributes: dict[str, Any] = {"groups": split, "transposed": turned}
    return CallEffects(
        inputs, (tensor((data.shape[0], features, *sizes), data.dtype),), (), attributes
    )


def _each(found: tuple[int, ...] | None, count: int, otherwise: int) -> tuple[int, ...]:
    """One number for each dimension; a single one is that of all."""
    if not found:
        return (otherwise,) * count
    return found if len(found) == count else (found[0],) * count


def convolution_backward(call: OperatorCall) -> CallEffects:
    """(gradient, input, weight, bias sizes, stride, padding, dilation, transposed, ., groups, mask)."""
    given = call.given
    gradient, data, weight = (given.needed(i) for i in range(3))
    mask = given.truths(10) or [True, True, False]
    made = [like(t) for t, wanted in zip((data, weight), mask, strict=False) if wanted]
    if len(mask) > 2 and mask[2]:
        made.append(tensor((weight.shape[0],), weight.dtype))
    attributes: dict[str, Any] = {
        "groups": given.integer(9, 1), "transposed": bool(given.truth(7)), "output_mask": mask,
    }  # fmt: skip
    return CallEffects((gradient, data, weight), tuple(made), (), attributes)


def attention(call: OperatorCall, causal: int, keys: int = -1) -> CallEffects | None:
    """Queries, keys and values (batch, heads, sequence, size); argument `causal` says if masked.

    With `keys`, the argument that has the longest sequence of keys, they are (batch, sequence, heads,
    size), or packed.
    """
    q, k, v = (call.given.needed(i) for i in range(3))
    if len(q.shape) < 3 or (keys < 0 and len(q.shape) != 4):
        return None
    made, sums = tensor((*q.shape[:-1], v.shape[-1]), q.dtype), tensor(q.shape[:-1], "f32")
    attributes = _causal(call, causal) | _longest(call, keys, len(q.shape) == 3)
    return CallEffects((q, k, v), (made, sums), (), attributes)


def attention_backward(call: OperatorCall, causal: int, keys: int = -1) -> CallEffects | None:
    """The same with the gradient of the output first."""
    q, k, v = (call.given.needed(i) for i in range(1, 4))
    if keys >= 0 and len(q.shape) < 3:
        return None
    attributes = _causal(call, causal) | _longest(call, keys, len(q.shape) == 3)
    return CallEffects(call.given.tensors, (like(q), like(k), like(v)), (), attributes)


def _causal(call: OperatorCall, at: int) -> dict[str, Any]:
    if call.given.truth(at):
        return {"is_causal": True}
    return {"custom_mask_type": 1} if call.given.integer(at) in (1, 2) else {}


def _longest(call: OperatorCall, keys: int, packed: bool) -> dict[str, Any]:
    longest = call.given.integer(keys)
    return {"max_k": longest} if packed and longest and longest > 0 else {}


FORMS: dict[str, Form] = {
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "vdot", "matmul", "_int_mm"), partial(product, first=0)),
    **dict.fromkeys(("addmm", "baddbmm", "addmv", "addbmm"), partial(product, first=1)),
    **dict.fromkeys(("_scaled_mm", "_scaled_mm_v2"), scaled_mm),
    **dict.fromkeys(("_grouped_mm", "_scaled_grouped_mm", "_scaled_grouped_mm_v2"), grouped_mm),
    "linear": linear,
    "convolution": convolution,
    "_convolution": convolution,
    **dict.fromkeys(
        ("cudnn_convolution", "miopen_convolution", "miopen_depthwise_convolution",
         "mkldnn_convolution"),
        backend_convolution,
    ),
    "convolution_backward": convolution_backward,
    "_scaled_dot_product_flash_attention": partial(attention, causal=4),
    "_scaled_dot_product_efficient_attention": partial(attention, causal=6),
    "_scaled_dot_product_cudnn_attention": partial(attention, causal=6),
    "_scaled_dot_product_fused_attention_overrideable": partial(attention, causal=5),
    "_scaled_dot_product_flash_attention_backward": partial(attention_backward, causal=11),
    "_scaled_dot_product_efficient_attention_backward": partial(attention_backward, causal=11),
    "_scaled_dot_product_cudnn_attention_backward": partial(attention_backward, causal=14),
    "_scaled_dot_product_fused_attention_overrideable_backward": partial(attention_backward, causal=13),
    "_flash_attention_forward": partial(attention, causal=8, keys=6),
    "_efficient_attention_forward": partial(attention, causal=9, keys=7),
    "_flash_attention_backward": partial(attention_backward, causal=11, keys=9),
    "_efficient_attention_backward": partial(attention_backward, causal=14, keys=9),
}  # fmt: skip
