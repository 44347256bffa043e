"""The sizes of a recorded operator that its work depends on (`flint.passes.work.formulas`).

An operator without a rule here, whose class does not tell its work, is unpriced: its bytes are
known, its work is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from flint.frontends.torch_world.program.cuda_kernels import (
    KERNELS,
    PRECISION,
    by_channel,
    native_attention,
    per_input,
    three_factors,
)
from flint.frontends.torch_world.program.indexed_work import (
    added_rows,
    embedding,
    embedding_bag,
    gather,
    scatter,
)
from flint.frontends.torch_world.program.names import base_name, is_foreach
from flint.frontends.torch_world.program.op_classes import class_of
from flint.frontends.torch_world.program.operands import num_elements, results, total_elements
from flint.frontends.torch_world.record.recording import Event, TensorInfo
from flint.ir.op_class import OpClass
from flint.ir.product_types import by_block, grouped, product_type
from flint.passes.work import formulas
from flint.passes.work.work import Work

WorkRule = Callable[[Event], Work]


def work_of(event: Event) -> Work:
    """The work of any event; `unpriced` is set where no rule knows it."""
    if event.work is not None:
        return event.work
    if event.op.startswith(COPYING):
        return Work()
    name = base_name(event.op)
    rule = RULES.get(name)
    if rule is not None:
        return rule(event)
    if name in CONVERSIONS:
        return Work()
    op = OpClass.ARITHMETIC if name in PER_ELEMENT else class_of(event.op)
    found = formulas.by_class(op, elements_out(event), PER_ELEMENT.get(name, 1))
    return found or Work(unpriced=bool(event.inputs or event.outputs))


def is_known(op: str) -> bool:
    """Whether a rule or a class tells the work of a recorded operator (`aten.add.Tensor`)."""
    name = base_name(op)
    if op.startswith(COPYING) or name in RULES or name in CONVERSIONS or name in PER_ELEMENT:
        return True
    return formulas.by_class(class_of(op), 1) is not None


def elements_out(event: Event) -> int:
    """Elements that an event stores; of several results of one shape, those of the first."""
    stored = results(event)
    return total_elements(stored if is_foreach(event.op) else stored[:1])


def _multiplied(e: Event, *factors: TensorInfo) -> str:
    """What the factors are multiplied in, as PyTorch was set when it did."""
    types = ["f4E2M1FN" if _packed(t) > 1 else t.dtype for t in factors]
    return product_type(types, str(e.attributes.get(PRECISION, "")))


def _packed(factor: TensorInfo) -> int:
    """Numbers in an element: 2 in `float4_e2m1fn_x2`, along the dimension that is summed over."""
    return 2 if factor.dtype.endswith("_x2") else 1


def matmul(e: Event) -> Work:
    """2 x batch x m x n x k. With three operands the first is added: one more for each result."""
    left, right = _factors(e)
    *batch, m, k = left.shape if len(left.shape) > 1 else (1, *left.shape)
    k *= _packed(left)
    n = right.shape[-1] if len(right.shape) > 1 else 1
    added = math.prod(batch) * m * n if base_name(e.op) in ADDED_PRODUCTS else 0
    if len(right.shape) < 3:  # the batch is rows of one product
        batch, m = [], math.prod(batch) * m
    product = _multiplied(e, left, right)
    return formulas.product(math.prod(batch), m, n, k, added=added, product=product)


def scaled_matmul(e: Event) -> Work:
    """8-bit numbers with scales: of whole tensors, of rows and columns, or of blocks of k."""
    found = matmul(e)
    (m, _), (_, n) = e.inputs[0].shape, e.inputs[1].shape
    by_blocks = any(num_elements(t) > max(m, n) for t in e.inputs[2:])
    return replace(found, product=by_block(found.product)) if by_blocks else found


def _factors(e: Event) -> tuple[TensorInfo, TensorInfo]:
    first = 1 if base_name(e.op) in ADDED_PRODUCTS else 0
    return e.inputs[first], e.inputs[first + 1]


def linear(e: Event) -> Work:
    """Rows of the input times the transposed weight (n, k); a bias is added."""
    rows, weight = e.inputs[:2]
    n, k = weight.shape if len(weight.shape) > 1 else (1, *weight.shape)
    m = num_elements(rows) // max(k, 1)
    biases = m * n if len(e.inputs) > 2 else 0
    product = _multiplied(e, rows, weight)
    return formulas.product(1, m, n, k, added=biases, product=product)


def grouped_matmul(e: Event) -> Work:
    """Each row meets one group's matrix (m x n x k), or each group's rows make one matrix."""
    left, right = e.inputs[:2]
    m, k = left.shape[-2], left.shape[-1] * _packed(left)
    batch = left.shape[0] if len(left.shape) == len(right.shape) == 3 else 1
    name = _multiplied(e, left, right)
    if len(left.shape) == 2:
        sums = len(right.shape) == 2
        name = grouped(name, (e.outputs[0] if sums else right).shape[0], sums=sums)
    return formulas.product(batch, m, right.shape[-1], k, product=name)


def convolution(e: Event) -> Work:
    """A bias is added to each result."""
    grid = e.inputs[0] if e.attributes.get("transposed") else e.outputs[0]
    found = _convolution(e, grid, e.inputs[1], e.inputs[:2])
    biased = len(e.inputs) > 2
    return replace(found, flops=found.flops + (num_elements(e.outputs[0]) if biased else 0))


def convolution_backward(e: Event) -> Work:
    """One product for the gradient of the input, one for that of the weight, a sum for the bias."""
    gradient, data, weight = e.inputs[:3]
    grid = data if e.attributes.get("transposed") else gradient
    found = _convolution(e, grid, weight, (gradient, data))
    mask = e.attributes.get("output_mask") or [True, True, len(e.outputs) > 2]
    bias = num_elements(gradient) if mask[2] else 0
    return replace(found, flops=found.flops * (bool(mask[0]) + bool(mask[1])) + bias)


def _convolution(
    e: Event, grid: TensorInfo, weight: TensorInfo, factors: Sequence[TensorInfo]
) -> Work:
    """`grid` is the side with a position for each window; the weight's first size is its features."""
    features = weight.shape[0]
    positions, k = num_elements(grid) // max(features, 1), math.prod(weight.shape[1:])
    groups = max(int(e.attributes.get("groups", 1)), 1)
    return formulas.convolution(positions, features, k, groups, product=_multiplied(e, *factors))


