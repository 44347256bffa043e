"""Opcodes by what they do to data.

Names are those of StableHLO, CHLO and Shardy with their dialect (`stablehlo.add`, `chlo.erf`), and
those of XLA HLO after `hlo.` (`hlo.add`, `hlo.dynamic-slice`). An opcode is in at most one of the
sets from ELEMENTWISE to ALGORITHM; one that is in none (`stablehlo.custom_call`, `hlo.fusion`) is
opaque, and passes leave it alone.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from flint.program import Program


def _names(stablehlo: str, *, chlo: str = "", hlo: str = "") -> frozenset[str]:
    """Full names from StableHLO's; HLO spells them with dashes, `hlo` adds what only it has."""
    return frozenset(
        [f"stablehlo.{n}" for n in stablehlo.split()]
        + [f"hlo.{n.replace('_', '-')}" for n in stablehlo.split()]
        + [f"chlo.{n}" for n in chlo.split()]
        + [f"hlo.{n}" for n in hlo.split()]
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
)
#: Results made from nothing or from a few scalars.
GENERATED = _names(
    "constant iota rng rng_bit_generator partition_id replica_id",
    chlo="constant constant_like",
    hlo="rng-get-and-update-state",
)
#: Many elements of an operand make one of the result.
REDUCTION = _names("reduce reduce_window select_and_scatter batch_norm_grad batch_norm_training")
#: Products of matrices: `dims` holds (batch, m, n, k).
MATMUL = _names("dot dot_general", chlo="ragged_dot", hlo="ragged-dot scaled-dot")
#: Convolutions: `dims` holds the product of matrices that computes the same.
CONVOLUTION = _names("convolution dynamic_conv")
#: Other algorithms over a whole operand.
ALGORITHM = _names("cholesky fft sort triangular_solve", chlo="top_k", hlo="topk top-k")
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
