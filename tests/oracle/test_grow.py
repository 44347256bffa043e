"""Growing a captured workload gives what capturing the changed program gives, column by column."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

pytest.importorskip("jax")

from benchmarks.sharing.grow_pairs import DECODE, MIXTRAL, Captured, Pair, measured, pair, pairs
from flint.ir.columns import ROW_COLUMNS, TABLE_OF
from flint.ir.program import Program
from flint.ir.workload import Workload
from flint.tools.share.anonymize import anonymize
from flint.tools.share.growing.grow import grow
from tests.long import long_but

#: Which are of one text, kind, shape, ... however tables are ordered; texts of sources are apart.
_SIZES = tuple(c for c in ROW_COLUMNS if TABLE_OF.get(c) != "strings")


_KEPT = ("llama fsdp+tp 4x2 -> 16x4", "llama 8B -> 70B 4x2 -> 16x4", "ring attention 2x4 -> 4x16")
#: Each device keeps two key-value heads: turning arrays with one dimension of 1 is no work, which sizes do not tell.
_DECODED = pair(
    "decode 8B -> 70B 4x2 -> 8x4",
    DECODE,
    "4x2",
    "8x4",
    {"layers": 80, "width": 8192, "heads": 64, "ffn": 28_672},
    model=("8b", "70b"),
)
#: With 16 experts two constants have one value, and XLA makes one row of them, which sizes do not tell.
_EXPERTS = pair(
    "mixtral 24 experts", MIXTRAL, "4x2", "4x2", {"experts": 24}, num_layers=4, experts=(8, 24)
)

#: Blocks of rows of the update begin within layers: they read gradients of two layers before.
_UNROLLED = pair(
    *("llama unrolled", "examples/llama_jax.py", "4x2", "4x2", {"layers": 10}),
    num_layers=(8, 10),
    layers="unrolled",
    seq=512,
)


@cache
def captured(of: Captured) -> Workload:
    return of.workload()


def _hashable(one: Pair) -> tuple[Workload, Workload]:
    sides = [replace(s, settings=_Settings(s.settings)) for s in (one.small, one.real)]
    return captured(sides[0]), captured(sides[1])


class _Settings(dict[str, object]):
    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(sorted(map(str, self.items()))))


def column(program: Program, name: str) -> list[object]:
    """What rows have, without numbers of table entries."""
    values = getattr(program, name)
    table = TABLE_OF.get(name)
    if table is None:
        return list(map(tuple, values.tolist())) if values.ndim > 1 else values.tolist()
    entries = [*map(str, getattr(program, table)), "none"]
    return [entries[i] for i in values.tolist()]


def different(one: Program, other: Program, names: tuple[str, ...]) -> list[str]:
    """Columns that differ; and `deps`, `regions`."""
    found = [name for name in names if column(one, name) != column(other, name)]
    if not np.array_equal(one.deps, other.deps):
        found.append("deps")
    loops = [[(r.start, r.stop, r.trip_count, r.carries) for r in p.regions] for p in (one, other)]
    return found if loops[0] == loops[1] else [*found, "regions"]


@pytest.mark.parametrize(
    "name",
    long_but(
        (*_KEPT[::2], _EXPERTS.name, _DECODED.name, _UNROLLED.name),
        (*_KEPT, _EXPERTS.name, _DECODED.name, _UNROLLED.name),
    ),
)  # a decoder grows by the same sizes as the 8B model to the 70B one
def test_a_grown_workload_is_the_captured_one(name: str) -> None:
    one = next(p for p in (*pairs(), _EXPERTS, _DECODED, _UNROLLED) if p.name == name)
    small, real = _hashable(one)
    found = grow(small, **one.options).workload
    assert found.mesh == real.mesh
    assert different(found.programs[0], real.programs[0], _SIZES) == []
    assert measured(found) == measured(real)


@pytest.mark.parametrize(
    "name", _KEPT[:1]
)  # argmax of a decoder does not tell what splits its operand
def test_shardings_are_found_without_names(name: str) -> None:
    one = next(p for p in (*pairs(), _EXPERTS, _DECODED) if p.name == name)
    small, real = _hashable(one)
    found = grow(anonymize(small).workload, **one.options)
    bare = anonymize(real).workload
    assert different(found.workload.programs[0], bare.programs[0], _SIZES) == []
    assert any("assumed to be whole" in text for text in found.assumed)


def test_what_it_was_is_nearer_by_no_trivial_rule() -> None:
    one = next(p for p in pairs() if p.name == _KEPT[0])
    small, real = _hashable(one)
    before, after = measured(small), measured(real)
    for name in ("FLOPs", "collective bytes"):
        assert abs(before[name] / after[name] - 1) > 0.2
        assert abs(4 * before[name] / after[name] - 1) > 0.1
