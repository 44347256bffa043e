"""What the operations of StableHLO, CHLO and Shardy are, as classes."""

from __future__ import annotations

from typing import Any

from flint.ir.op_class import OpClass

#: Names of StableHLO's operations by class. HLO has the same, spelled with dashes.
STABLEHLO: dict[OpClass, str] = {
    OpClass.RESULT: "return",
    OpClass.CONSTANT: "constant",
    OpClass.IOTA: "iota",
    OpClass.FILL: "partition_id replica_id",
    OpClass.RANDOM: "rng rng_bit_generator",
    OpClass.ARITHMETIC: "abs and bitcast_convert ceil clamp complex count_leading_zeros floor imag "
    "not or real round_nearest_afz round_nearest_even select shift_left shift_right_arithmetic "
    "shift_right_logical sign xor",
    OpClass.FUNCTION: "atan2 cbrt exponential_minus_one is_finite log_plus_one logistic map popcnt "
    "remainder rsqrt sqrt tanh uniform_dequantize uniform_quantize",
    OpClass.ADD: "add",
    OpClass.SUBTRACT: "subtract",
    OpClass.MULTIPLY: "multiply",
    OpClass.DIVIDE: "divide",
    OpClass.NEGATE: "negate",
    OpClass.MAXIMUM: "maximum",
    OpClass.MINIMUM: "minimum",
    OpClass.COMPARE: "compare",
    OpClass.CONVERT: "convert",
    OpClass.REDUCE_PRECISION: "reduce_precision",
    OpClass.EXPONENTIAL: "exponential",
    OpClass.LOGARITHM: "log",
    OpClass.POWER: "power",
    OpClass.TRIGONOMETRIC: "cosine sine tan",
    OpClass.BROADCAST: "broadcast broadcast_in_dim",
    OpClass.RESHAPE: "reshape",
    OpClass.REVERSE: "reverse",
    OpClass.SLICE: "slice",
    OpClass.TRANSPOSE: "transpose",
    OpClass.CONCATENATE: "concatenate",
    OpClass.PAD: "pad",
    OpClass.DYNAMIC_SLICE: "dynamic_slice",
    OpClass.UPDATE_SLICE: "dynamic_update_slice",
    OpClass.GATHER: "gather dynamic_gather torch_index_select",
    OpClass.SCATTER: "scatter",
    OpClass.REDUCE: "reduce reduce_window",
    OpClass.REDUCE_SCATTERED: "select_and_scatter",
    OpClass.BATCH_NORM: "batch_norm_grad batch_norm_training",
    OpClass.NORM: "batch_norm_inference",
    OpClass.MATMUL: "dot dot_general",
    OpClass.CONVOLUTION: "convolution dynamic_conv",
    OpClass.SORT: "sort",
    OpClass.FFT: "fft",
    OpClass.SOLVE: "cholesky triangular_solve",
    OpClass.CALL: "custom_call",
    OpClass.EFFECT: "infeed outfeed send recv",
}
#: Those of CHLO, which JAX writes for functions that StableHLO lacks.
CHLO: dict[OpClass, str] = {
    OpClass.CONSTANT: "constant constant_like",
    OpClass.ARITHMETIC: "broadcast_and broadcast_complex broadcast_or broadcast_select "
    "broadcast_shift_left broadcast_shift_right_arithmetic broadcast_shift_right_logical "
    "broadcast_xor conj is_inf is_neg_inf is_pos_inf mulhi square",
    OpClass.FUNCTION: "acos acosh asin asinh atan atanh bessel_i1e broadcast_atan2 "
    "broadcast_next_after broadcast_polygamma broadcast_remainder broadcast_zeta cosh digamma erf "
    "erf_inv erfc lgamma next_after polygamma sinh zeta",
    OpClass.ADD: "broadcast_add",
    OpClass.SUBTRACT: "broadcast_subtract",
    OpClass.MULTIPLY: "broadcast_multiply",
    OpClass.DIVIDE: "broadcast_divide",
    OpClass.MAXIMUM: "broadcast_maximum",
    OpClass.MINIMUM: "broadcast_minimum",
    OpClass.COMPARE: "broadcast_compare",
    OpClass.POWER: "broadcast_power",
    OpClass.TRIGONOMETRIC: "tan",
    OpClass.MATMUL: "ragged_dot",
    OpClass.TOP_K: "top_k",
}
#: Those of Shardy and of functions.
_OTHERS: dict[OpClass, str] = {
    OpClass.RESULT: "func.return sdy.return",
    OpClass.CONSTANT: "sdy.constant",
    OpClass.ALL_SLICE: "sdy.all_slice",
}


def names_of(table: dict[OpClass, str], prefix: str) -> dict[str, OpClass]:
    """Full names to classes."""
    return {prefix + name: c for c, names in table.items() for name in names.split()}


#: Full names of operations to their classes.
CLASSES: dict[str, OpClass] = (
    names_of(STABLEHLO, "stablehlo.") | names_of(CHLO, "chlo.") | names_of(_OTHERS, "")
)


def class_of(name: str) -> OpClass:
    """The class of an operation; UNKNOWN if it has none."""
    return CLASSES.get(name, OpClass.UNKNOWN)


#: Keys of the operation that finds the largest few.
TOP_K = ("chlo.top_k", "custom_call:mhlo.topk")


def key_of(op: Any) -> str:
    """The name of an operation, of a custom call with that of its target: `custom_call:mhlo.topk`."""
    if op.name == "stablehlo.custom_call":
        return f"custom_call:{op.attributes['call_target_name'].value}"
    return str(op.name)