def attention(*, heads_first: bool, backward: bool, at: int = 0) -> WorkRule:
    """Two products of queries, keys and values; five backward, where a gradient comes first.

    They are (batch, heads, sequence, size), or (batch, sequence, heads, size), or packed without
    a batch. Queries of all heads count as those of one. `at` is the first input of the three.
    """

    def rule(e: Event) -> Work:
        q, k, v = e.inputs[at : at + 3]
        keys = k.shape[-2] if heads_first else _packed_keys(e, k)
        size, queries = q.shape[-1], num_elements(q) // max(q.shape[-1], 1)
        heads, queries, keys, scores = e.attributes.get(SCORES, (1, queries, keys, 0))
        found = formulas.attention(
            *(heads, queries, keys, size, v.shape[-1]),
            backward=backward,
            product=_multiplied(e, q, k),
            scores=scores,
        )
        return replace(found, mask=_window(e))

    return rule


#: The attribute of packed attention: heads, queries, keys and scores, see `values/packed.py`.
SCORES = "flint.scores"


def _packed_keys(e: Event, k: TensorInfo) -> int:
    longest = next((e.attributes[n] for n in ("max_k", "max_seqlen_k") if n in e.attributes), None)
    return int(longest) if longest else k.shape[-3]


def _window(e: Event) -> int:
    """The keys that a query sees, itself the last of them; 0 if there is no such window."""
    names = ("window_size_left", "window_size_right")
    left, right = e.attributes.get("window_size") or [e.attributes.get(n, -1) for n in names]
    return left + 1 if isinstance(left, int) and left >= 0 == right else 0


def reduction(per_element: int) -> WorkRule:
    """So many operations for each input element; dims are (1, rows, 1, reduced)."""

    def rule(e: Event) -> Work:
        if not e.inputs or is_foreach(e.op):
            return Work(flops=total_elements(e.inputs) * per_element)
        rows = num_elements(e.outputs[0]) if e.outputs else 1
        return formulas.reduction(num_elements(e.inputs[0]), rows, per_element)

    return rule


def rowwise(per_element: int, *, at: int = 0) -> WorkRule:
    """Reduces each row and maps it again: softmax and norms, over the last dimension of input `at`."""

    def rule(e: Event) -> Work:
        elements = num_elements(e.inputs[at])
        rows = elements // max(_row_length(e, e.inputs[at]), 1)
        return formulas.reduction(elements, rows, per_element)

    return rule


