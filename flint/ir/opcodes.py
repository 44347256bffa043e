"""Opcodes by what they do to data.

Names are those of StableHLO, CHLO and Shardy with their dialect (`stablehlo.add`, `chlo.erf`),
those of XLA HLO after `hlo.` (`hlo.add`, `hlo.dynamic-slice`), and those of PyTorch's operators after
`aten.`, in place with their underscore (`aten.add`, `aten.add_`, `aten._foreach_add_`). An opcode is
in at most one of the sets from ELEMENTWISE to ALGORITHM; one that is in none (`stablehlo.custom_call`, `hlo.fusion`) is
opaque, and passes leave it alone.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from flint.ir.program import Program


def _names(stablehlo: str, *, chlo: str = "", hlo: str = "") -> frozenset[str]:
    """Full names from StableHLO's; HLO spells them with dashes, `hlo` adds what only it has."""
    return frozenset(
        [f"stablehlo.{n}" for n in stablehlo.split()]
        + [f"hlo.{n.replace('_', '-')}" for n in stablehlo.split()]
        + [f"chlo.{n}" for n in chlo.split()]
        + [f"hlo.{n}" for n in hlo.split()]
    )


def _aten(names: str) -> frozenset[str]:
    """Full names of PyTorch's operators: as they are, in place, and over lists of tensors."""
    return frozenset(
        f"aten.{several}{name}{in_place}"
        for name in names.split()
        for several in ("", "_foreach_")
        for in_place in ("", "_")
    )


