"""The sizes of a recorded operator that its work depends on (`flint.passes.work.formulas`).

An operator without a rule here, whose class does not tell its work, is unpriced: its bytes are
known, its work is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace

from flint.frontends.torch_world.program.cuda_kernels import (
    KERNELS,
    PRECISION,
    native_attention,
    three_factors,
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
    name, op_class = base_name(op), class_of(op)
    tables: tuple[Container[str], ...] = (RULES, CONVERSIONS, PER_ELEMENT)
    return (
        op.startswith(COPYING)
        or any(name in table for table in tables)
        or formulas.by_class(op_class, 1) is not None
    )


def elements_out(event: Event) -> int:
    """Elements that an event stores; of several results of one shape, those of the first."""
    stored = results(event)
    if not stored:
        return 0
    if is_foreach(event.op):
        return total_elements(stored)
    return num_elements(stored[0])


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


def attention(e: Event) -> Work:
    """Two matrix products of queries, keys and values (batch, heads, sequence, size)."""
    q, k, v = e.inputs[:3]
    return _attention(e, q, k, v, k.shape[-2], backward=False)


def attention_backward(e: Event) -> Work:
    """Five products: the gradient of the output comes first."""
    q, k, v = e.inputs[1:4]
    return _attention(e, q, k, v, k.shape[-2], backward=True)


def attention_sequence_first(e: Event) -> Work:
    """Queries, keys and values are (batch, sequence, heads, size), or packed without a batch."""
    q, k, v = e.inputs[:3]
    return _attention(e, q, k, v, _packed_keys(e, k), backward=False)


def attention_sequence_first_backward(e: Event) -> Work:
    """The same with the gradient of the output first."""
    q, k, v = e.inputs[1:4]
    return _attention(e, q, k, v, _packed_keys(e, k), backward=True)


def _packed_keys(e: Event, k: TensorInfo) -> int:
    longest = next((e.attributes[n] for n in ("max_k", "max_seqlen_k") if n in e.attributes), None)
    return int(longest) if longest else k.shape[-3]


def _attention(
    e: Event, q: TensorInfo, k: TensorInfo, v: TensorInfo, keys: int, *, backward: bool
) -> Work:
    """Queries of all heads count as those of one."""
    size, queries = q.shape[-1], num_elements(q) // max(q.shape[-1], 1)
    product = _multiplied(e, q, k)
    return formulas.attention(
        1, queries, keys, size, v.shape[-1], backward=backward, product=product
    )


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


def channelwise(per_element: int, *, at: int = 0) -> WorkRule:
    """Reduces over all but dimension 1 and maps again: batch norm of input `at`."""

    def rule(e: Event) -> Work:
        shape = e.inputs[at].shape
        rows = shape[1] if len(shape) > 1 else 1
        return formulas.reduction(num_elements(e.inputs[at]), rows, per_element)

    return rule


def embedding(e: Event) -> Work:
    """Indices come last."""
    table, found = e.inputs[0], e.outputs[0]
    return formulas.gather(
        found.num_bytes, e.inputs[-1].num_bytes, num_elements(found), table.shape[-1]
    )


def embedding_bag(e: Event) -> Work:
    """Reads one row for each index and adds it to its bag."""
    table, indices = e.inputs[:2]
    size = table.shape[-1]
    rows = num_elements(indices)
    row_bytes = table.num_bytes // max(table.shape[0], 1)
    others = sum(t.num_bytes for t in e.inputs[1:])
    return Work(flops=rows * size, operand_bytes=rows * row_bytes + others)


def added_rows(e: Event) -> Work:
    """One addition for each element of the gradient of an embedding."""
    elements, row = num_elements(e.inputs[0]), e.inputs[0].shape[-1]
    return Work(flops=elements, dims=formulas.row_dims(elements, row))


def gather(e: Event) -> Work:
    """All but the first operand are indices, each of which names a row of what is left."""
    found = results(e)
    elements = sum(map(num_elements, found))
    indices = e.inputs[1:]
    named = max(map(num_elements, indices), default=0)
    row = max(elements // max(named, 1), 1)
    if base_name(e.op) == "index_select":
        row = _behind(e)
    index_bytes = sum(t.num_bytes for t in indices)
    return formulas.gather(sum(t.num_bytes for t in found), index_bytes, elements, row)


def _behind(e: Event) -> int:
    """Elements behind the dimension of an operator, which lie together."""
    shape, dim = e.inputs[0].shape, e.attributes.get("dim", 0)
    return math.prod(shape[dim % max(len(shape), 1) + 1 :])


def scatter(e: Event) -> Work:
    """Reads updates and indices and writes the updates; adds only if it accumulates."""
    update = _updates(e)
    name = base_name(e.op)
    adds = bool(e.attributes.get("accumulate")) or name in ("index_add", "scatter_add")
    item_bytes = e.inputs[0].num_bytes // max(num_elements(e.inputs[0]), 1)
    flops = update if adds or name == "scatter_reduce" else 0
    dims = formulas.row_dims(update, _updated_row(e))
    if not e.writes:
        return Work(flops=flops, dims=dims)
    places = update * item_bytes
    others = sum(t.num_bytes for t in e.inputs[1:])
    return Work(
        flops=flops,
        dims=dims,
        operand_bytes=others + (places if flops else 0),
        result_bytes=places,
        in_place=True,
    )


def _updated_row(e: Event) -> int:
    """Elements that one index names."""
    if _puts(e):
        return math.prod(e.inputs[0].shape[len(e.inputs[1:-1]) :])
    return _behind(e) if base_name(e.op).startswith("index_") else 1


def _puts(e: Event) -> bool:
    """Whether there is an index for each of the first dimensions."""
    return base_name(e.op).endswith("index_put") or "_index_put_impl" in e.op


def _updates(e: Event) -> int:
    """Elements that a scatter stores; its value may be one number for all of them."""
    target, given = e.inputs[0], e.inputs[1:]
    update = num_elements(given[-1]) if given else 0
    if not _puts(e):
        return max(update, num_elements(given[0]) if given else 0)
    indices = given[:-1]
    if any(t.dtype == "i1" for t in indices):
        return num_elements(target)  # a mask may name every element
    rest = math.prod(target.shape[len(indices) :])
    named = max((num_elements(t) for t in indices), default=1)
    return max(update, named * rest)


def random(e: Event) -> Work:
    """All results together; what they fill is not read."""
    return replace(formulas.random(sum(t.num_bytes for t in results(e))), operand_bytes=0)


def dropout(e: Event) -> Work:
    """A random word, a comparison and two products for each element."""
    return Work(flops=13 * num_elements(e.inputs[0]))


def sort(e: Event) -> Work:
    """Along the sorted dimension."""
    return formulas.sort(num_elements(e.inputs[0]), _row_length(e, e.inputs[0]))


def top_k(e: Event) -> Work:
    """Along the dimension of the choice."""
    k = _row_length(e, e.outputs[0]) if e.outputs else 1
    length = max(_row_length(e, e.inputs[0]), 1)
    return formulas.top_k(num_elements(e.inputs[0]), length, k)


def search(e: Event) -> Work:
    """log2 of the number of boundaries for each value."""
    boundaries = max(min(map(num_elements, e.inputs)), 1)
    return Work(flops=elements_out(e) * formulas.doublings(boundaries))


def running(e: Event) -> Work:
    """One operation for each element: running sums."""
    return Work(flops=num_elements(e.inputs[0]))


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
PER_ELEMENT: Mapping[str, int] = {
    "addcdiv": 3,  # self + value * (a / b)
    "addcmul": 3,
    "addr": 2,
    "clamp": 2,
    "clip": 2,
    "binary_cross_entropy_backward": 6,
    "elu": 3,
    "_prelu_kernel": 2,
    "_prelu_kernel_backward": 4,
    "hardshrink": 2,
    "hardshrink_backward": 2,
    "rrelu_with_noise": 3,
    "rrelu_with_noise_backward": 2,
    "softshrink_backward": 2,
    "gelu": 5,  # x * (1 + erf(x / sqrt 2)) / 2
    "gelu_backward": 9,  # the derivative: erf, exp and their sum
    "glu": 2,
    "glu_backward": 6,
    "hardswish": 4,
    "huber_loss_backward": 6,
    "lerp": 3,  # a + weight * (b - a)
    "mse_loss_backward": 3,
    "sigmoid_backward": 3,
    "silu": 2,
    "silu_backward": 6,  # g * s * (1 + x * (1 - s)), s = sigmoid(x)
    "smooth_l1_loss_backward": 6,
    "softplus": 3,
    "tanh_backward": 3,
    "threshold_backward": 2,
    "upsample_bicubic2d": 40,  # 16 values, their weights and sums
    "upsample_bilinear2d": 11,  # four values with weights, and the weights
    "upsample_linear1d": 5,
    "upsample_trilinear3d": 23,
}
#: What softmax costs for each element: maximum, difference, exponential, sum, quotient.
_SOFTMAX, _SOFTMAX_BACKWARD = 5, 4
#: Mean, difference, square, sum, scale, weight, bias; backward twice as much.
_NORM, _NORM_BACKWARD = 7, 14
#: Root mean square: square, sum, scale, weight; backward as for the products in its derivative.
_RMS_NORM, _RMS_NORM_BACKWARD = 4, 10
#: Adam for each element: two moving averages (3 + 4), denominator (3), update (3); decay one more.
_ADAM, _ADAMW = 13, 14

_HEADS_FIRST = tuple(
    f"_scaled_dot_product_{kernel}"
    for kernel in (
        "flash_attention",
        "flash_attention_for_cpu",
        "efficient_attention",
        "cudnn_attention",
        "fused_attention_overrideable",
    )
)
_SEQUENCE_FIRST = ("_flash_attention", "_efficient_attention", "_cudnn_attention")
#: What cuDNN multiplies in its own precision.
OF_CUDNN = frozenset({"convolution", "convolution_backward", "_cudnn_rnn", "_cudnn_rnn_backward"})
#: Operator (without `aten.`, overload and underscore) to rule.
RULES: Mapping[str, WorkRule] = {
    **{name.partition(".")[0]: kernel.work for name, kernel in KERNELS.items()},
    **dict.fromkeys(
        (
            *("mm", "bmm", "mv", "dot", "vdot", "matmul", "_int_mm"),
            *ADDED_PRODUCTS,
        ),
        matmul,
    ),
    "linear": linear,
    **dict.fromkeys(("_scaled_mm", "_scaled_mm_v2"), scaled_matmul),
    **dict.fromkeys(("_grouped_mm", "_scaled_grouped_mm", "_scaled_grouped_mm_v2"), grouped_matmul),
    "convolution": convolution,
    "convolution_backward": convolution_backward,
    **dict.fromkeys(_HEADS_FIRST, attention),
    **{f"{n}_backward": attention_backward for n in _HEADS_FIRST},
    **{f"{n}_forward": attention_sequence_first for n in _SEQUENCE_FIRST},
    **{f"{n}_backward": attention_sequence_first_backward for n in _SEQUENCE_FIRST},
    **dict.fromkeys(
        (
            "sum",
            "nansum",
            "trace",
            "mean",
            "amax",
            "amin",
            "max",
            "min",
            "prod",
            "any",
            "all",
            "argmax",
            "argmin",
        ),
        reduction(1),
    ),
    **dict.fromkeys(("aminmax", "mse_loss", "count_nonzero"), reduction(2)),
    **dict.fromkeys(("median", "nanmedian", "kthvalue", "mode"), sort),
    **dict.fromkeys(("smooth_l1_loss", "huber_loss"), reduction(5)),
    "binary_cross_entropy": reduction(7),
    "binary_cross_entropy_with_logits": reduction(8),
    **dict.fromkeys(("var", "var_mean", "std", "std_mean"), reduction(3)),
    **dict.fromkeys(("linalg_vector_norm", "norm"), reduction(2)),
    "dist": reduction(3),
    # the norm of each row (2), and its quotient by it (1); the gradient once more as much and a half
    "_weight_norm_interface": rowwise(3),
    "_weight_norm_interface_backward": rowwise(6),
    "logsumexp": reduction(4),
    **dict.fromkeys(("_softmax", "_safe_softmax", "_log_softmax"), rowwise(_SOFTMAX)),
    **dict.fromkeys(
        ("_softmax_backward_data", "_log_softmax_backward_data"), rowwise(_SOFTMAX_BACKWARD)
    ),
    **dict.fromkeys(("native_layer_norm", "native_group_norm"), rowwise(_NORM)),
    **dict.fromkeys(
        ("native_layer_norm_backward", "native_group_norm_backward"), rowwise(_NORM_BACKWARD)
    ),
    **dict.fromkeys(("_fused_rms_norm", "rms_norm"), rowwise(_RMS_NORM)),
    "_fused_rms_norm_backward": rowwise(_RMS_NORM_BACKWARD),
    **dict.fromkeys(
        (
            "native_batch_norm",
            "cudnn_batch_norm",
            "_native_batch_norm_legit",
            "_native_batch_norm_legit_functional",
            "_native_batch_norm_legit_no_training",
            "_batch_norm_with_update",
        ),
        channelwise(_NORM),
    ),
    **dict.fromkeys(
        ("native_batch_norm_backward", "cudnn_batch_norm_backward", "batch_norm_backward"),
        channelwise(_NORM_BACKWARD),
    ),
    "embedding": embedding,
    "embedding_dense_backward": added_rows,
    **dict.fromkeys(("_embedding_bag", "_embedding_bag_forward_only"), embedding_bag),
    **dict.fromkeys(("_embedding_bag_dense_backward", "_embedding_bag_backward"), added_rows),
    **dict.fromkeys(("index", "_unsafe_index", "index_select", "gather", "take"), gather),
    **dict.fromkeys(
        (
            "index_put",
            "_index_put_impl",
            "_unsafe_index_put",
            "index_add",
            "index_copy",
            "scatter",
            "scatter_add",
            "scatter_reduce",
        ),
        scatter,
    ),
    **dict.fromkeys(
        (
            *(
                "cauchy",
                "geometric",
                "log_normal",
                "bernoulli",
                "exponential",
                "normal",
                "rand",
                "rand_like",
                "randint",
            ),
            *("randint_like", "randn", "randn_like", "random", "randperm", "uniform"),
        ),
        random,
    ),
    "native_dropout": dropout,
    "native_dropout_backward": lambda e: Work(flops=2 * num_elements(e.inputs[0])),
    **dict.fromkeys(("sort", "argsort", "_unique2", "unique_dim"), sort),
    "topk": top_k,
    **dict.fromkeys(("searchsorted", "bucketize"), search),
    **dict.fromkeys(
        (
            *("cumsum", "cumprod", "cummax", "cummin", "bincount", "histc", "nonzero", "col2im"),
            "masked_select",
        ),
        running,
    ),
    **dict.fromkeys(
        (f"upsample_{kind}_backward" for kind in ("bilinear2d", "bicubic2d", "trilinear3d")),
        lambda e: Work(flops=11 * num_elements(e.inputs[0])),
    ),
    "upsample_linear1d_backward": lambda e: Work(flops=5 * num_elements(e.inputs[0])),
    **dict.fromkeys(  # each gradient is added to that of the element it was copied from
        (
            *(f"upsample_nearest{n}d_backward" for n in (1, 2, 3)),
            *(
                f"{kind}_pad{n}d_backward"
                for kind in ("reflection", "replication")
                for n in (1, 2, 3)
            ),
        ),
        lambda e: Work(flops=num_elements(e.inputs[0])),
    ),
    "isin": lambda e: Work(flops=math.prod(num_elements(t) for t in e.inputs)),
    "logcumsumexp": lambda e: Work(flops=4 * num_elements(e.inputs[0])),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), nll_loss),
    **dict.fromkeys(("nll_loss_backward", "nll_loss2d_backward"), nll_loss_backward),
    **dict.fromkeys(
        (
            *("max_pool2d_with_indices", "max_pool2d_with_indices_backward", "avg_pool2d"),
            *("avg_pool2d_backward", "_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward"),
            *("max_pool3d_with_indices", "max_pool3d_with_indices_backward", "avg_pool3d"),
            *("avg_pool3d_backward", "_adaptive_avg_pool3d", "_adaptive_avg_pool3d_backward"),
            *("adaptive_max_pool2d", "adaptive_max_pool2d_backward", "adaptive_max_pool3d"),
            *("adaptive_max_pool3d_backward", "fractional_max_pool2d", "fractional_max_pool3d"),
        ),
        pooling,
    ),
    "_fused_adamw": optimizer(_ADAMW, tensors=4),
    "_fused_adam": optimizer(_ADAM, tensors=4),
    "_fused_adagrad": optimizer(6, tensors=3),
    "_fused_sgd": sgd,
    "_amp_foreach_non_finite_check_and_unscale": lambda e: Work(flops=2 * total_elements(e.inputs)),
    "_amp_update_scale": lambda e: Work(flops=2),
    **dict.fromkeys(("_fft_c2c", "_fft_r2c", "_fft_c2r"), fft),
}
#: Operators that multiply matrices; attention is among them, convolutions are not.
PRODUCTS = frozenset(
    name
    for name, rule in RULES.items()
    if rule
    in (
        *(matmul, scaled_matmul, linear, grouped_matmul, attention, attention_backward),
        *(attention_sequence_first, attention_sequence_first_backward),
        *(three_factors, native_attention),
    )
)
