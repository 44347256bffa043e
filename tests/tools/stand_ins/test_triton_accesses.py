"""Which arguments of a Triton kernel its source reads and writes. The kernels never run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flint.tools.stand_ins.triton_.launches import accesses_of

tl: Any = None


def copied(source, target, count, BLOCK):
    at = tl.arange(0, BLOCK)
    tl.store(target + at, tl.load(source + at, mask=at < count), mask=at < count)


def updated_in_place(x, scale, BLOCK):
    where = x + tl.arange(0, BLOCK)
    value = tl.load(where)
    tl.store(where, value * scale)


def pointers_that_move(a, b, c, stride, BLOCK):
    first = a + tl.program_id(0) * stride
    second = b
    second += BLOCK
    out: Any = c + stride
    total = tl.load(first) + tl.load(second)
    tl.store(out, total)


def atomics(counts, values, BLOCK):
    at = tl.arange(0, BLOCK)
    tl.atomic_add(counts + at, tl.load(values + at))


def loaded_numbers_are_no_pointers(table, indices, out, BLOCK):
    row = tl.load(indices + tl.program_id(0))
    tl.store(out + row, tl.load(table + row))


def nothing(x, y):
    return x + y


@pytest.mark.parametrize(
    ("kernel", "read", "written"),
    [
        (copied, {"source"}, {"target"}),
        (updated_in_place, {"x"}, {"x"}),
        (pointers_that_move, {"a", "b", "stride"}, {"c", "stride"}),
        (atomics, {"counts", "values"}, {"counts"}),
        (loaded_numbers_are_no_pointers, {"table", "indices"}, {"out"}),
        (nothing, None, None),
        (len, None, None),
    ],
)
def test_accesses(
    kernel: Callable[..., Any], read: set[str] | None, written: set[str] | None
) -> None:
    """Names of pointers; strides that they are calculated from are named as well."""
    found = accesses_of(kernel)
    assert tuple(None if names is None else names - {"BLOCK"} for names in found) == (read, written)
