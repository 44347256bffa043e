"""Operations of one price: each does as many FLOPs on as many bytes as the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from flint.ir.op_class import OpClass
from flint.ir.program import Kind, Program


class Operation(NamedTuple):
    """One operation of a price: its opcode, its class, and how often it is drawn, in hundredths."""

    opcode: str
    op: OpClass
    share: int


#: Groups of operations with one price: one FLOP an element, of two operands, of one and few instructions,
#: of one and many. Shares are about those of 76,000 such rows of captured public models, each at least 4:
#: what is drawn says nothing of what was there.
PRICES: tuple[tuple[Operation, ...], ...] = (
    (
        Operation("stablehlo.multiply", OpClass.MULTIPLY, 43),
        Operation("stablehlo.add", OpClass.ADD, 29),
        Operation("stablehlo.subtract", OpClass.SUBTRACT, 10),
        Operation("stablehlo.divide", OpClass.DIVIDE, 10),
        Operation("stablehlo.maximum", OpClass.MAXIMUM, 4),
        Operation("stablehlo.minimum", OpClass.MINIMUM, 4),
    ),
    (
        Operation("stablehlo.negate", OpClass.NEGATE, 52),
        Operation("chlo.square", OpClass.ARITHMETIC, 40),
        Operation("stablehlo.abs", OpClass.ARITHMETIC, 8),
    ),
    (
        Operation("stablehlo.sqrt", OpClass.FUNCTION, 40),
        Operation("stablehlo.rsqrt", OpClass.FUNCTION, 22),
        Operation("stablehlo.exponential", OpClass.EXPONENTIAL, 18),
        Operation("stablehlo.tanh", OpClass.FUNCTION, 8),
        Operation("stablehlo.log", OpClass.LOGARITHM, 4),
        Operation("stablehlo.cosine", OpClass.TRIGONOMETRIC, 4),
        Operation("stablehlo.sine", OpClass.TRIGONOMETRIC, 4),
    ),
)
#: Opcodes of a group that are exchanged and never drawn.
_ALSO = {"chlo.erfc": 2, "chlo.erf": 2, "stablehlo.logistic": 2}
_PRICE: Mapping[str, int] = {
    **{one.opcode: n for n, group in enumerate(PRICES) for one in group},
    **_ALSO,
}
_FLOATS = ("f", "bf")


def prices_of(program: Program) -> tuple[int, ...]:
    """For each row the number of its group in `PRICES`, -1 for rows that are of none."""
    group = np.array([_PRICE.get(name, -1) for name in program.opcodes], dtype=np.int64)
    is_float = np.array([d.startswith(_FLOATS) for d in program.dtypes], dtype=np.bool_)
    found = group[program.opcode]
    found[(program.kind != Kind.COMPUTE) | ~is_float[program.dtype]] = -1
    return tuple(found.tolist())


def another(price: int, random: np.random.Generator) -> Operation:
    """An operation of a price, drawn by its share."""
    group = PRICES[price]
    shares = np.array([one.share for one in group], dtype=np.float64)
    return group[int(random.choice(len(group), p=shares / shares.sum()))]
