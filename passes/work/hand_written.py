"""Kernels that are written by hand (Pallas, for TPUs and GPUs), as a custom call shows them.

Of such a kernel a program holds the name, the arrays, and what its author says of the work:
`pl.pallas_call(..., cost_estimate=pl.CostEstimate(flops, transcendentals, bytes_accessed))`. The
attention kernels that come with JAX are known by their names, so shapes are enough:

| name | kernel of jax.experimental.pallas.ops.tpu | products |
|---|---|---|
| `splash_mha_fwd...`, `splash_mqa_fwd...` | splash_attention | 2 |
| `splash_mha_dkv...` that also writes parts of dq | its fused backward pass | 5 |
| `splash_mha_dkv...`, `splash_mha_dq...` | its backward pass in two kernels | 4, 3 |
| `_flash_attention_kernel`, `..._dkv_kernel`, `..._dq_kernel` | flash_attention | 2, 4, 3 |

Splash attention with a mask is causal, unless the program that calls it says which of its blocks run
(`passes/work/hand_written.py`). Flash attention does not say whether it is: it counts
whole.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Self

from flint.ir.dims import AttentionDims
from flint.ir.op_class import OpClass
from flint.ir.program import CAUSAL
from flint.passes.work.declared import (
    ArrayType,
    KernelCall,
    declaration_of,
    numbers_of,
    work_of_numbers,
)
from flint.passes.work.work import Work

# What a mask leaves of attention, counted in the blocks that a kernel runs.

#: The attribute of a kernel's call that holds them, among those of frontends.
BLOCKS = "flint.blocks"


class MaskBlocks(NamedTuple):
    """`run` blocks `of` all those of all heads, each of so many queries and keys."""

    run: int
    of: int
    queries: int
    keys: int

    def __str__(self) -> str:
        return " ".join(map(str, self))

    @classmethod
    def parse(cls, text: object) -> Self | None:
        """What `str` wrote, None of anything else."""
        words = str(text or "").split()
        if len(words) != 4 or not all(word.isdecimal() for word in words):
            return None
        return cls(*map(int, words))

    def mask(self, queries: int, keys: int, masked: int) -> int:
        """The mask (`Program.mask`) of a kernel whose arrays say `masked`.

        Where fewer blocks run than a causal mask leaves, it is the window behind which as many
        scores lie as the blocks hold. Where more do, blocks are all taken to run.
        """
        share = self.run / max(self.of, 1)
        rows = -(-queries // max(self.queries, 1))
        columns = -(-keys // max(self.keys, 1))
        behind = keys - queries
        causal = sum(
            min(columns, -(-(min((row + 1) * self.queries, queries) + behind) // self.keys))
            for row in range(rows)
        )
        run = share * rows * columns
        if masked and round(run) == causal and causal < rows * columns:
            return CAUSAL
        if run >= causal:
            return masked if round(run) == causal else 0
        return _window(run * self.queries * self.keys, queries, keys)


def _window(scores: float, queries: int, keys: int) -> int:
    """The narrowest window behind which at least so many scores lie."""
    low, high = 1, keys
    while low < high:
        middle = (low + high) // 2
        if _scores(middle, queries, keys) >= scores:
            high = middle
        else:
            low = middle + 1
    return low


def _scores(window: int, queries: int, keys: int) -> int:
    """Scores behind a window, as `kernel_table.band_keys` counts them."""
    seeing = min(queries, keys)
    early = min(max(window - 1 - max(keys - queries, 0), 0), seeing)
    return seeing * window - early * (early + 1) // 2


# JAX's attention kernels for TPUs whose keys and values lie in pages, by their names and arrays.
#
# How much of a cache is filled only the data say: work and bytes are those of full ones, every sequence
# as long as its list of pages. What a program knows better it says itself (`@flint.cost_of`).
#
# | name | operands, after the scalars |
# |---|---|
# | `paged_flash_attention_kernel...` | queries (sequences, heads, size), keys and values (key heads, pages, page size, size) |
# | `ragged_paged_attention_kernel` | queries (tokens, heads, size), keys and values side by side (pages, page size, 2 x key heads, size) |

_PAGED, _RAGGED = "paged_flash_attention_kernel", "ragged_paged_attention_kernel"


def paged_attention(name: str, call: KernelCall) -> dict[str, int] | None:
    """FLOPs, transcendental functions and bytes of a call, None if it is no such kernel."""
    arrays = [a for a in call.operands if len(a.shape) >= 3]
    scalars = [a for a in call.operands if len(a.shape) < 3 and not a.is_float]
    if _RAGGED in name and len(arrays) == 2 and len(scalars) >= 2:
        return _ragged(call, arrays[0], arrays[1], scalars[1])
    if _PAGED in name and len(arrays) >= 3 and len(scalars) >= 2:
        return _paged(call, arrays, scalars[1])
    return None


def _paged(call: KernelCall, arrays: list[ArrayType], pages: ArrayType) -> dict[str, int]:
    queries, keys = arrays[0], arrays[1]
    sequences, heads, size = queries.shape[0], queries.shape[1], queries.shape[-1]
    seen = pages.num_elements // max(sequences, 1) * keys.shape[2]
    held = sum(a.num_bytes // max(a.shape[1], 1) for a in arrays[1:]) // max(keys.shape[2], 1)
    read = sequences * seen * held
    return _paged_attention(call, queries, sequences * heads, seen, size, read)


def _ragged(
    call: KernelCall, queries: ArrayType, cache: ArrayType, pages: ArrayType
) -> dict[str, int]:
    tokens, heads, size = queries.shape
    sequences, listed = pages.shape
    seen = listed * cache.shape[1]
    read = sequences * listed * (cache.num_bytes // max(cache.shape[0], 1))
    return _paged_attention(call, queries, tokens * heads, seen, size, read)


def _paged_attention(
    call: KernelCall, queries: ArrayType, rows: int, seen: int, size: int, read: int
) -> dict[str, int]:
    """Two products and an exponential for each query of a head and key; `read` bytes of pages."""
    written = math.fsum(r.num_bytes for r in call.results)
    return {
        "flops": 4 * rows * seen * size,
        "transcendentals": rows * seen,
        "bytes_accessed": read + queries.num_bytes + int(written),
    }


#: Targets of the custom calls that Pallas kernels become: for TPUs, and by `frontends/gpu_kernels`.
PALLAS_TARGETS = frozenset({"tpu_custom_call", "pallas_call"})
#: Opcodes of attention kernels that are known by their names.
ATTENTION = "custom_call.pallas_attention"
ATTENTION_BACKWARD = "custom_call.pallas_attention_backward"
_SPLASH = re.compile(r"splash_m[hq]a_(fwd|dkv|dq)(_segmented)?(?:_no)?_residuals")
_FLASH = re.compile(r"(?<![a-z])flash_attention(?:_(dkv|dq))?_kernel")
_UNUSUAL = re.compile(r"[^\w.$-]")


def work_of_kernel(name: str, call: KernelCall, estimate: object) -> Work:
    """The work of a kernel called `name`: attention by its shapes, others by their `estimate`.

    `estimate` has the fields of `pl.CostEstimate`. Without one, and for a kernel that talks to
    other devices, whose time is the network's, the work is not known.
    """
    blocks = MaskBlocks.parse(call.attributes.get(BLOCKS))
    found = _attention(name, call.operands, call.results, blocks)
    if found is not None:
        return found
    target = f"pallas.{_UNUSUAL.sub('_', name) or 'kernel'}"
    if numbers_of(estimate) is None and declaration_of(target) is None:
        estimate = paged_attention(name, call)
    return work_of_call(target, call, estimate)


def work_of_call(target: str, call: KernelCall, estimate: object) -> Work:
    """The work of a custom call that no rule knows: what it carries, else what is declared for it.

    Unpriced without either, and for a kernel that talks to other devices.
    """
    called = f"custom_call.{target}"
    numbers = numbers_of(estimate)
    if numbers is not None:
        return replace(work_of_numbers(numbers, call.results), called=called)
    declared = declaration_of(target)
    if declared is not None:
        return replace(declared.work(target, call), called=called)
    return Work(unpriced=True, called=called)


def _attention(
    name: str,
    operands: Sequence[ArrayType],
    results: Sequence[ArrayType],
    blocks: MaskBlocks | None,
) -> Work | None:
    splash, flash = _SPLASH.search(name), _FLASH.search(name)
    floats = [at for at, o in enumerate(operands) if o.is_float and len(o.shape) >= 2]
    if not (splash or flash) or len(floats) < 3:
        return None
    query, key, value = (sorted(operands[at].shape[-2:]) for at in floats[:3])
    # a side of a block is no shorter than a head; layouts may put either of them last
    size, queries = query
    key_size, keys = key
    heads = math.prod(operands[floats[0]].shape[:-2])
    if key_size != size or not size * queries * keys * heads:
        return None
    part = (splash or flash)[1]  # type: ignore[index]
    fused = any(len(r.shape) > len(operands[floats[0]].shape) for r in results)
    summed = _sizes(part, fused, size, value[0])
    masked = splash is not None and _is_masked(operands[floats[2] + 1 :], bool(splash[2]))
    mask = CAUSAL if masked else 0
    if blocks is not None and splash:
        mask = blocks.mask(queries, keys, mask)
    shown = (
        "[causal]"
        if mask == CAUSAL
        else f"[{blocks.run} of {blocks.of} blocks]"
        if mask and blocks
        else ""
    )
    forward = part == "fwd" or (flash is not None and part is None)
    return Work(
        flops=2 * heads * queries * keys * summed,
        dims=AttentionDims(heads, queries, keys, size).row,
        mask=mask,
        op=OpClass.ATTENTION if forward else OpClass.ATTENTION_BACKWARD,
        called=(ATTENTION if forward else ATTENTION_BACKWARD) + shown,
    )


def _sizes(part: str | None, fused: bool, size: int, value_size: int) -> int:
    """Head sizes of a kernel's products, added up: of scores, dq and dk a key's, else a value's."""
    if part == "dq":
        return 2 * size + value_size
    if part == "dkv":
        return (3 if fused else 2) * size + 2 * value_size
    return size + value_size


def _is_masked(behind: Sequence[ArrayType], segmented: bool) -> bool:
    """Whether a mask follows the values, beside the segments of queries and of keys."""
    return sum(not o.is_float for o in behind) > 2 * segmented