def _row_length(e: Event, tensor: TensorInfo) -> int:
    shape = tensor.shape or (1,)
    normalized = e.attributes.get("normalized_shape")
    if isinstance(normalized, list | tuple):
        return math.prod(int(n) for n in normalized)
    dim = e.attributes.get("dim", -1)
    return shape[dim] if isinstance(dim, int) and -len(shape) <= dim < len(shape) else shape[-1]


def random(e: Event) -> Work:
    """All results together; what they fill is not read."""
    return replace(formulas.random(sum(t.num_bytes for t in results(e))), operand_bytes=0)


def sort(e: Event) -> Work:
    return formulas.sort(num_elements(e.inputs[0]), _row_length(e, e.inputs[0]))


def top_k(e: Event) -> Work:
    k = _row_length(e, e.outputs[0]) if e.outputs else 1
    length = max(_row_length(e, e.inputs[0]), 1)
    return formulas.top_k(num_elements(e.inputs[0]), length, k)


def search(e: Event) -> Work:
    """log2 of the number of boundaries for each value."""
    boundaries = max(min(map(num_elements, e.inputs)), 1)
    return Work(flops=elements_out(e) * formulas.doublings(boundaries))


def nll_loss(e: Event) -> Work:
    """Reads one value for each row, and the targets."""
    rows = num_elements(e.inputs[1])
    item = e.inputs[0].num_bytes // max(num_elements(e.inputs[0]), 1)
    return Work(flops=rows, operand_bytes=rows * item + e.inputs[1].num_bytes)


def nll_loss_backward(e: Event) -> Work:
    """Writes zeros and one value for each row."""
    return Work(flops=num_elements(e.inputs[2]) if len(e.inputs) > 2 else 0, operand_bytes=0)


def pooling(e: Event) -> Work:
    """One operation for each element of each window; without a window, for each input element."""
    window = e.attributes.get("kernel_size")
    if isinstance(window, int):
        window = [window] * (len(e.outputs[0].shape) - 2)
    if not window:
        return Work(flops=max(map(num_elements, e.inputs)))
    sizes = math.prod(int(w) for w in window)
    return Work(flops=min(map(num_elements, (*e.inputs, *e.outputs))) * sizes)


