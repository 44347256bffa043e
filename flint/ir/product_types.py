"""What a product of matrices multiplies: one name that a row keeps inside any kernel.

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
| `f8E4M3FN:block`, ... | in this type, with a scale for each block of k |
| `bf16:groups64`, ... | in this type, rows of each of 64 groups (experts) with a matrix of its own |
| `bf16:sums64`, ... | in this type, a result for each of 64 groups, which sums over its rows |

Of several, commas are between them: `f8E4M3FN:block,groups64`.

The empty name says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

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
_GROUPS = re.compile(r"[:,](groups|sums)([0-9]{1,9})$")


def product_type(operands: Sequence[str], how: str = "") -> str:
    """The name for operands of these types. Of two, both are multiplied in the wider.

    Complex numbers have none. `how` is for f32 only: narrower types are exact in one product.
    """
    widths = [_width(dtype) for dtype in operands]
    if not widths or min(widths) < (0, 1):
        return ""
    dtype = operands[widths.index(max(widths))]
    return f"{dtype}:{how}" if how and dtype in _F32 else dtype


#: How operands with scales for blocks are multiplied.
BLOCK = "block"


def by_block(name: str) -> str:
    """The name for operands of 8 bits that have a scale for each block of k; others stay."""
    narrow = name.startswith(("f8", "float8")) and ":" not in name
    return f"{name}:{BLOCK}" if narrow else name


def is_by_block(name: str) -> bool:
    """Whether a name says that operands have scales for blocks."""
    return BLOCK in name.partition(":")[2].split(",")


class ProductGroups(NamedTuple):
    """How many groups a product has; `sums`: each sums over its rows and has a result of its own."""

    number: int
    sums: bool


def grouped(name: str, count: int, *, sums: bool = False) -> str:
    """The name for a product of rows of `count` groups; that of one group, or no name, stays."""
    if count < 2 or not name:
        return name
    between = "," if ":" in name else ":"
    return f"{name}{between}{'sums' if sums else 'groups'}{count}"


def groups_of(name: str) -> ProductGroups | None:
    """How many groups a name says that a product has; None if it says none."""
    found = _GROUPS.search(name)
    return ProductGroups(int(found[2]), found[1] == "sums") if found else None


def without_groups(name: str) -> str:
    """The name of the same product that is done for all groups alike."""
    return _GROUPS.sub("", name)


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
    """Whether a type has fractions, and its bits; zeros for complex numbers and what is not a type."""
    bits = re.search(r"\d+", dtype)
    if dtype.startswith("c") or not (bits or dtype == "bool"):
        return 0, 0
    return int("f" in dtype), int(bits[0]) if bits else 1
