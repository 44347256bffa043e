"""Kernels of CUDA that PyTorch gives no shapes for without a GPU: their results, work and class.

Operator -> class, work of one call, and results on tensors without data. PyTorch's CPU build has
neither a meta kernel nor a decomposition of these operators. `tests/oracle/test_torch_reach.py`
compares shapes and types with the CPU's kernels where there are some.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flint.frontends.torch_world.program.operands import num_elements
from flint.frontends.torch_world.record.recording import Event, TensorInfo
from flint.ir.op_class import OpClass
from flint.ir.product_types import product_type
from flint.passes.work import formulas
from flint.passes.work.work import Work

#: From the arguments of an operator to its results; they are on the device of the first one.
Results = Callable[..., Any]
#: From how many matrices, their rows and columns to the work.
Factorisation = Callable[[int, int, int], Work]
#: Attribute of an event that multiplies f32: PyTorch's setting then, `ieee` or `tf32`.
PRECISION = "fp32_precision"


@dataclass(frozen=True, slots=True)
class CudaKernel:
    """One operator: its class, the work of a call, and its results if PyTorch cannot tell them."""

    op: OpClass
    work: Callable[[Event], Work]
    results: Results | None = None


# --- work -----------------------------------------------------------------------------------------


def per_input(operations: int, *, at: int = 0) -> Callable[[Event], Work]:
    """So many operations for each element of operand `at`."""
    return lambda e: Work(flops=operations * num_elements(e.inputs[at]))


def per_output(operations: int) -> Callable[[Event], Work]:
    return lambda e: Work(flops=operations * num_elements(e.outputs[0]))


def _sampled(operations: int) -> Callable[[Event], Work]:
    """So many for each element of the samples: the result, or its gradient."""
    return lambda e: Work(
        flops=operations * num_elements(e.inputs[0] if "backward" in e.op else e.outputs[0])
    )


def by_channel(operations: int, *, at: int = 0) -> Callable[[Event], Work]:
    """So many for each element of operand `at`, which is reduced to one of each channel."""

    def work(e: Event) -> Work:
        shape = e.inputs[at].shape
        channels = shape[1] if len(shape) > 1 else 1
        return formulas.reduction(num_elements(e.inputs[at]), channels, operations)

    return work


def lattice(e: Event) -> Work:
    """CTC: each state of each time step sums three paths in logarithms (8 operations)."""
    states = max((e.inputs + e.outputs)[1:], key=lambda t: num_elements(t) * (len(t.shape) == 3))
    return Work(flops=8 * num_elements(states))


def pairs(e: Event) -> Work:
    """Each class against each that the target names, of which there may be as many as classes."""
    scores = e.inputs[1] if "backward" in e.op else e.inputs[0]
    return Work(flops=2 * num_elements(scores) * scores.shape[-1])


def recurrent(e: Event) -> Work:
    """cuDNN's networks: their products, and the functions of all gates.

    Sizes of the product are those of one time step of one layer and direction, as many times as
    there are: steps wait for each other.
    """
    matrices = _matrices(e)
    rows, steps = _rows_and_steps(e)
    layers, passes, n = _layers(e), _passes(e), matrices[0].shape[0]
    k = max(-(-sum(map(num_elements, matrices)) // (n * layers)), 1)
    m = max(rows // max(steps, 1), 1)
    product = product_type([e.inputs[0].dtype, matrices[0].dtype], str(_precision(e)))
    found = formulas.product(steps * layers * passes, m, n, k, product=product)
    gates = passes * rows * layers * n * _PER_GATE
    return replace(found, flops=recurrent_products(e) + gates)


def recurrent_products(e: Event) -> int:
    """FLOPs: every row of every layer meets each matrix of that layer once."""
    rows, _ = _rows_and_steps(e)
    return 2 * _passes(e) * rows * sum(map(num_elements, _matrices(e)))


#: For each gate: the sum of two products and two biases, the function, and its part in the state.
_PER_GATE = 6


def _precision(e: Event) -> object:
    return e.attributes.get(PRECISION, "")


def _layers(e: Event) -> int:
    return int(e.attributes["num_layers"]) * (2 if e.attributes.get("bidirectional") else 1)


def _matrices(e: Event) -> list[TensorInfo]:
    """Weights of two dimensions: two or, with projections, three of each layer and direction."""
    each = 3 if e.attributes.get("proj_size") else 2
    return [t for t in e.inputs[1:] if len(t.shape) == 2][: each * _layers(e)]


def _rows_and_steps(e: Event) -> tuple[int, int]:
    shape, packed = e.inputs[0].shape, e.attributes.get("batch_sizes")
    if packed:
        return shape[0], len(packed)
    return shape[0] * shape[1], shape[1 if e.attributes.get("batch_first") else 0]


def _passes(e: Event) -> int:
    """Products as large as the forward pass: one backward for the data, and one for the weights."""
    mask = e.attributes.get("output_mask")
    return 1 + int(mask[3]) if mask else 1


def three_factors(e: Event) -> Work:
    """Of `_trilinear`: one product for each place of all dimensions, and one for the third factor."""
    shapes = [_expanded(t, e.attributes.get(f"expand{i}", [])) for i, t in enumerate(e.inputs, 1)]
    whole = [max(sizes) for sizes in zip(*shapes, strict=True)]
    summed = e.attributes.get("sumdim", [])
    first = [d for d in summed if shapes[2][d] == 1]
    left = math.prod(n for d, n in enumerate(whole) if d not in first)
    k = math.prod(whole[d] for d in first)
    product = product_type([e.inputs[0].dtype, e.inputs[1].dtype], str(_precision(e)))
    return formulas.product(1, left, 1, k, added=2 * left, product=product)


def _expanded(tensor: TensorInfo, new: Sequence[int]) -> list[int]:
    shape = list(tensor.shape)
    for dimension in new:
        shape.insert(dimension, 1)
    return shape


def _factorised(formula: Factorisation, times: int = 1) -> Callable[[Event], Work]:
    def work(e: Event) -> Work:
        *outer, m, n = e.inputs[0].shape
        found = formula(math.prod(outer), m, n)
        return replace(found, flops=times * found.flops)

    return work


def singular_values(e: Event) -> Work:
    """Golub and Van Loan, section 8.6: 4 m n^2 + 8 n^3 for all of U, S and V, less for S alone."""
    *outer, m, n = e.inputs[0].shape
    m, n = max(m, n), min(m, n)
    vectors = e.attributes.get("compute_uv", True)
    each = 4 * m * n * n + 8 * n**3 if vectors else 2 * m * n * n + 2 * n**3
    return Work(flops=math.prod(outer) * each)


def solved(e: Event) -> Work:
    """A factorisation, and two triangular systems for each right-hand side."""
    *outer, n, _ = e.inputs[0].shape
    matrices = math.prod(outer)
    sides = num_elements(e.inputs[1])
    return Work(flops=formulas.lu(matrices, n, n).flops + 2 * sides * n)


def triangular(e: Event) -> Work:
    """One triangular system for each right-hand side; of a factor, two."""
    factors = [t for t in e.inputs if len(t.shape) > 1 and t.shape[-1] == t.shape[-2]]
    n = min((t.shape[-1] for t in factors), default=1)
    times = 2 if any(name in e.op for name in ("cholesky_solve", "lu_solve", "ldl_solve")) else 1
    return Work(flops=times * num_elements(e.outputs[0]) * n)


def native_attention(e: Event) -> Work:
    """Four projections of each row, and its scores and values over all rows of its sequence."""
    batch, length, width = e.inputs[0].shape
    product = product_type([e.inputs[0].dtype], str(_precision(e)))
    return formulas.product(1, batch * length, 4 * width + 2 * length, width, product=product)


def distances(operations: int) -> Callable[[Event], Work]:
    """A difference, its power and its sum for each number of each pair of rows."""

    def work(e: Event) -> Work:
        rows = e.inputs[1] if "backward" in e.op else e.inputs[0]
        both = [t for t in e.inputs if len(t.shape) > 1 and t.shape[-1] == rows.shape[-1]]
        others = both[1].shape[-2] if "cdist" in e.op and len(both) > 1 else rows.shape[-2] // 2
        return Work(flops=operations * num_elements(rows) * max(others, 1))

    return work


def windows_of_input(e: Event) -> Work:
    """Antialiased sizes: each result is a weighted sum of what it covers, twice as wide each way."""
    small, large = sorted((e.inputs[0], e.outputs[0]), key=num_elements)
    shrinks = small is e.outputs[0] or small is e.inputs[0] and "backward" in e.op
    dimensions = len(small.shape) - 2
    window = max(num_elements(large) // max(num_elements(small), 1), 1) if shrinks else 1
    return Work(flops=2 * window * 2**dimensions * num_elements(e.outputs[0] if shrinks else large))


# --- results --------------------------------------------------------------------------------------


def wide(dtype: Any) -> Any:
    """What kernels of CUDA add numbers of a type up in."""
    import torch

    return dtype if dtype in (torch.float64, torch.float32) else torch.float32


def _like(at: int = 0) -> Results:
    return lambda *args, **unused: args[at].new_empty(args[at].shape)


def _likes(*at: int) -> Results:
    """Several results; -1 for none."""
    return lambda *args, **unused: tuple(
        None if i < 0 or args[i] is None else args[i].new_empty(args[i].shape) for i in at
    )


def _nothing(*args: object, **unused: object) -> None:
    """Everything is written in place."""


def _statistics(x: Any, *rest: object) -> tuple[Any, Any]:
    made = [x.new_empty((x.shape[1],), dtype=wide(x.dtype)) for _ in range(2)]
    return made[0], made[1]


def _gathered_statistics(x: Any, mean: Any, *rest: object) -> tuple[Any, Any]:
    made = [mean.new_empty((x.shape[1],)) for _ in range(2)]
    return made[0], made[1]


def _reduced_gradients(
    gradient: Any, x: Any, mean: Any, invstd: Any, weight: Any, *wanted: bool
) -> tuple[Any, ...]:
    """Sums over each channel, and gradients of the weight and the bias, as far as wanted."""
    of_input, of_weight, of_bias = wanted
    channels = (x.shape[1],)
    source = mean if weight is None else weight
    return (
        *(mean.new_empty(channels) if of_input else None for _ in range(2)),
        *(source.new_empty(channels) if w else None for w in (of_weight, of_bias)),
    )


def _lstm_cell(gates: Any, hidden_gates: object, cell: Any, *biases: object) -> tuple[Any, ...]:
    """PyTorch's own shapes ask for biases."""
    return cell.new_empty(cell.shape), cell.new_empty(cell.shape), gates.new_empty(gates.shape)


