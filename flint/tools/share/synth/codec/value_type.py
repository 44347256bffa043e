"""Types of values: element type and local shape."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from flint.ir.columns import bytes_of_type

Shape: TypeAlias = tuple[int, ...]


class ValueType(NamedTuple):
    """What one value is on one device."""

    dtype: str
    shape: Shape

    @property
    def rank(self) -> int:
        """Dimensions."""
        return len(self.shape)

    @property
    def elements(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes of all elements."""
        return -(-math.prod(self.shape) * _eighths(self.dtype) // 8)

    @property
    def is_index(self) -> bool:
        """Whether it can say where something is: one whole number."""
        return self.elements == 1 and self.dtype.lstrip("us").startswith("int")


@lru_cache(maxsize=256)
def _eighths(dtype: str) -> int:
    """Bits of an element."""
    return bytes_of_type(dtype, (8,))
