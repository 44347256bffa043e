"""What the instructions of HLO are, as classes."""

from __future__ import annotations

from flint.ir.op_class import OpClass

_NAMES: dict[OpClass, str] = {
    OpClass.CONSTANT: "constant",
    OpClass.IOTA: "iota",
    OpClass.FILL: "partition-id replica-id",
    OpClass.RANDOM: "rng rng-bit-generator rng-get-and-update-state",
    OpClass.ARITHMETIC: "abs and bitcast-convert ceil clamp complex count-leading-zeros floor imag not or "
    "real round-nearest-afz round-nearest-even select shift-left "
    "shift-right-arithmetic shift-right-logical sign xor",
    OpClass.FUNCTION: "atan2 cbrt exponential-minus-one is-finite log-plus-one logistic map popcnt "
    "remainder rsqrt sqrt tanh erf "
    "stochastic-convert",
    OpClass.ADD: "add",
    OpClass.SUBTRACT: "subtract",
    OpClass.MULTIPLY: "multiply",
    OpClass.DIVIDE: "divide",
    OpClass.NEGATE: "negate",
    OpClass.MAXIMUM: "maximum",
    OpClass.MINIMUM: "minimum",
    OpClass.COMPARE: "compare",
    OpClass.CONVERT: "convert",
    OpClass.REDUCE_PRECISION: "reduce-precision",
    OpClass.EXPONENTIAL: "exponential",
    OpClass.LOGARITHM: "log",
    OpClass.POWER: "power",
    OpClass.TRIGONOMETRIC: "cosine sine tan",
    OpClass.BROADCAST: "broadcast",
    OpClass.RESHAPE: "reshape bitcast",
    OpClass.REVERSE: "reverse",
    OpClass.SLICE: "slice",
    OpClass.TRANSPOSE: "transpose",
    OpClass.CONCATENATE: "concatenate",
    OpClass.PAD: "pad",
    OpClass.DYNAMIC_SLICE: "dynamic-slice",
    OpClass.UPDATE_SLICE: "dynamic-update-slice",
    OpClass.GATHER: "gather",
    OpClass.SCATTER: "scatter scatter-add",
    OpClass.REDUCE: "reduce reduce-window",
    OpClass.REDUCE_SCATTERED: "select-and-scatter",
    OpClass.BATCH_NORM: "batch-norm-grad batch-norm-training",
    OpClass.NORM: "batch-norm-inference",
    OpClass.MATMUL: "dot ragged-dot scaled-dot",
    OpClass.CONVOLUTION: "convolution",
    OpClass.SORT: "sort",
    OpClass.FFT: "fft",
    OpClass.SOLVE: "cholesky triangular-solve",
    OpClass.CALL: "custom-call",
    OpClass.EFFECT: "infeed outfeed send recv send-done recv-done",
    OpClass.COPY: "copy",
    OpClass.TOP_K: "topk top-k",
    OpClass.COMPILED: "fusion",
}
#: Opcodes, as HLO spells them, to classes.
CLASSES: dict[str, OpClass] = {name: c for c, names in _NAMES.items() for name in names.split()}


def class_of(opcode: str) -> OpClass:
    """The class of an instruction; UNKNOWN if it has none."""
    return CLASSES.get(opcode, OpClass.UNKNOWN)
