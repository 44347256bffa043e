"""What an HLO instruction multiplies: the types of its operands, and how it is asked to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from flint.ir.product_types import SETTING, XLA_LEVELS, algorithm_type, level_of, product_type
from flint.passes.hlo import shapes
from flint.passes.hlo.module import Instruction

#: xla.PrecisionConfig.Algorithm by name and number: the type that is multiplied, and how often.
#: Those for f8 say no more than their operands.
_ALGORITHMS = {
    "ALG_DOT_F16_F16_F16": (3, "f16", 1),
    "ALG_DOT_F16_F16_F32": (4, "f16", 1),
    "ALG_DOT_BF16_BF16_BF16": (5, "bf16", 1),
    "ALG_DOT_BF16_BF16_F32": (6, "bf16", 1),
    "ALG_DOT_BF16_BF16_F32_X3": (7, "bf16", 3),
    "ALG_DOT_BF16_BF16_F32_X6": (8, "bf16", 6),
    "ALG_DOT_TF32_TF32_F32": (9, "tf32", 1),
    "ALG_DOT_TF32_TF32_F32_X3": (10, "tf32", 3),
    "ALG_DOT_F32_F32_F32": (11, "f32", 1),
    "ALG_DOT_F64_F64_F64": (12, "f64", 1),
    "ALG_DOT_BF16_BF16_F32_X9": (13, "bf16", 9),
}
_BY_NUMBER = {number: name for name, (number, _, _) in _ALGORITHMS.items()}
#: Frontend attribute: the name of an algorithm where the operation itself cannot say it.
ALGORITHM = "flint.algorithm"


class HloProduct(Protocol):
    """An instruction and its operands."""

    @property
    def instruction(self) -> Instruction: ...
    @property
    def operands(self) -> list[Instruction]: ...


def product_of(o: HloProduct) -> str:
    """The name of what the first two operands are multiplied in (`flint.ir.product_types`)."""
    config = o.instruction.precision_config
    said = {a.key: a.value for a in o.instruction.frontend_attributes.map}
    if SETTING in said:
        return product_type(_types(o.operands), said[SETTING])
    algorithm = said.get(ALGORITHM) or algorithm_name(config.algorithm)
    return _named(o.operands, algorithm, list(config.operand_precision))


def algorithm_name(number: int) -> str:
    """The name of an `xla.PrecisionConfig.Algorithm`; empty for one that says no more than the operands."""
    return _BY_NUMBER.get(number, "")


def product_of_call(o: HloProduct, config: Mapping[str, Any]) -> str:
    """The same of a call of a library, whose configuration is JSON."""
    found = config.get("precision_config")
    precision = found if isinstance(found, dict) else {}
    words = precision.get("operand_precision")
    levels = [
        XLA_LEVELS.index(word)
        for word in (words if isinstance(words, list) else ())
        if isinstance(word, str) and word in XLA_LEVELS
    ]
    return _named(o.operands, str(precision.get("algorithm", "")), levels)


def _named(operands: Sequence[Instruction], algorithm: str, levels: Sequence[int]) -> str:
    if algorithm in _ALGORITHMS:
        _, dtype, products = _ALGORITHMS[algorithm]
        return algorithm_type(dtype, products)
    return product_type(_types(operands), level_of(levels))


def _types(operands: Sequence[Instruction]) -> list[str]:
    return [shapes.first(v.shape)[0] for v in operands[:2]]
