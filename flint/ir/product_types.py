"""What a product of matrices multiplies: one name that a row keeps inside of any kernel.

A compiler fuses changes of type into a product, and what follows it: the operands of the kernel
say how many bytes it reads, not what it multiplies. `Program.product` says that, as `type` or
`type:how`, types as the program has them:

| name | operands are multiplied |
|---|---|
| `bf16`, `i8`, ... | in this type |
| `f32` | as fast as the platform does it unless told otherwise |
| `f32:high`, `f32:highest` | at this level of `jax.lax.Precision` (XLA's `PrecisionConfig`) |
| `f32:ieee`, `f32:tf32` | as PyTorch's setting for CUDA says |
| `bf16:3`, `tf32:1`, ... | by an algorithm: so many products of numbers rounded to this type |

The empty name says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flint.ir.program import Int64s, Program

#: How products of f32 matrices can be asked for, by level.
LEVELS = ("", "high", "highest")
#: The same levels as XLA writes them.
XLA_LEVELS = ("DEFAULT", "HIGH", "HIGHEST")
#: Frontend attribute of XLA's operations that come from PyTorch: how they multiply f32.
SETTING = "flint.precision"
_F32 = ("f32", "float32")


def product_type(operands: Sequence[str], how: str = "") -> str:
    """The name for operands of these types. Of two, both are multiplied in the wider.

    Complex numbers have none. `how` is for f32 only: narrower types are exact in one product.
    """
    widths = [_width(dtype) for dtype in operands]
    if not widths or min(widths) < (0, 1):
        return ""
    dtype = operands[widths.index(max(widths))]
    return f"{dtype}:{how}" if how and dtype in _F32 else dtype


def level_of(levels: Sequence[int]) -> str:
    """How operands with these numbers of XLA's `PrecisionConfig` are multiplied."""
    return LEVELS[min(max(levels, default=0), len(LEVELS) - 1)]


def algorithm_type(dtype: str, products: int) -> str:
    """The name for an algorithm: `products` of numbers rounded to `dtype`."""
    if dtype in _F32 and products == 1:
        return f"{dtype}:highest"
    return f"{dtype}:{products}" if dtype else ""


def kernel_products(program: Program, kernel: Int64s) -> NDArray[np.uint8]:
    """The column `product` of kernels: row i is part of the kernel that row `kernel[i]` stands for.

    A kernel multiplies as its row with most flops that does, the first of equals.
    """
    rows = np.flatnonzero(program.product)
    rows = rows[np.lexsort((-rows, program.flops[rows]))]
    found = np.zeros(len(program), dtype=np.uint8)
    found[kernel[rows]] = program.product[rows]  # of several the last one stays
    return found


def _width(dtype: str) -> tuple[int, int]:
    """Whether a type has fractions, and its bits; zeros for complex numbers and what is no type."""
    bits = re.search(r"\d+", dtype)
    if dtype.startswith("c") or not (bits or dtype == "bool"):
        return 0, 0
    return int("f" in dtype), int(bits[0]) if bits else 1
