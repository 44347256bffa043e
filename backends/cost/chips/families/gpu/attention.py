"""Fused attention on a GPU: prefill, training, its backward pass, and decoding, by one formula.

An SM takes a tile of `attention.rows` queries of one head and walks along its keys; of grouped heads,
that share keys and values, queries stand in one tile as far as kernels pack them. Causal tiles walk
half of the way on average, tiles behind a window along its keys, their own queries and half a tile:

    tiles   = heads / packed * max(packed * queries / rows, 1)
    per key = the longer of 4 rows size / (efficiency * peak / SMs) and of its bytes at what one SM reads
    walk    = keys * per key, and tile_ns for a tile's start and end
    work    = the longer of tiles / SMs * walk and of the longest tile alone
    total   = launch_ns + (work ^ p + bytes ^ p) ^ (1 / p) + bytes copied to a cache + split_ns

Few queries and many keys leave SMs idle: their keys are split over SMs, each with no fewer than
`decode.split_keys`, and another kernel adds the parts (`decode.split_ns`). From one query
(decoding) to `PREFILL_QUERIES` the constants of decoding go over into those of prefill, whose kernels
are others. Where no keys are split, the last round of tiles is a whole one; the last SM with causal
tiles, of all lengths, ends `attention.tail` of them later than the average.

Keys and values move at `decode.memory_efficiency` of the bandwidth, queries and results at
`attention.memory_efficiency`. Which heads share keys follows from the bytes: keys and values that are
read, over those that all heads would have. What is written beside the result is taken for new keys and
values that are copied to a cache, which serving kernels do on the way.

Arithmetic is at the efficiency of the head size, of which steps that run for minutes keep
`attention.sustained` (power). The backward pass walks with tiles of `BLOCK` keys, unpacked, 2.5
times the arithmetic at `attention.backward_efficiency` of forward's. In types of 8 bits the forward pass has
another share of that type's peak (`attention-fp8.peak_share`). In the backward pass products are at the
peak, and each score keeps an SM longer than they do (`attention-fp8.backward_score_cycles`), for types of
scores and of their gradients change. There kernels skip what a causal mask hides, but may not skip what
a window hides (`attention-fp8.backward_skips`); nor do some kernels of prefill (`attention.window_skips`).

For growing heads, queries, keys and bytes every term grows, and none jumps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flint.backends.cost.chips.families.gpu.constants import HEAD_SIZES, NARROW_ATTENTION
from flint.backends.cost.chips.families.gpu.hardware import GpuHardware, element_bytes
from flint.backends.cost.chips.families.gpu.quantised import NARROW
from flint.backends.cost.chips.kernels import Kernels
from flint.ir.arrays import Float64s
from flint.ir.dims import AttentionDims
from flint.ir.product_types import is_by_block

#: Keys of a tile of the backward pass.
BLOCK = 128
#: FLOP of the backward pass over those of the forward pass: five products instead of two.
BACKWARD_FLOPS = 2.5
#: Wider heads make the backward pass no faster: it keeps more tiles at a time. It pads values to keys.
BACKWARD_SIZE = 128
#: Of causal tiles of the backward pass, how many the last SM ends later: they start longest first.
BACKWARD_TAIL = 0.5
#: From so many queries on, all kernels are those of prefill.
PREFILL_QUERIES = 16
#: Of a tile with few queries, the least share of a full one's arithmetic.
LEAST_FILL = 0.1
#: Of a tile's start and end, the share that grows with the head size, at `BLOCK` elements.
GROWS = 0.3
#: Values are no narrower than keys by more than makes this of the arithmetic (192 and 128: 0.83).
NARROWEST = 0.75
#: Keys are split for up to a block of queries, and ever less for up to 2 ** this of them.
SPLIT_DOUBLINGS = 3
#: Of what a full tile saves where its keys are split, what the kernel that adds parts takes at most.
SAVED = 0.5
#: Exponent of the norm that joins products of the backward pass and what it does to scores beside them.
SCORES_OVERLAP = 3.0
#: The last round of tiles is a whole one once this part of an SM's turn is full.
FULL_ROUND = 0.5


@dataclass(frozen=True)
class _Sizes:
    """Sizes of kernels, in columns. `size` is a key's, `width` the mean of a key's and a value's (which
    FLOP tell), `key_bytes` those of a key and its value. `group`: heads that share keys. `bytes` are
    all that move, `pair_bytes` keys and values, `cached_bytes` new ones on their way to a cache."""

    heads: Float64s
    queries: Float64s
    keys: Float64s
    all_keys: Float64s
    size: Float64s
    width: Float64s
    key_bytes: Float64s
    group: Float64s
    bytes: Float64s
    pair_bytes: Float64s
    cached_bytes: Float64s
    causal: NDArray[np.bool_]


@dataclass(frozen=True)
class _Tiles:
    """Tiles of kernels, in columns. `turns`: tiles over SMs. `keys` that one walks along on average,
    and `longest`; what a key takes, also in a tile `alone`; what a `full` one takes
    with all keys. `most` parts that its keys are split in;
    `splitting` is 1 where they are, 0 where not, between by the number of queries."""

    turns: Float64s
    per_key_ns: Float64s
    alone_ns: Float64s
    full_ns: Float64s
    keys: Float64s
    longest: Float64s
    ends_ns: Float64s
    tail: float
    splitting: Float64s
    most: Float64s


def attention_ns(
    kernels: Kernels, hardware: GpuHardware, dtype: str, *, backward: bool = False
) -> Float64s:
    """Latency of fused attention, all rows with `dtype`.

    A kernel without dimensions is priced by its FLOP. Raises FL705 without a peak for the type.
    """
    c, sizes = hardware.constants, _sizes(kernels, dtype, backward)
    prefill = np.clip((sizes.queries - 1) / (PREFILL_QUERIES - 1), 0, 1)
    if backward:
        prefill = np.ones_like(prefill)
    peak_share, score_cycles, skips = _of_type(hardware, dtype)
    rate = _rate(hardware, dtype, sizes.size, backward) * (1.0 if backward else peak_share)
    walked = 1 - skips if backward else prefill * (1 - c["attention.window_skips"])
    sizes = _unskipped(sizes, walked)
    tiles = _tiles(sizes, prefill, rate, hardware, score_cycles if backward else None)
    others = sizes.bytes - sizes.cached_bytes - sizes.pair_bytes
    moving = sizes.pair_bytes / c["decode.memory_efficiency"]
    moving += np.maximum(others, 0) / c["attention.memory_efficiency"]
    moving /= hardware.memory_bytes_per_ns
    caching = sizes.cached_bytes / (c["attention.cache_efficiency"] * hardware.memory_bytes_per_ns)
    least = kernels.flops / rate / (BACKWARD_FLOPS if backward else 1)
    work = np.maximum(_work_ns(sizes, tiles), least)
    result: Float64s = (
        _between(c["decode.launch_ns"], c["attention.launch_ns"], prefill)
        + _norm(work, moving, c["attention.overlap"])
        + caching
        + (0 if backward else _adding_ns(tiles, hardware))
    )
    return result


def _sizes(kernels: Kernels, dtype: str, backward: bool) -> _Sizes:
    """Sizes as numbers, at least 1. Without dimensions there is one head of nothing."""
    dims = np.maximum(kernels.dims.astype(np.float64), 1)
    dims[(kernels.dims <= 0).any(axis=1)] = 1
    heads, queries, keys, size = AttentionDims.of(dims)
    all_keys = np.maximum(kernels.all_keys, keys)
    element = element_bytes(dtype)
    result = element * heads * queries * size
    cached = np.zeros_like(heads)
    if not backward:
        cached = np.clip(kernels.written_bytes - result, 0, kernels.read_bytes)
    seen = np.minimum(keys + queries - 1, all_keys)
    pairs = 2 * element * heads * seen * size
    read = np.clip(kernels.read_bytes - result - cached, pairs / heads, pairs)
    group = np.ones_like(heads) if backward else pairs / read
    pair_bytes = np.zeros_like(heads) if backward else np.minimum(read, kernels.read_bytes)
    told = kernels.flops / (np.where(kernels.causal, 2, 4) * heads * queries * keys * size)
    narrow = np.where(kernels.flops > 0, np.clip(told, NARROWEST, 1), 1)
    width: Float64s = size if backward else size * narrow
    return _Sizes(
        heads, queries, keys, all_keys, size, width, 2 * element * size, group,
        kernels.moved_bytes.astype(np.float64), pair_bytes, 2 * cached, kernels.causal,
    )  # fmt: skip


def _unskipped(sizes: _Sizes, share: Float64s | float) -> _Sizes:
    """Tiles that walk a share of the way as if no window hid anything from a causal mask."""
    hidden = (sizes.all_keys - np.minimum(sizes.queries, sizes.all_keys) / 2 - sizes.keys) * share
    keys = np.where(sizes.all_keys > sizes.keys, sizes.keys + np.maximum(hidden, 0), sizes.keys)
    return replace(sizes, keys=keys)


def _of_type(hardware: GpuHardware, dtype: str) -> list[float]:
    """What a type has of its own, in the order of `NARROW_ATTENTION`; 16 bits have nothing."""
    if not dtype.startswith(NARROW):
        return [assumed for _, assumed in NARROW_ATTENTION.values()]
    own = "attention-fp8-block" if is_by_block(dtype) else "attention-fp8"
    return [hardware.constants[f"{own}.{name}"] for name in NARROW_ATTENTION]


def _rate(hardware: GpuHardware, dtype: str, size: Float64s, backward: bool) -> Float64s:
    """FLOP per nanosecond of the arithmetic of the forward pass's two products."""
    c = hardware.constants
    size = np.minimum(size, BACKWARD_SIZE) if backward else size
    efficiency = head_efficiency(hardware, size) * c["attention.sustained"]
    if backward and dtype.startswith(NARROW):  # scores take longer
        efficiency = np.full_like(size, c["attention.sustained"] / BACKWARD_FLOPS)
    elif backward:
        efficiency = efficiency * c["attention.backward_efficiency"] / BACKWARD_FLOPS
    result: Float64s = efficiency * hardware.peak_flops_per_ns(dtype)
    return result


