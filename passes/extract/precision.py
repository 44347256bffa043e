"""What an operation of StableHLO multiplies: the types of its operands, and how it is asked to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from flint.ir.product_types import SETTING, XLA_LEVELS, algorithm_type, level_of, product_type
from flint.passes.mlir import FRONTEND_ATTRIBUTES


class Typed(Protocol):
    """Anything with a type."""

    @property
    def dtype(self) -> str: ...


class Product(Protocol):
    """An operation with operands. `op` is the MLIR operation."""

    @property
    def op(self) -> Any: ...
    @property
    def operands(self) -> Sequence[Typed]: ...


def product_of(o: Product) -> str:
    """The name of what the first two operands are multiplied in (`flint.ir.product_types`)."""
    attributes = o.op.attributes
    if "algorithm" in attributes:
        return _of_algorithm(attributes["algorithm"])
    said = attributes.get(FRONTEND_ATTRIBUTES, {})
    how = said[SETTING].value if SETTING in said else ""
    if not how and "precision_config" in attributes:
        how = level_of([_level(str(p)) for p in attributes["precision_config"]])
    return product_type([t.dtype for t in o.operands[:2]], how)


def _level(precision: str) -> int:
    """Of `#stablehlo<precision HIGH>`."""
    word = precision.rstrip(">").rpartition(" ")[2]
    return XLA_LEVELS.index(word) if word in XLA_LEVELS else 0


def _of_algorithm(attribute: Any) -> str:
    from jaxlib.mlir.dialects import stablehlo

    algorithm = stablehlo.DotAlgorithm(attribute)
    return algorithm_type(str(algorithm.lhs_precision_type), algorithm.num_primitive_operations)