def optimizer(per_element: int, *, tensors: int) -> WorkRule:
    """A fused optimizer over lists: parameters, gradients and state of equal shapes.

    `tensors` is their number for each parameter; scalars (steps, the learning rate) do not count.
    """

    def rule(e: Event) -> Work:
        lists = tensors + bool(e.attributes.get("amsgrad"))
        elements = sum(num_elements(t) for t in e.inputs if t.shape)
        return Work(flops=per_element * elements // lists)

    return rule


def sgd(e: Event) -> Work:
    """Parameters and gradients, and one buffer if there is momentum."""
    momentum = bool(e.attributes.get("momentum"))
    return optimizer(4 if momentum else 2, tensors=3 if momentum else 2)(e)


def fft(e: Event) -> Work:
    """Of real numbers the side that has more of them is counted."""
    dims = e.attributes.get("dim", [-1])
    shape = max(e.inputs[0].shape, e.outputs[0].shape, key=math.prod)
    lengths = [shape[d] for d in dims] if isinstance(dims, list | tuple) else [shape[-1]]
    return formulas.fft(math.prod(shape), lengths)


#: Operators of FSDP pack shards for collectives and unpack them; `prims.device_put` moves a tensor.
COPYING = ("fsdp.", "prims.device_put")
#: Changes of type, and elements at other places: no arithmetic.
CONVERSIONS = frozenset(
    ("to", "_to_copy", "_conj_physical", "conj_physical", "complex", "pixel_unshuffle")
    + ("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d")
)
#: Products that add their result to their first operand.
ADDED_PRODUCTS = frozenset({"addmm", "_addmm_activation", "baddbmm", "addmv", "addbmm"})
#: Operations for each element where there are several.
_SEVERAL: Mapping[int, str] = {
    2: "addr clamp clip glu silu threshold_backward softshrink_backward _prelu_kernel "
    "hardshrink hardshrink_backward rrelu_with_noise_backward",
    # self + value * (a / b), a + weight * (b - a)
    3: "addcdiv addcmul elu lerp softplus rrelu_with_noise mse_loss_backward sigmoid_backward "
    "tanh_backward",
    4: "hardswish _prelu_kernel_backward",
    # gelu is x * (1 + erf(x / sqrt 2)) / 2
    5: "gelu upsample_linear1d",
    # of silu: g * s * (1 + x * (1 - s)), s = sigmoid(x)
    6: "glu_backward silu_backward binary_cross_entropy_backward huber_loss_backward "
    "smooth_l1_loss_backward",
    9: "gelu_backward",  # the derivative: erf, exp and their sum
    11: "upsample_bilinear2d",  # four values with weights, and the weights
    23: "upsample_trilinear3d",
    40: "upsample_bicubic2d",  # 16 values, their weights and sums
}
PER_ELEMENT: Mapping[str, int] = {
    name: operations for operations, names in _SEVERAL.items() for name in names.split()
}
#: What softmax costs for each element: maximum, difference, exponential, sum, quotient.
_SOFTMAX, _SOFTMAX_BACKWARD = 5, 4
#: Mean, difference, square, sum, scale, weight, bias; backward twice as much.
_NORM, _NORM_BACKWARD = 7, 14
#: Root mean square: square, sum, scale, weight; backward as for the products in its derivative.
_RMS_NORM, _RMS_NORM_BACKWARD = 4, 10
#: Adam for each element: two moving averages (3 + 4), denominator (3), update (3); decay one more.
_ADAM, _ADAMW = 13, 14

_KERNELS = "flash_attention flash_attention_for_cpu efficient_attention cudnn_attention "
_KERNELS += "fused_attention_overrideable"
_HEADS_FIRST = tuple(f"_scaled_dot_product_{kernel}" for kernel in _KERNELS.split())
_SEQUENCE_FIRST = ("_flash_attention", "_efficient_attention", "_cudnn_attention")
_ATTENTION: Mapping[WorkRule, str] = {
    attention(heads_first=True, backward=False): " ".join(_HEADS_FIRST),
    attention(heads_first=True, backward=True, at=1): " ".join(
        f"{n}_backward" for n in _HEADS_FIRST
    ),
    attention(heads_first=False, backward=False): "_varlen_attn "
    + " ".join(f"{n}_forward" for n in _SEQUENCE_FIRST),
    attention(heads_first=False, backward=True, at=1): "_varlen_attn_backward "
    + " ".join(f"{n}_backward" for n in _SEQUENCE_FIRST),
    # into a result that is given
    attention(heads_first=False, backward=False, at=1): "_varlen_attn_out "
    "_flash_attention_forward_no_dropout_inplace",
}
_PADS = (f"{kind}_pad{n}d" for kind in ("reflection", "replication") for n in (1, 2, 3))
#: What cuDNN multiplies in its own precision.
OF_CUDNN = frozenset({"convolution", "convolution_backward", "_cudnn_rnn", "_cudnn_rnn_backward"})
#: Rules, and the operators that have them (without `aten.`, overload and underscore).
_RULES: Mapping[WorkRule, str] = {
    matmul: "mm bmm mv dot vdot matmul _int_mm " + " ".join(sorted(ADDED_PRODUCTS)),
    linear: "linear",
    scaled_matmul: "_scaled_mm _scaled_mm_v2",
    grouped_matmul: "_grouped_mm _scaled_grouped_mm _scaled_grouped_mm_v2",
    convolution: "convolution",
    convolution_backward: "convolution_backward",
    **_ATTENTION,
    reduction(1): "sum nansum trace mean amax amin max min prod any all argmax argmin",
    reduction(2): "aminmax mse_loss count_nonzero linalg_vector_norm norm",
    reduction(3): "var var_mean std std_mean dist",
    reduction(4): "logsumexp",
    reduction(5): "smooth_l1_loss huber_loss",
    reduction(7): "binary_cross_entropy",
    reduction(8): "binary_cross_entropy_with_logits",
    # the norm of each row (2), and its quotient by it (1); the gradient once more as much and a half
    rowwise(3): "_weight_norm_interface",
    rowwise(6): "_weight_norm_interface_backward",
    rowwise(_SOFTMAX): "_softmax _safe_softmax _log_softmax",
    rowwise(_SOFTMAX_BACKWARD): "_softmax_backward_data _log_softmax_backward_data",
    rowwise(_NORM): "native_layer_norm native_group_norm",
    rowwise(_NORM_BACKWARD): "native_layer_norm_backward native_group_norm_backward",
    rowwise(_RMS_NORM): "_fused_rms_norm rms_norm",
    rowwise(_RMS_NORM_BACKWARD): "_fused_rms_norm_backward",
    by_channel(
        _NORM
    ): "native_batch_norm cudnn_batch_norm _batch_norm_with_update _native_batch_norm_legit "
    "_native_batch_norm_legit_functional _native_batch_norm_legit_no_training",
    by_channel(
        _NORM_BACKWARD
    ): "native_batch_norm_backward cudnn_batch_norm_backward batch_norm_backward",
    embedding: "embedding",
    embedding_bag: "_embedding_bag _embedding_bag_forward_only",
    added_rows: "embedding_dense_backward _embedding_bag_dense_backward _embedding_bag_backward",
    gather: "index _unsafe_index index_select gather take",
    scatter: "index_put _index_put_impl _unsafe_index_put index_add index_copy scatter scatter_add "
    "scatter_reduce",
    random: "cauchy geometric log_normal bernoulli exponential normal rand rand_like randint "
    "randint_like randn randn_like random randperm uniform",
    per_input(13): "native_dropout",  # a random word, a comparison and two products
    per_input(2): "native_dropout_backward",
    sort: "sort argsort _unique2 unique_dim median nanmedian kthvalue mode",
    top_k: "topk",
    search: "searchsorted bucketize",
    # running sums and their like
    per_input(1): "cumsum cumprod cummax cummin bincount histc nonzero col2im masked_select",
    per_input(4): "logcumsumexp",
    per_input(5): "upsample_linear1d_backward",
    per_input(11): " ".join(
        f"upsample_{kind}_backward" for kind in ("bilinear2d", "bicubic2d", "trilinear3d")
    ),
    # each gradient is added to that of the element it was copied from
    per_input(1): " ".join(
        f"{n}_backward" for n in (*(f"upsample_nearest{n}d" for n in (1, 2, 3)), *_PADS)
    ),
    lambda e: Work(flops=math.prod(num_elements(t) for t in e.inputs)): "isin",
    nll_loss: "nll_loss_forward nll_loss2d_forward",
    nll_loss_backward: "nll_loss_backward nll_loss2d_backward",
    pooling: "max_pool2d_with_indices max_pool2d_with_indices_backward avg_pool2d avg_pool2d_backward "
    "max_pool3d_with_indices max_pool3d_with_indices_backward avg_pool3d avg_pool3d_backward "
    "_adaptive_avg_pool2d _adaptive_avg_pool2d_backward adaptive_max_pool2d "
    "_adaptive_avg_pool3d _adaptive_avg_pool3d_backward adaptive_max_pool3d "
    "adaptive_max_pool2d_backward adaptive_max_pool3d_backward fractional_max_pool2d "
    "fractional_max_pool3d",
    optimizer(_ADAMW, tensors=4): "_fused_adamw",
    optimizer(_ADAM, tensors=4): "_fused_adam",
    optimizer(6, tensors=3): "_fused_adagrad",
    sgd: "_fused_sgd",
    lambda e: Work(flops=2 * total_elements(e.inputs)): "_amp_foreach_non_finite_check_and_unscale",
    lambda e: Work(flops=2): "_amp_update_scale",
    fft: "_fft_c2c _fft_r2c _fft_c2r",
}
RULES: Mapping[str, WorkRule] = {
    **{name.partition(".")[0]: kernel.work for name, kernel in KERNELS.items()},
    **{name: rule for rule, names in _RULES.items() for name in names.split()},
}
#: Operators that multiply matrices; attention is among them, convolutions are not.
_MULTIPLY = (matmul, scaled_matmul, linear, grouped_matmul, three_factors, native_attention)
PRODUCTS = frozenset(n for n, rule in RULES.items() if rule in (*_MULTIPLY, *_ATTENTION))


def moved_bytes(
    work: Work,
    reads: Sequence[TensorInfo],
    stored: Sequence[TensorInfo],
    visible_bytes: Callable[[TensorInfo], int],
) -> tuple[int, int]:
    """Bytes that an operator reads and writes: what its work says, or all its tensors."""
    operand_bytes, result_bytes = work.operand_bytes, work.result_bytes
    if operand_bytes is None:
        operand_bytes = sum([visible_bytes(t) for t in reads])
    if result_bytes is None:
        result_bytes = sum([t.num_bytes for t in stored])
    return operand_bytes, result_bytes
