"""What a product of StableHLO multiplies: types of its operands, how it is asked to, and their order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from flint.ir.product_types import SETTING, XLA_LEVELS, algorithm_type, level_of, product_type
from flint.ir.program import Flag
from flint.passes.mlir import FRONTEND_ATTRIBUTES

if TYPE_CHECKING:
    from flint.passes.extract.work import Operation


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


_NONE = Flag(0)


def turned_operands(o: Operation, deps: Sequence[int]) -> Flag:
    """For `stablehlo.dot_general` the operands that must be copied into another order first.

    A library that multiplies plain matrices reads (batch, m, k) or (batch, k, m), each of m and k
    one stretch: one dimension, or several in their order where the other is behind it as it should
    be. Dimensions of size one are anywhere. `deps` are the rows of the operands.
    """
    if o.name != "stablehlo.dot_general":
        return _NONE
    turned = {row for row, t in zip(deps, _is_turned(o), strict=False) if t}
    first, last = min(deps[:2]), max(deps[:2])
    found = Flag.TURNED_FIRST if first in turned else Flag(0)
    return found | Flag.TURNED_LAST if last in turned and last != first else found


def _is_turned(o: Operation) -> tuple[bool, bool]:
    from jaxlib.mlir.dialects import stablehlo

    numbers: Any = stablehlo.DotDimensionNumbers(o.op.attributes["dot_dimension_numbers"])
    lhs, rhs = o.operands[0].shape, o.operands[1].shape
    lhs_batch, lhs_k = numbers.lhs_batching_dimensions, numbers.lhs_contracting_dimensions
    rhs_batch, rhs_k = numbers.rhs_batching_dimensions, numbers.rhs_contracting_dimensions
    rows = [d for d in range(len(lhs)) if d not in lhs_batch and d not in lhs_k]
    columns = [d for d in range(len(rhs)) if d not in rhs_batch and d not in rhs_k]
    return (
        _is_split(lhs, lhs_batch, rows, lhs_k),
        _is_split(rhs, rhs_batch, rhs_k, columns),
    )


def _is_split(
    shape: tuple[int, ...], batch: Sequence[int], front: Sequence[int], behind: Sequence[int]
) -> bool:
    """Whether the dimensions are neither in that order, nor a matrix seen from its other side."""
    first, second, third = ([d for d in part if shape[d] > 1] for part in (batch, front, behind))
    if first + second + third == sorted(first + second + third):
        return False
    turned = first + third + second
    return turned != sorted(turned) or len(second) > 1 or len(third) > 1
