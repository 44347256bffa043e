"""Shapes of HLO values: dtypes by their numpy names, bytes, leaves of tuples."""

from __future__ import annotations

import math
from typing import Any

#: xla.PrimitiveType to (numpy's name, bits in memory). Tuples, tokens and opaque values have none.
PRIMITIVES: dict[int, tuple[str, int]] = {
    1: ("bool", 8),
    2: ("int8", 8),
    3: ("int16", 16),
    4: ("int32", 32),
    5: ("int64", 64),
    6: ("uint8", 8),
    7: ("uint16", 16),
    8: ("uint32", 32),
    9: ("uint64", 64),
    10: ("float16", 16),
    11: ("float32", 32),
    12: ("float64", 64),
    15: ("complex64", 64),
    16: ("bfloat16", 16),
    18: ("complex128", 128),
    19: ("float8_e5m2", 8),
    20: ("float8_e4m3fn", 8),
    21: ("int4", 4),
    22: ("uint4", 4),
    23: ("float8_e4m3b11fnuz", 8),
    24: ("float8_e5m2fnuz", 8),
    25: ("float8_e4m3fnuz", 8),
    26: ("int2", 2),
    27: ("uint2", 2),
    28: ("float8_e4m3", 8),
    29: ("float8_e3m4", 8),
    30: ("int1", 1),
    31: ("uint1", 1),
    32: ("float4_e2m1fn", 4),
    33: ("float8_e8m0fnu", 8),
}
TUPLE, OPAQUE, TOKEN, BUFFER = 13, 14, 17, 34


def leaves(shape: Any) -> list[Any]:
    """The array shapes inside a shape, tuples flattened in order; tokens are omitted."""
    if shape.element_type in (TUPLE, BUFFER):
        return [leaf for part in shape.tuple_shapes for leaf in leaves(part)]
    return [shape] if shape.element_type in PRIMITIVES else []


def num_elements(shape: Any) -> int:
    """Elements of an array shape, or of all arrays of a tuple."""
    return sum(math.prod(leaf.dimensions) for leaf in leaves(shape))


def num_bytes(shape: Any) -> int:
    """Bytes of an array, or of all arrays of a tuple. Padding of layouts is not counted."""
    return sum(
        -(-math.prod(leaf.dimensions) * PRIMITIVES[leaf.element_type][1] // 8)
        for leaf in leaves(shape)
    )


def first(shape: Any) -> tuple[str, tuple[int, ...]]:
    """dtype and dimensions of the first array of a shape; `("token", ())` if it has none."""
    for leaf in leaves(shape):
        return PRIMITIVES[leaf.element_type][0], tuple(leaf.dimensions)
    return "token", ()


def bits_of(dtype: str) -> int:
    """Bits in memory of an element of a dtype by numpy's name, 0 if XLA has no such type."""
    return next((bits for name, bits in PRIMITIVES.values() if name == dtype), 0)