def _tiles(
    sizes: _Sizes,
    prefill: Float64s,
    rate: Float64s,
    hardware: GpuHardware,
    score_cycles: float | None,
) -> _Tiles:
    c, sms, backward = hardware.constants, hardware.sms, score_cycles is not None
    rows = BLOCK if backward else c["attention.rows"]
    packed = sizes.group ** (1 - prefill * (1 - c["attention.packed"]))
    turns = sizes.heads / packed * np.maximum(packed * sizes.queries / rows, 1) / sms
    arithmetic = 4 * rows * sizes.width / rate * sms
    if score_cycles is not None:
        scores = rows * score_cycles / hardware.cycles_per_ns
        arithmetic = _norm(arithmetic, scores, SCORES_OVERLAP)
    fill = np.clip(packed * sizes.queries / rows, LEAST_FILL, 1)
    alone = np.clip(sizes.group * sizes.queries / rows, LEAST_FILL, 1)
    loads = sizes.key_bytes * sms / (c["decode.sm_share"] * hardware.memory_bytes_per_ns)
    high = np.minimum(rows / packed, np.minimum(sizes.queries, sizes.keys))
    behind_window = np.minimum(sizes.keys + high - 1 + rows / 2, sizes.all_keys)
    longest = np.where(sizes.all_keys > sizes.keys, behind_window, sizes.keys)
    hidden = np.maximum(np.minimum(sizes.queries, longest) - high, 0) / 2
    splitting = np.zeros_like(turns) if backward else _splitting(sizes)
    most = np.maximum(sizes.all_keys / c["decode.split_keys"], 1)
    ends = _between(c["decode.head_ns"], c["attention.tile_ns"], prefill)
    return _Tiles(
        turns=turns,
        per_key_ns=np.maximum(arithmetic * fill, loads),
        alone_ns=np.maximum(arithmetic * alone, loads),
        full_ns=arithmetic * sizes.all_keys,
        keys=longest - np.where(sizes.causal, hidden, 0),
        longest=longest,
        ends_ns=ends * (1 + GROWS * (sizes.size / BLOCK - 1)),
        tail=BACKWARD_TAIL if backward else c["attention.tail"],
        splitting=splitting,
        most=most,
    )