def _gru_cell(gates: object, hidden_gates: object, hx: Any, *rest: object) -> tuple[Any, Any]:
    return hx.new_empty(hx.shape), hx.new_empty((hx.shape[0], 5 * hx.shape[1]))


def _gru_cell_backward(gradient: Any, workspace: Any, has_bias: bool) -> tuple[Any, ...]:
    rows, columns = workspace.shape[0], workspace.shape[1] // 5 * 3
    gates = tuple(workspace.new_empty((rows, columns)) for _ in range(2))
    bias = tuple(workspace.new_empty((columns,)) if has_bias else None for _ in range(2))
    return (*gates, gradient.new_empty(gradient.shape), *bias)


def _cudnn_rnn(
    x: Any, weight: Any, stride: int, buffer: Any, hx: Any, cx: Any, mode: int, *rest: Any
) -> tuple[Any, ...]:
    """As PyTorch's, and with cuDNN's reserve: what the backward pass needs of every step.

    Its size is not documented; taken are all gates and two states of each layer, in the input's type.
    """
    hidden, proj, layers, batch_first, _, train, both, sizes, _ = rest
    directions = 2 if both else 1
    out = proj or hidden
    if sizes:
        lead: tuple[int, ...] = (x.shape[0],)
        batch, rows = sizes[0], x.shape[0]
    else:
        lead = (x.shape[0], x.shape[1])
        batch, rows = x.shape[0 if batch_first else 1], x.shape[0] * x.shape[1]
    states = layers * directions
    output = x.new_empty((*lead, out * directions))
    hy = hx.new_empty((states, batch, out))
    cy = cx.new_empty((states, batch, hidden)) if cx is not None else x.new_empty((0,))
    kept = (_GATES[mode] + 2) * hidden * rows * states * x.element_size() if train else 0
    return output, hy, cy, _bytes(x, kept), x.new_empty((0,)) if buffer is None else buffer


