"""Products of matrices, convolutions and attention: shapes of results, and what their work asks."""

from __future__ import annotations

from typing import Any

from flint.tools.measure.profiles.operators.call import (
    CallEffects,
    Form,
    OperatorCall,
    like,
    tensor,
)
from flint.tools.measure.profiles.operators.types import type_of_number


def mm(call: OperatorCall) -> CallEffects | None:
    """(..., m, k) x (k, n) or (batch, k, n); a vector counts as a row or a column."""
    return _product(call, 0)


def addmm(call: OperatorCall) -> CallEffects | None:
    """What is added comes first."""
    return _product(call, 1)


def _product(call: OperatorCall, first: int) -> CallEffects | None:
    tensors = call.given.tensors
    if len(tensors) < first + 2:
        return None
    left, right = tensors[first : first + 2]
    if not left.shape or not right.shape:
        return None
    rows = left.shape[:-1]
    columns = right.shape[-1:] if len(right.shape) > 1 else ()
    return CallEffects(tensors[: first + 2], (tensor((*rows, *columns), left.dtype),))


def scaled_mm(call: OperatorCall) -> CallEffects | None:
    """(self, other, scales ..., out type): 8-bit numbers in, mostly bf16 out."""
    found = _product(call, 0)
    if found is None:
        return None
    numbers = [call.given.integer(i) for i in range(2, len(call.given))]
    named = [type_of_number(n) for n in numbers if n is not None]
    dtype = next((t for t in named if t), "bf16")
    return CallEffects(call.given.tensors, (like(found.outputs[0], dtype),))


def linear(call: OperatorCall) -> CallEffects | None:
    """(input, weight (n, k), bias)."""
    tensors = call.given.tensors
    if len(tensors) < 2 or not tensors[0].shape or not tensors[1].shape:
        return None
    columns = tensors[1].shape[:1] if len(tensors[1].shape) > 1 else ()
    return CallEffects(tensors, (tensor((*tensors[0].shape[:-1], *columns), tensors[0].dtype),))


def grouped_mm(call: OperatorCall) -> CallEffects | None:
    """Rows of all groups (m, k) times matrices (groups, k, n)."""
    tensors = call.given.tensors
    if len(tensors) < 2 or len(tensors[0].shape) < 2 or len(tensors[1].shape) < 2:
        return None
    left, right = tensors[:2]
    batch = right.shape[:1] if len(left.shape) == len(right.shape) == 3 else ()
    return CallEffects(tensors, (tensor((*batch, left.shape[-2], right.shape[-1]), left.dtype),))


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
    data, weight = given.tensor(0), given.tensor(1)
    if data is None or weight is None or not 3 <= len(data.shape) == len(weight.shape):
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


def convolution_backward(call: OperatorCall) -> CallEffects | None:
    """(gradient, input, weight, bias sizes, stride, padding, dilation, transposed, ., groups, mask)."""
    given = call.given
    gradient, data, weight = given.tensor(0), given.tensor(1), given.tensor(2)
    if gradient is None or data is None or weight is None:
        return None
    mask = given.truths(10) or [True, True, False]
    made = [like(t) for t, wanted in zip((data, weight), mask, strict=False) if wanted]
    if len(mask) > 2 and mask[2]:
        made.append(tensor((weight.shape[0],), weight.dtype))
    attributes: dict[str, Any] = {
        "groups": given.integer(9, 1), "transposed": bool(given.truth(7)), "output_mask": mask,
    }  # fmt: skip
    return CallEffects((gradient, data, weight), tuple(made), (), attributes)


def attention(causal: int) -> Form:
    """Queries, keys and values (batch, heads, sequence, size); argument `causal` says if masked."""

    def form(call: OperatorCall) -> CallEffects | None:
        q, k, v = (call.given.tensor(i) for i in range(3))
        if q is None or k is None or v is None or len(q.shape) != 4:
            return None
        made = tensor((*q.shape[:-1], v.shape[-1]), q.dtype)
        sums = tensor(q.shape[:-1], "f32")
        return CallEffects((q, k, v), (made, sums), (), _causal(call, causal))

    return form


def attention_backward(causal: int) -> Form:
    """The gradient of the output comes first, then queries, keys, values."""

    def form(call: OperatorCall) -> CallEffects | None:
        read = [call.given.tensor(i) for i in range(4)]
        q, k, v = read[1:]
        if q is None or k is None or v is None:
            return None
        inputs = call.given.tensors
        return CallEffects(inputs, (like(q), like(k), like(v)), (), _causal(call, causal))

    return form


def packed_attention(causal: int, keys: int) -> Form:
    """(batch, sequence, heads, size), or packed; argument `keys` is the longest sequence of keys."""

    def form(call: OperatorCall) -> CallEffects | None:
        q, k, v = (call.given.tensor(i) for i in range(3))
        if q is None or k is None or v is None or len(q.shape) < 3:
            return None
        made = tensor((*q.shape[:-1], v.shape[-1]), q.dtype)
        attributes = _causal(call, causal) | _longest(call, keys, len(q.shape) == 3)
        sums = tensor(q.shape[:-1], "f32")
        return CallEffects((q, k, v), (made, sums), (), attributes)

    return form


def packed_attention_backward(causal: int, keys: int) -> Form:
    """The same with the gradient of the output first."""

    def form(call: OperatorCall) -> CallEffects | None:
        q, k, v = (call.given.tensor(i) for i in range(1, 4))
        if q is None or k is None or v is None or len(q.shape) < 3:
            return None
        attributes = _causal(call, causal) | _longest(call, keys, len(q.shape) == 3)
        return CallEffects(call.given.tensors, (like(q), like(k), like(v)), (), attributes)

    return form


def _causal(call: OperatorCall, at: int) -> dict[str, Any]:
    if call.given.truth(at):
        return {"is_causal": True}
    return {"custom_mask_type": 1} if call.given.integer(at) in (1, 2) else {}


def _longest(call: OperatorCall, keys: int, packed: bool) -> dict[str, Any]:
    longest = call.given.integer(keys)
    return {"max_k": longest} if packed and longest and longest > 0 else {}


FORMS: dict[str, Form] = {
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "vdot", "matmul", "_int_mm"), mm),
    **dict.fromkeys(("addmm", "baddbmm", "addmv", "addbmm"), addmm),
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
    "_scaled_dot_product_flash_attention": attention(4),
    "_scaled_dot_product_efficient_attention": attention(6),
    "_scaled_dot_product_cudnn_attention": attention(6),
    "_scaled_dot_product_fused_attention_overrideable": attention(5),
    "_scaled_dot_product_flash_attention_backward": attention_backward(11),
    "_scaled_dot_product_efficient_attention_backward": attention_backward(11),
    "_scaled_dot_product_cudnn_attention_backward": attention_backward(14),
    "_scaled_dot_product_fused_attention_overrideable_backward": attention_backward(13),
    "_flash_attention_forward": packed_attention(8, 6),
    "_efficient_attention_forward": packed_attention(9, 7),
    "_flash_attention_backward": packed_attention_backward(11, 9),
    "_efficient_attention_backward": packed_attention_backward(14, 9),
}  # fmt: skip
