"""Numbers that do not fit, and programs that multiply, are refused where they begin."""

from __future__ import annotations

import pytest

from flint.errors import FlintError
from flint.ir import builder
from flint.ir.mesh import Mesh
from flint.ir.program import RegionKind
from tests.program_rows import ProgramBuilder

MESH = Mesh(("x",), (4,))


def refused(caught: pytest.ExceptionInfo[FlintError]) -> str:
    assert caught.value.code == "FL407"
    return caught.value.message


def test_a_product_that_does_not_fit_is_named_with_its_place() -> None:
    b = ProgramBuilder(MESH)
    b.add("stablehlo.add", flops=2**62)
    with pytest.raises(FlintError) as caught:
        b.add(
            "stablehlo.dot_general",
            flops=2**62,
            dtype="float32",
            shape=(2_000_000, 2_000_000),
            location="model.py:41",
        )
    assert refused(caught).startswith("stablehlo.dot_general has flops of 4.61e+18")
    assert caught.value.place == "model.py:41  float32[2000000,2000000]"


def test_the_largest_sum_that_fits_is_kept() -> None:
    b = ProgramBuilder(MESH)
    b.add("stablehlo.add", flops=2**62)
    b.add("stablehlo.add", flops=2**62 - 1)
    b.build().verify()


def test_bytes_and_dims(monkeypatch: pytest.MonkeyPatch) -> None:
    for amounts in ({"result_bytes": 10**24}, {"dims": (1, 1, 2**63, 1)}):
        with pytest.raises(FlintError) as caught:
            ProgramBuilder(MESH).add("parameter", name="w", **amounts)  # type: ignore[arg-type]
        assert caught.value.place is not None and caught.value.place.startswith("w")
        refused(caught)


def test_copies_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    b = ProgramBuilder(MESH)
    b.add("stablehlo.add", flops=2**62)
    with pytest.raises(FlintError) as caught:
        b.repeat(0, 1, ())
    refused(caught)
    monkeypatch.setattr(builder, "MOST_ROWS", 3)
    b = ProgramBuilder(MESH)
    b.add("stablehlo.add")
    b.add("stablehlo.multiply")
    with pytest.raises(FlintError) as caught:
        b.repeat(0, 2, ())
    assert refused(caught) == "stablehlo.multiply comes after 3 others, with every call written out"


def test_loops_that_run_too_often_or_nest_too_deeply() -> None:
    b = ProgramBuilder(MESH)
    b.begin_region(RegionKind.LOOP, 2**40)
    with pytest.raises(FlintError) as caught:
        b.begin_region(RegionKind.LOOP, 2**23, name="layers", location="m.py:3")
    assert refused(caught) == "loop 'layers' would run 9.2e+18 times in a step"
    b = ProgramBuilder(MESH)
    with pytest.raises(FlintError, match="is inside 100 other loops"):
        for _ in range(101):
            b.begin_region(RegionKind.LOOP, 1)
