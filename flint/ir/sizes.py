"""Bytes of whole results, by shape and type."""

from __future__ import annotations

import math
import re

import numpy as np

from flint.ir.program import MOST_INT64, Int64s, Program

_BITS = re.compile(r"[a-z]+?(\d+)")


def type_bytes(program: Program) -> Int64s:
    """Bytes of each row's first result, by its type: also where a row writes a part of it."""
    width = max(len(program.dtypes), 1)
    keys = program.shape.astype(np.int64) * width + program.dtype
    pairs, which = np.unique(keys, return_inverse=True)
    sizes = [
        bytes_of_type(program.dtypes[key % width], program.shapes[key // width])
        for key in pairs.tolist()
    ]
    return np.asarray(np.array(sizes, dtype=np.int64)[which.reshape(-1)])


def bytes_of_type(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of an array, at most what an int64 holds; 0 for a type that Flint does not know."""
    return min(-(-math.prod(shape) * _bits(dtype) // 8), MOST_INT64)


def _bits(dtype: str) -> int:
    found = _BITS.match(dtype)
    return int(found[1][:4]) if found else 8 * (dtype in ("bool", "pred"))
