"""Bytes of whole results, by shape and type: what a row that writes a part in place leaves there."""

from __future__ import annotations

import math
import re

import numpy as np

from flint.ir.program import Int64s, Program

_BITS = re.compile(r"[a-z]+?(\d+)")


def whole_bytes(program: Program) -> Int64s:
    """Bytes of each row's first result, by its shape and type."""
    elements = np.array([float(math.prod(s)) for s in program.shapes] or [0.0])
    bits = np.array([float(_bits(d)) for d in program.dtypes] or [0.0])
    found = np.ceil(elements[program.shape] * bits[program.dtype] / 8)
    return np.asarray(found.astype(np.int64))


def _bits(dtype: str) -> int:
    found = _BITS.match(dtype)
    return int(found[1]) if found else 8 * (dtype in ("bool", "pred"))
