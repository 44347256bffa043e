"""Products of many matrices at once, one for each expert, that have different numbers of rows.

A grouped kernel gives the SMs the tiles of all groups one after the other. What it takes follows
from the loads: a group of r rows has ceil(r / h) tiles in height, so few rows cost a whole tile; a
group without rows costs nothing, and its matrix is not read.

    tile   = (2 h w (k + epilogue_k)) / (efficiency * peak / SMs)  +  step_ns * steps along k
    waves  = max(sum over groups of ceil(rows / h) * ceil(n / w) / SMs, 1)
    memory = bytes of the groups that have rows / (memory_efficiency * bandwidth)
    burst  = ((waves * tile)^2 + memory^2)^(1/2)
    total  = launch_ns + group_ns * groups with rows + burst, as far as power allows

A library that has one tile says how wide it is (`tile_columns`): 64 rows high, or 16 where groups
have few rows; of others the best tile is taken. Gradients of the matrices have a ragged k instead:
all tiles of a group's result walk along the rows of the group.

Constants are `grouped.*`, of numbers of 8 and 4 bits `grouped-fp8.*`; a chip or library without them
has those of other products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flint.backends.cost.chips.families.gpu.hardware import GpuHardware, element_bytes
from flint.backends.cost.chips.families.gpu.products import limited_by_power
from flint.backends.cost.chips.families.gpu.quantised import (
    NARROW,
    OVERLAP,
    STEP_BYTES,
)
from flint.ir.arrays import Float64s
from flint.ir.product_types import groups_of

if TYPE_CHECKING:
    from flint.backends.cost.chips.kernels import Kernels

#: Heights and widths of tiles.
HEIGHTS = (16, 32, 64, 128)
WIDTHS = (32, 64, 128, 256)
#: The largest tile.
MOST_ELEMENTS = 128 * 256
#: Rows of a group on average up to which a library with one tile has the low one.
FEW_ROWS = 8


@dataclass(frozen=True, eq=False)
class Loads:
    """How rows are spread over groups, of several products, in columns.

    `tiles` has a row for each of `HEIGHTS`: how many tiles of that height all groups have. Values
    may be means over several draws.
    """

    rows: Float64s
    touched: Float64s
    most: Float64s
    tiles: Float64s

    @staticmethod
    def balanced(groups: Float64s, rows: Float64s) -> Loads:
        """All groups have as many rows; of fewer rows than groups, each is of a group of its own."""
        touched = np.maximum(np.minimum(groups, rows), 1)
        each = rows / touched
        tiles = np.stack([touched * np.ceil(each / h) for h in HEIGHTS])
        return Loads(rows, touched, each, tiles)

    @staticmethod
    def of(draws: Sequence[NDArray[np.float64]]) -> Loads:
        """One product, by the rows of each group in one or several draws."""
        tiles = [np.mean([np.ceil(d / h).sum() for d in draws]) for h in HEIGHTS]
        means = [[d.sum(), (d > 0).sum(), d.max(initial=0)] for d in draws]
        rows, touched, most = np.mean(means, axis=0)
        return Loads(
            np.array([rows]), np.array([touched]), np.array([most]), np.array(tiles)[:, None]
        )

    @staticmethod
    def together(parts: Sequence[Loads]) -> Loads:
        """Columns of several products."""
        return Loads(
            np.concatenate([p.rows for p in parts]),
            np.concatenate([p.touched for p in parts]),
            np.concatenate([p.most for p in parts]),
            np.concatenate([p.tiles for p in parts], axis=1),
        )


@dataclass(frozen=True, eq=False)
class Matrices:
    """Sizes of grouped products: every row times a matrix of `k` by `n`, and the bytes that move."""

    n: Float64s
    k: Float64s
    moved_bytes: Float64s


def constants_for(dtype: str) -> str:
    """The set of constants of a type: "grouped" or "grouped-fp8"."""
    return "grouped-fp8" if dtype.startswith(NARROW) else "grouped"


def rows_ns(
    loads: Loads,
    of: Matrices,
    hardware: GpuHardware,
    dtype: str,
    low: NDArray[np.bool_] | None = None,
) -> Float64s:
    """Nanoseconds of products whose rows are of groups.

    `low` are those for which a library with one tile takes the low one; by default those whose groups
    have few rows. Raises FL705 without a peak for the type.
    """
    c, model = hardware.constants, constants_for(dtype)
    columns = c[f"{model}.tile_columns"]
    if columns:
        few = loads.rows <= FEW_ROWS * loads.touched if low is None else low
        flat, high = (_tiles_ns(loads, of, hardware, dtype, at, columns) for at in (0, 2))
        compute = np.where(few, flat, high)
    else:
        compute = np.full(len(of.n), np.inf)
        for at, height in enumerate(HEIGHTS):
            for width in WIDTHS:
                if height * width <= MOST_ELEMENTS:
                    one = _tiles_ns(loads, of, hardware, dtype, at, width)
                    np.minimum(compute, one, out=compute)
    return _total_ns(compute, loads, of, hardware, dtype)


def matrices_ns(
    loads: Loads, of: Matrices, m: Float64s, groups: Float64s, hardware: GpuHardware, dtype: str
) -> Float64s:
    """Nanoseconds of products (m x n) of each group that sum over its rows: `of.k` is not read."""
    c, model, size = hardware.constants, constants_for(dtype), element_bytes(dtype)
    step = STEP_BYTES / size
    steps = np.maximum(loads.rows / step, loads.touched)
    compute = np.full(len(m), np.inf)
    for height in (64, 128):
        for width in WIDTHS:
            per_k = _per_k_ns(hardware, dtype, height, width)
            one = steps * (per_k * step + c[f"{model}.step_ns"])
            one += groups * per_k * c[f"{model}.epilogue_k"]
            tiles = np.ceil(m / height) * np.ceil(of.n / width)
            np.minimum(compute, np.maximum(tiles / hardware.sms, 1 / groups) * one, out=compute)
    return _total_ns(compute, loads, Matrices(of.n, m, of.moved_bytes), hardware, dtype)


def _tiles_ns(
    loads: Loads, of: Matrices, hardware: GpuHardware, dtype: str, at: int, width: float
) -> Float64s:
    """Waves of tiles of `HEIGHTS[at]` by `width`."""
    c, model = hardware.constants, constants_for(dtype)
    step = STEP_BYTES / element_bytes(dtype)
    per_k = _per_k_ns(hardware, dtype, HEIGHTS[at], width)
    tile = np.ceil(of.k / step) * (per_k * step + c[f"{model}.step_ns"])
    tile += per_k * c[f"{model}.epilogue_k"]
    waves = loads.tiles[at] * np.ceil(of.n / width) / hardware.sms
    result: Float64s = np.maximum(waves, 1) * tile
    return result


def _per_k_ns(hardware: GpuHardware, dtype: str, height: float, width: float) -> float:
    share = hardware.constants[f"{constants_for(dtype)}.efficiency"]
    return 2 * height * width * hardware.sms / (share * hardware.peak_flops_per_ns(dtype))


def _total_ns(
    compute: Float64s, loads: Loads, of: Matrices, hardware: GpuHardware, dtype: str
) -> Float64s:
    c, model = hardware.constants, constants_for(dtype)
    memory = of.moved_bytes / (c[f"{model}.memory_efficiency"] * hardware.memory_bytes_per_ns)
    burst = (compute**OVERLAP + memory**OVERLAP) ** (1 / OVERLAP)
    shape = np.stack([np.ones_like(of.n), loads.rows, of.n, of.k])
    limited = limited_by_power(burst, shape, hardware, dtype)
    result: Float64s = c[f"{model}.launch_ns"] + c[f"{model}.group_ns"] * loads.touched + limited
    return result


def _loads(kernels: Kernels, groups: Float64s, rows: Float64s) -> Loads:
    """Loads as the kernels' spread says; balanced where it says nothing."""
    shares = kernels.spread.get(int(groups[0])) if len(groups) else None
    if shares is None:
        return Loads.balanced(groups, rows)
    sizes, at = np.unique(rows, return_inverse=True)
    parts = [Loads.of([np.rint(count * share) for share in shares]) for count in sizes]
    every = Loads.together(parts)
    return Loads(every.rows[at], every.touched[at], every.most[at], every.tiles[:, at])


def grouped_product_ns(kernels: Kernels, hardware: GpuHardware, dtype: str) -> Float64s:
    """Latency of grouped products, all rows with `dtype`, which says how many groups there are.

    Loads are those of `kernels.spread`. Raises FlintError FL705 without a peak for the type.
    """
    grouped = groups_of(dtype)
    assert grouped is not None, "asked for grouped products only"
    batch, m, n, k = np.maximum(kernels.dims, 1).astype(np.float64).T
    groups = np.full(len(kernels), float(grouped.number))
    ragged = batch * (k if grouped.sums else m)
    loads = _loads(kernels, groups, ragged)
    moved = kernels.moved_bytes.astype(np.float64)
    if grouped.sums:
        return matrices_ns(loads, Matrices(n, k, moved), m, groups, hardware, dtype)
    untouched = (groups - loads.touched) * n * k * element_bytes(dtype)
    least = loads.rows * (n + k) * element_bytes(dtype)
    of = Matrices(n, k, np.maximum(moved - untouched, np.minimum(moved, least)))
    return rows_ns(loads, of, hardware, dtype)
