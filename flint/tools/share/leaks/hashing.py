"""64-bit hashes of columns: equal on every machine, and for every process."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from flint.ir.arrays import UInt64s

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def mixed(values: UInt64s) -> UInt64s:
    """A bijection of 64 bits that leaves no pattern: the finaliser of splitmix64 (Steele, 2014)."""
    x = values + _GOLDEN
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    return x ^ (x >> np.uint64(31))


def joined(columns: Iterable[NDArray[np.generic]]) -> UInt64s:
    """For each row one hash of its values in all columns (of integers), in their order."""
    found: UInt64s | None = None
    for column in columns:
        values = mixed(column.astype(np.int64).view(np.uint64))
        found = values if found is None else mixed(found * np.uint64(3) + values)
    assert found is not None, "at least one column"
    return found


def of_bytes(data: bytes) -> int:
    """A hash of bytes."""
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")


def of_multiset(values: UInt64s) -> int:
    """A hash of values in whichever order."""
    return of_bytes(np.sort(values).astype("<u8").tobytes())


def of_table(entries: Iterable[str]) -> UInt64s:
    """For each entry of a table the hash of its text: tables number alike entries differently."""
    return np.array([of_bytes(e.encode()) for e in entries], dtype=np.uint64)