#: Each element of the result is computed from the elements at the same place of the operands.
ELEMENTWISE = _names(
    "abs add and atan2 bitcast_convert cbrt ceil clamp compare complex convert cosine "
    "count_leading_zeros divide exponential exponential_minus_one floor imag is_finite log "
    "log_plus_one logistic map maximum minimum multiply negate not or popcnt power real "
    "reduce_precision remainder round_nearest_afz round_nearest_even rsqrt select shift_left "
    "shift_right_arithmetic shift_right_logical sign sine sqrt subtract tan tanh "
    "uniform_dequantize uniform_quantize xor",
    chlo="acos acosh asin asinh atan atanh bessel_i1e broadcast_add broadcast_and "
    "broadcast_atan2 broadcast_compare broadcast_complex broadcast_divide broadcast_maximum "
    "broadcast_minimum broadcast_multiply broadcast_next_after broadcast_or "
    "broadcast_polygamma broadcast_power broadcast_remainder broadcast_select "
    "broadcast_shift_left broadcast_shift_right_arithmetic broadcast_shift_right_logical "
    "broadcast_subtract broadcast_xor broadcast_zeta conj cosh digamma erf erf_inv erfc is_inf "
    "is_neg_inf is_pos_inf lgamma mulhi next_after polygamma sinh square tan zeta",
    hlo="erf stochastic-convert",
) | _aten(
    "_conj_physical _to_copy abs acos acosh add addcdiv addcmul angle asin asinh atan atan2 atanh "
    "bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil "
    "celu clamp clamp_max clamp_min complex conj_physical copysign cos cosh deg2rad digamma div "
    "elu elu_backward eq erf erfc erfinv exp exp2 expm1 floor floor_divide fmax fmin fmod frac ge "
    "gelu gelu_backward glu glu_backward gt hardsigmoid hardsigmoid_backward hardswish "
    "hardswish_backward hardtanh hardtanh_backward heaviside hypot i0 isfinite isinf isnan le "
    "leaky_relu leaky_relu_backward lerp lgamma log log10 log1p log2 log_sigmoid "
    "log_sigmoid_backward log_sigmoid_forward logaddexp logaddexp2 logical_and logical_not logical_or logical_xor logit "
    "lt masked_fill maximum minimum mish mish_backward mul nan_to_num ne neg nextafter polar "
    "polygamma pow prelu reciprocal relu relu6 remainder round rsqrt rsub sgn sigmoid "
    "sigmoid_backward sign sin sinc sinh softplus softplus_backward softshrink sqrt square sub tan "
    "tanh tanh_backward threshold threshold_backward tril triu trunc where xlogy silu "
    "silu_backward selu __and__ __or__ __xor__ __iand__ __ior__ __ixor__ __lshift__ __rshift__"
)
#: Elements of a result are copies of elements of an operand, at places known beforehand.
LAYOUT = _names(
    "broadcast broadcast_in_dim reshape reverse slice transpose",
    hlo="bitcast copy",
)
#: Copies of elements at places that an operand gives, or only of some of them.
DATA_MOVEMENT = _names(
    "concatenate dynamic_slice dynamic_update_slice gather pad scatter torch_index_select",
    hlo="scatter-add",
) | _aten(
    "_chunk_cat _index_put_impl _unsafe_index _unsafe_index_put cat clone constant_pad_nd "
    "contiguous copy diagonal_backward diagonal_scatter embedding embedding_dense_backward "
    "flatten flip gather "
    "im2col index index_add index_copy index_fill index_put index_select masked_scatter "
    "max_unpool2d pixel_shuffle reflection_pad1d reflection_pad2d repeat repeat_interleave "
    "replication_pad2d roll scatter scatter_add scatter_reduce select_backward select_scatter "
    "slice_backward slice_scatter split_copy split_with_sizes_copy stack take"
)
#: Results made from nothing or from a few scalars.
GENERATED = _names(
    "constant iota rng rng_bit_generator partition_id replica_id",
    chlo="constant constant_like",
    hlo="rng-get-and-update-state",
) | _aten(
    "_local_scalar_dense arange bernoulli exponential eye fill full full_like linspace "
    "new_full new_ones new_zeros normal ones ones_like rand rand_like randint randint_like randn "
    "randn_like random randperm scalar_tensor uniform zero zeros zeros_like"
)
#: Many elements of an operand make one of the result.
REDUCTION = _names(
    "reduce reduce_window select_and_scatter batch_norm_grad batch_norm_training"
) | _aten(
    "_euclidean_dist _log_softmax _log_softmax_backward_data _safe_softmax _softmax "
    "_softmax_backward_data all amax amin aminmax any argmax argmin bincount count_nonzero "
    "linalg_vector_norm logsumexp max mean median min mse_loss nanmedian norm "
    "nuclear_norm prod std std_mean sum var var_mean"
)
#: Products of matrices: `dims` holds (batch, m, n, k).
MATMUL = _names("dot dot_general", chlo="ragged_dot", hlo="ragged-dot scaled-dot") | _aten(
    "_grouped_mm _int_mm _scaled_grouped_mm _scaled_mm addbmm addmm addmv baddbmm bmm dot linear "
    "matmul mm mv vdot"
)
#: Convolutions: `dims` holds the product of matrices that computes the same.
CONVOLUTION = _names("convolution dynamic_conv") | _aten("convolution convolution_backward")
#: Attention in one kernel: `dims` holds the first of its products.
ATTENTION = frozenset(
    f"aten._{kernel}{direction}{mask}"
    for kernel, directions in (
        ("scaled_dot_product_flash_attention", ("", "_backward")),
        ("scaled_dot_product_flash_attention_for_cpu", ("", "_backward")),
        ("scaled_dot_product_efficient_attention", ("", "_backward")),
        ("scaled_dot_product_cudnn_attention", ("", "_backward")),
        ("scaled_dot_product_fused_attention_overrideable", ("", "_backward")),
        ("flash_attention", ("_forward", "_backward")),
        ("efficient_attention", ("_forward", "_backward")),
        ("cudnn_attention", ("_forward", "_backward")),
    )
    for direction in directions
    for mask in ("", "[causal]")
)
#: Kernels of several products, of which `dims` holds one.
SEVERAL_PRODUCTS = ATTENTION | {"aten.convolution_backward"}
#: Fourier transforms.
FFT = _names("fft") | _aten("_fft_c2c _fft_c2r _fft_r2c")
#: The k largest of each row.
TOP_K = _names("", chlo="top_k", hlo="topk top-k") | _aten("topk")
#: Algorithms over a whole operand.
ALGORITHM = (
    _names("cholesky sort triangular_solve")
    | FFT
    | TOP_K
    | _aten("argsort cummax cummin cumprod cumsum logcumsumexp sort")
)
#: Operations that must happen even if nothing reads their result.
SIDE_EFFECT = _names("infeed outfeed send recv", hlo="send-done recv-done")
#: Rows that hold what the step returns; everything that they reach is alive.
RESULT = frozenset({"flint.result", "func.return", "stablehlo.return", "sdy.return", "hlo.ROOT"})
#: Sums of two values, element by element.
ADD = frozenset({"stablehlo.add", "chlo.broadcast_add", "hlo.add"})
#: All-reduces that sum. One that reduces otherwise carries it in its name, `[max]`.
SUM_ALL_REDUCE = frozenset({"sdy.all_reduce", "stablehlo.all_reduce", "hlo.all-reduce"})
#: Each device keeps its part of a value that all of a group hold.
ALL_SLICE = "sdy.all_slice"


def opcode_mask(program: Program, opcodes: Iterable[str]) -> NDArray[np.bool_]:
    """For each row, whether its opcode is one of `opcodes`."""
    wanted = frozenset(opcodes)
    table = np.array([name in wanted for name in program.opcodes], dtype=np.bool_)
    return table[program.opcode]
