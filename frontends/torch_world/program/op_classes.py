"""What PyTorch's operators are, as classes."""

from __future__ import annotations

from flint.frontends.torch_world.program.cuda_kernels import KERNELS
from flint.frontends.torch_world.program.names import base_name
from flint.ir.op_class import OpClass

#: Names of operators, without `aten.`, overload, `_foreach_` and a last underscore, by class.
_ATEN: dict[OpClass, str] = {
    OpClass.FILL: "bartlett_window blackman_window fft_fftfreq fft_rfftfreq hamming_window "
    "hann_window kaiser_window logspace range tril_indices triu_indices _efficientzerotensor _local_scalar_dense _new_zeros_with_same_feature_meta arange eye fill full full_like linspace new_full new_ones "
    "new_zeros ones ones_like scalar_tensor zero zeros zeros_like",
    OpClass.RANDOM: "bernoulli cauchy exponential geometric log_normal normal rand "
    "rand_like randint randint_like randn randn_like random randperm uniform",
    OpClass.ARITHMETIC: "addr clip frexp gcd isneginf isposinf lcm ldexp masked_scatter_backward "
    "rad2deg signbit _conj_physical abs angle bitwise_and bitwise_left_shift bitwise_not "
    "bitwise_or bitwise_right_shift bitwise_xor ceil clamp clamp_max clamp_min complex "
    "conj_physical copysign deg2rad eq floor fmax fmin frac isfinite isinf isnan leaky_relu "
    "leaky_relu_backward lerp logical_and logical_not logical_or logical_xor masked_fill "
    "nan_to_num ne polar relu relu6 round sgn sign square threshold threshold_backward trunc where "
    "__and__ __or__ __xor__ __iand__ __ior__ __ixor__ __lshift__ __rshift__ addcmul hardtanh "
    "hardtanh_backward heaviside prelu softshrink _prelu_kernel _prelu_kernel_backward hardshrink "
    "hardshrink_backward rrelu_with_noise rrelu_with_noise_backward softshrink_backward",
    OpClass.FUNCTION: "igamma igammac logit_backward mvlgamma special_entr special_erfcx "
    "special_i0e special_i1 special_i1e special_log_ndtr special_ndtri special_xlog1py special_zeta "
    "special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1 acos acosh addcdiv asin asinh atan atan2 atanh celu cosh digamma elu "
    "elu_backward erf erfc erfinv exp2 expm1 floor_divide fmod gelu gelu_backward glu "
    "glu_backward hardsigmoid hardsigmoid_backward hardswish hardswish_backward hypot i0 lgamma "
    "log_sigmoid log_sigmoid_backward log_sigmoid_forward logaddexp logaddexp2 logit mish "
    "mish_backward nextafter polygamma reciprocal remainder rsqrt selu sigmoid sigmoid_backward "
    "silu silu_backward sinc sinh softplus softplus_backward sqrt tanh tanh_backward xlogy",
    OpClass.ADD: "add",
    OpClass.SUBTRACT: "sub rsub",
    OpClass.MULTIPLY: "mul",
    OpClass.DIVIDE: "div",
    OpClass.NEGATE: "neg",
    OpClass.MAXIMUM: "maximum",
    OpClass.MINIMUM: "minimum",
    OpClass.COMPARE: "ge gt le lt tril triu",
    OpClass.CONVERT: "_to_copy",
    OpClass.EXPONENTIAL: "exp",
    OpClass.LOGARITHM: "log log10 log1p log2",
    OpClass.POWER: "pow",
    OpClass.TRIGONOMETRIC: "cos sin tan",
    OpClass.BROADCAST: "repeat",
    OpClass.RESHAPE: "flatten",
    OpClass.REVERSE: "flip",
    OpClass.SLICE: "split_copy split_with_sizes_copy",
    OpClass.COPY: "alias_copy clone contiguous copy detach_copy expand_copy lift_fresh_copy "
    "narrow_copy permute_copy select_copy slice_copy squeeze_copy t_copy to transpose_copy "
    "unbind_copy unfold_copy unsqueeze_copy view_copy",
    OpClass.CONCATENATE: "block_diag cat stack",
    OpClass.PAD: "constant_pad_nd select_backward slice_backward",
    OpClass.GATHER: "_embedding_bag _embedding_bag_forward_only _unsafe_index embedding gather "
    "index index_select masked_select take",
    OpClass.SCATTER: "_embedding_bag_dense_backward _embedding_bag_backward _index_put_impl "
    "_unsafe_index_put diagonal_scatter embedding_dense_backward index_add index_copy index_fill "
    "index_put masked_scatter scatter scatter_add scatter_reduce select_scatter slice_scatter",
    OpClass.MOVE: "_jagged_to_padded_dense_forward _padded_dense_to_jagged_forward "
    "as_strided_scatter rot90 _chunk_cat diagonal_backward im2col max_unpool2d pixel_shuffle "
    "pixel_unshuffle reflection_pad1d reflection_pad2d reflection_pad3d repeat_interleave "
    "replication_pad1d replication_pad2d replication_pad3d roll channel_shuffle "
    "native_channel_shuffle max_unpool3d",
    OpClass.REDUCE: "_weight_norm_interface _weight_norm_interface_backward dist nansum trace "
    "_euclidean_dist all amax amin aminmax any argmax argmin bincount "
    "count_nonzero linalg_vector_norm logsumexp max mean median min mse_loss nanmedian norm "
    "nuclear_norm prod std std_mean sum var var_mean",
    OpClass.SOFTMAX: "_log_softmax _log_softmax_backward_data _safe_softmax _softmax "
    "_softmax_backward_data",
    OpClass.NORM: "_batch_norm_with_update _fused_rms_norm _fused_rms_norm_backward "
    "_native_batch_norm_legit _native_batch_norm_legit_functional "
    "_native_batch_norm_legit_no_training batch_norm_backward cudnn_batch_norm "
    "cudnn_batch_norm_backward native_batch_norm native_batch_norm_backward native_group_norm "
    "native_group_norm_backward native_layer_norm native_layer_norm_backward rms_norm",
    OpClass.SCAN: "cummax cummin cumprod cumsum logcumsumexp",
    OpClass.MATMUL: "_addmm_activation _grouped_mm _int_mm _scaled_grouped_mm _scaled_grouped_mm_v2 _scaled_mm _scaled_mm_v2 addbmm addmm addmv baddbmm "
    "bmm dot linear matmul mm mv vdot",
    OpClass.CONVOLUTION: "convolution",
    OpClass.CONVOLUTION_BACKWARD: "convolution_backward",
    OpClass.ATTENTION: "_scaled_dot_product_flash_attention "
    "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_efficient_attention "
    "_scaled_dot_product_cudnn_attention _scaled_dot_product_fused_attention_overrideable "
    "_flash_attention_forward _efficient_attention_forward _cudnn_attention_forward "
    "_varlen_attn _varlen_attn_out _flash_attention_forward_no_dropout_inplace",
    OpClass.ATTENTION_BACKWARD: "_scaled_dot_product_flash_attention_backward "
    "_scaled_dot_product_flash_attention_for_cpu_backward "
    "_scaled_dot_product_efficient_attention_backward "
    "_scaled_dot_product_cudnn_attention_backward "
    "_scaled_dot_product_fused_attention_overrideable_backward _flash_attention_backward "
    "_efficient_attention_backward _cudnn_attention_backward _varlen_attn_backward",
    OpClass.SORT: "argsort sort",
    OpClass.TOP_K: "topk",
    OpClass.FFT: "_fft_c2c _fft_c2r _fft_r2c",
    OpClass.DROPOUT: "native_dropout native_dropout_backward",
    OpClass.OPTIMIZER: "_fused_adagrad _fused_adam _fused_adamw _fused_sgd",
}
_CLASSES = {
    **{name.partition(".")[0]: kernel.op for name, kernel in KERNELS.items()},
    **{name: c for c, names in _ATEN.items() for name in names.split()},
}


def class_of(op: str) -> OpClass:
    """The class of a recorded operator (`aten.add_.Tensor`); UNKNOWN if it has none."""
    if op.startswith("fsdp."):
        return OpClass.UNPACK
    return _CLASSES.get(base_name(op), OpClass.UNKNOWN)
