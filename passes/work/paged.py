"""JAX's attention kernels for TPUs whose keys and values lie in pages, by their names and arrays.

How much of a cache is filled only the data say: work and bytes are those of full ones, every sequence
as long as its list of pages. What a program knows better it says itself (`@flint.cost_of`).

| name | operands, after the scalars |
|---|---|
| `paged_flash_attention_kernel...` | queries (sequences, heads, size), keys and values (key heads, pages, page size, size) |
| `ragged_paged_attention_kernel` | queries (tokens, heads, size), keys and values side by side (pages, page size, 2 x key heads, size) |
"""

from __future__ import annotations

import math

from flint.passes.work.declared import ArrayType, KernelCall

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
    return _attention(call, queries, sequences * heads, seen, size, read)


def _ragged(
    call: KernelCall, queries: ArrayType, cache: ArrayType, pages: ArrayType
) -> dict[str, int]:
    tokens, heads, size = queries.shape
    sequences, listed = pages.shape
    seen = listed * cache.shape[1]
    read = sequences * listed * (cache.num_bytes // max(cache.shape[0], 1))
    return _attention(call, queries, tokens * heads, seen, size, read)


def _attention(
    call: KernelCall, queries: ArrayType, rows: int, seen: int, size: int, read: int
) -> dict[str, int]:
    """Two products and an exponential for each query of a head and key; `read` bytes of pages."""
    written = math.fsum(r.num_bytes for r in call.results)
    return {
        "flops": 4 * rows * seen * size,
        "transcendentals": rows * seen,
        "bytes_accessed": read + queries.num_bytes + int(written),
    }