def _splitting(sizes: _Sizes) -> Float64s:
    """1 where kernels split keys, 0 where they do not, by the number of queries."""
    doublings = np.log2(np.maximum(sizes.queries / BLOCK, 1))
    return np.clip(1 - doublings / SPLIT_DOUBLINGS, 0, 1)


def _work_ns(sizes: _Sizes, tiles: _Tiles) -> Float64s:
    """All tiles on all SMs, and no less than the longest tile on its SMs."""
    average, longest = tiles.keys * tiles.per_key_ns, tiles.longest * tiles.per_key_ns
    last = np.where(
        sizes.causal,
        tiles.tail * (longest / 2 + tiles.ends_ns),
        (_rounds(tiles.turns) - tiles.turns) * (average + tiles.ends_ns),
    )
    all_of_them = tiles.turns * (average + tiles.ends_ns) + (1 - tiles.splitting) * last
    idle = np.maximum(1 / tiles.turns, 1) ** tiles.splitting
    alone = tiles.longest * tiles.alone_ns / tiles.most**tiles.splitting
    return np.maximum(all_of_them, np.maximum(longest / idle, alone) + tiles.ends_ns)


def _adding_ns(tiles: _Tiles, hardware: GpuHardware) -> Float64s:
    """The kernel that adds the parts, where keys are long enough for parts to save as much.

    Kernels with too many queries or tiles to split do without; it is no more than their error.
    """
    saved = SAVED * tiles.full_ns * (1 - 1 / tiles.most)
    result: Float64s = np.minimum(hardware.constants["decode.split_ns"], saved)
    return result


def _rounds(turns: Float64s) -> Float64s:
    """Rounds of tiles, of which the last is whole once a part of the SMs has a turn in it."""
    whole = np.floor(turns)
    result: Float64s = whole + np.minimum((turns - whole) / FULL_ROUND, 1)
    return result


def _between(decoding: float, prefilling: float, prefill: Float64s) -> Float64s:
    """From a constant of decoding to that of prefill, which is never less."""
    result: Float64s = decoding + prefill * max(prefilling - decoding, 0)
    return result


def _norm(a: Float64s, b: Float64s | float, p: float) -> Float64s:
    high, low = np.maximum(np.maximum(a, b), 1e-9), np.minimum(a, b)
    result: Float64s = high * (1 + (low / high) ** p) ** (1 / p)
    return result


def head_efficiency(hardware: GpuHardware, head_size: Float64s) -> Float64s:
    """Efficiency by head size: straight between the sizes that were fitted, level outside."""
    known = sorted(
        (float(name.removeprefix(HEAD_SIZES)), value)
        for name, value in hardware.constants.values.items()
        if name.startswith(HEAD_SIZES)
    )
    sizes, values = zip(*known, strict=True)
    result: Float64s = np.interp(np.log2(head_size), np.log2(sizes), values)
    return result