#: cuDNN's modes: RNN with relu, RNN with tanh, LSTM, GRU.
_GATES = (1, 1, 4, 3)


def _bytes(x: Any, count: int) -> Any:
    import torch

    return x.new_empty((count,), dtype=torch.uint8)


def _cudnn_rnn_backward(
    x: Any, weight: Any, stride: int, buffer: Any, hx: Any, cx: Any, *rest: Any
) -> tuple[Any, ...]:
    mask = rest[-1]
    of_cell = cx.new_empty(cx.shape) if cx is not None else None
    weights = [w.new_empty(w.shape) for w in weight] if mask[3] else []
    return x.new_empty(x.shape), hx.new_empty(hx.shape), of_cell, weights


def _with_mask(x: Any, *rest: object) -> tuple[Any, Any]:
    import torch

    return x.new_empty(x.shape), x.new_empty(x.shape, dtype=torch.bool)


def _heads(qkv: Any, bias: Any, heads: int) -> tuple[Any, ...]:
    batch, length, width = qkv.shape
    each = (batch, heads, length, width // 3 // heads)
    return tuple(qkv.new_empty(each) for _ in range(3))


def _reflectors(a: Any) -> tuple[Any, Any]:
    *outer, m, n = a.shape
    return a.new_empty(a.shape), a.new_empty((*outer, min(m, n)))


# --- the table ------------------------------------------------------------------------------------

_MAP, _FUNCTION, _REDUCE = OpClass.ARITHMETIC, OpClass.FUNCTION, OpClass.REDUCE
_SOLVE, _RANDOM, _MATMUL = OpClass.SOLVE, OpClass.RANDOM, OpClass.MATMUL


def _cubes(operations: int) -> Factorisation:
    """So many for each cube of the size of square matrices."""
    return lambda count, m, n: Work(flops=operations * count * n**3)


def _cholesky(count: int, m: int, n: int) -> Work:
    return formulas.cholesky(count, n)


def _free(e: Event) -> Work:
    return Work()


#: Kernels, and the operators that have them: with overload, none for `default`. Those without
#: results have PyTorch's own.
_KERNELS: Mapping[CudaKernel, str] = {
    # batch norm over ranks: statistics 3 operations an element, normalization 4, backward 5 and 9
    CudaKernel(_REDUCE, by_channel(3), _statistics): "batch_norm_stats batch_norm_update_stats",
    CudaKernel(_MAP, per_input(4), _like()): "batch_norm_elemt",
    CudaKernel(
        _REDUCE, per_input(6, at=1), _gathered_statistics
    ): "batch_norm_gather_stats batch_norm_gather_stats_with_counts",
    CudaKernel(_REDUCE, by_channel(5), _reduced_gradients): "batch_norm_backward_reduce",
    CudaKernel(_MAP, per_input(9), _like(1)): "batch_norm_backward_elemt",
    # cells: for each gate the sum of two products and two biases, its function, and the new state
    CudaKernel(_FUNCTION, per_input(21, at=2), _lstm_cell): "_thnn_fused_lstm_cell",
    CudaKernel(_FUNCTION, per_output(5)): "_thnn_fused_lstm_cell_backward_impl",
    CudaKernel(_FUNCTION, per_input(16, at=2), _gru_cell): "_thnn_fused_gru_cell",
    CudaKernel(_FUNCTION, per_input(18), _gru_cell_backward): "_thnn_fused_gru_cell_backward",
    CudaKernel(_MATMUL, recurrent, _cudnn_rnn): "_cudnn_rnn",
    CudaKernel(_MATMUL, recurrent, _cudnn_rnn_backward): "_cudnn_rnn_backward",
    CudaKernel(OpClass.MOVE, _free): "_pack_padded_sequence lu_unpack "
    + " ".join(f"_upsample_nearest_exact{n}d" for n in (1, 2, 3)),
    CudaKernel(OpClass.PAD, _free): "_pack_padded_sequence_backward diag_embed",
    # losses
    CudaKernel(OpClass.SCAN, lattice): "_ctc_loss",
    CudaKernel(OpClass.SCAN, lattice, _like(1)): "_ctc_loss_backward",
    CudaKernel(_REDUCE, per_input(4)): "multi_margin_loss",
    CudaKernel(_MAP, per_input(4, at=1), _like(1)): "multi_margin_loss_backward",
    CudaKernel(_REDUCE, pairs): "multilabel_margin_loss_forward",
    CudaKernel(_REDUCE, pairs, _like(1)): "multilabel_margin_loss_backward",
    CudaKernel(_REDUCE, per_input(5)): "soft_margin_loss",
    CudaKernel(_FUNCTION, per_output(5)): "soft_margin_loss_backward",
    # windows, samples and distances
    CudaKernel(OpClass.SCATTER, per_input(1)): "fractional_max_pool2d_backward",
    CudaKernel(OpClass.SCATTER, per_input(1), _like(1)): "fractional_max_pool3d_backward",
    CudaKernel(OpClass.GATHER, _sampled(11)): "grid_sampler_2d",
    CudaKernel(OpClass.GATHER, _sampled(22)): "grid_sampler_2d_backward",
    CudaKernel(OpClass.GATHER, _sampled(23)): "grid_sampler_3d",
    CudaKernel(OpClass.GATHER, _sampled(46)): "grid_sampler_3d_backward",
    CudaKernel(_MATMUL, per_output(6)): "affine_grid_generator",
    CudaKernel(_REDUCE, distances(3)): "_pdist_forward _cdist_forward",
    CudaKernel(_REDUCE, distances(6)): "_pdist_backward _cdist_backward",
    CudaKernel(_REDUCE, windows_of_input): " ".join(
        f"_upsample_{kind}2d_aa{end}"
        for kind in ("bilinear", "bicubic", "lanczos")
        for end in ("", "_backward")
    ),
    CudaKernel(_REDUCE, per_input(1)): "segment_reduce "
    + " ".join(f"_upsample_nearest_exact{n}d_backward" for n in (1, 2, 3)),
    CudaKernel(_MAP, per_input(1)): "_segment_reduce_backward",
    CudaKernel(_REDUCE, per_input(3)): "renorm",
    CudaKernel(OpClass.SCATTER, per_input(1, at=-1)): "index_reduce",
    CudaKernel(_MAP, per_output(3)): "linalg_cross",
    # products
    CudaKernel(_MATMUL, native_attention): "_native_multi_head_attention",
    CudaKernel(_MATMUL, three_factors): "_trilinear",
    # quantization while training: scale, round, shift, clamp, and back
    CudaKernel(_MAP, per_input(6), _with_mask): "fake_quantize_per_tensor_affine_cachemask "
    "fake_quantize_per_channel_affine_cachemask "
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
    CudaKernel(_MAP, per_input(6), _like()): " ".join(
        f"_fake_quantize_learnable_per_{kind}_affine" for kind in ("tensor", "channel")
    ),
    CudaKernel(_REDUCE, per_input(10), _likes(1, 2, 3)): " ".join(
        f"_fake_quantize_learnable_per_{kind}_affine_backward" for kind in ("tensor", "channel")
    ),
    # attention of encoders in inference
    CudaKernel(OpClass.SOFTMAX, per_input(5), _like()): "_masked_softmax",
    CudaKernel(OpClass.SOFTMAX, per_input(4), _like()): "_masked_softmax_backward",
    CudaKernel(_MAP, per_input(2), _heads): "_transform_bias_rescale_qkv",
    # derivatives of derivatives
    CudaKernel(_FUNCTION, per_input(6), _like()): "glu_jvp",
    CudaKernel(_FUNCTION, per_input(12), _like()): "glu_backward_jvp",
    # distributions: about 50 operations a sample, as series and rejections take
    CudaKernel(_RANDOM, per_input(50)): "_standard_gamma poisson",
    CudaKernel(_FUNCTION, per_input(50), _like()): "_standard_gamma_grad _dirichlet_grad",
    CudaKernel(_RANDOM, per_input(50), _like()): "_sample_dirichlet binomial",
    CudaKernel(_RANDOM, per_input(12)): "multinomial",
    # factorisations (Golub and Van Loan, chapters 3 to 8)
    CudaKernel(_SOLVE, _factorised(_cholesky)): "linalg_cholesky_ex cholesky",
    CudaKernel(_SOLVE, _factorised(_cholesky, 2)): "cholesky_inverse",
    CudaKernel(_SOLVE, _factorised(formulas.lu)): "linalg_lu_factor_ex linalg_lu _linalg_det "
    "_linalg_slogdet linalg_ldl_factor_ex",
    CudaKernel(_SOLVE, _factorised(formulas.lu, 3)): "linalg_inv_ex",
    CudaKernel(_SOLVE, _factorised(formulas.qr, 2)): "linalg_qr linalg_lstsq",
    CudaKernel(_SOLVE, _factorised(formulas.qr), _reflectors): "geqrf",
    CudaKernel(_SOLVE, _factorised(formulas.qr)): "linalg_householder_product ormqr",
    CudaKernel(_SOLVE, singular_values): "_linalg_svd linalg_pinv",
    CudaKernel(_SOLVE, _factorised(_cubes(9))): "_linalg_eigh",
    CudaKernel(_SOLVE, _factorised(_cubes(10))): "_linalg_eigvals",
    CudaKernel(_SOLVE, _factorised(_cubes(20))): "linalg_matrix_exp",
    CudaKernel(_SOLVE, _factorised(_cubes(25))): "linalg_eig",
    CudaKernel(_SOLVE, solved): "_linalg_solve_ex",
    CudaKernel(_SOLVE, triangular): "linalg_solve_triangular triangular_solve cholesky_solve "
    "linalg_lu_solve linalg_ldl_solve",
}
KERNELS: Mapping[str, CudaKernel] = {
    name: kernel for kernel, names in _KERNELS.items() for name in names.split()
}
#: Operators that write all of their results in place, and whose work is known elsewhere.
IN_PLACE = (
    *("_fused_sgd_", "_fused_sgd_.tensor_lr", "_fused_adagrad_", "_fused_adagrad_.tensor_lr"),
    *("_fused_adam_.tensor_lr", "_fused_adamw_.tensor_lr"),
)


def shape_kernels() -> dict[str, Results]:
    """Results of operators by name."""
    found = {name: k.results for name, k in KERNELS.items() if k.results is not None}
    return {**found, **dict.fromkeys(IN_PLACE, _nothing)}
