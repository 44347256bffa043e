"""Held against truth: of 30 pairs of programs with one planted change, the first cause names it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

pytest.importorskip("jax")

from flint.tools.change.diff.cause import CauseKind
from flint.tools.change.diff.difference import Difference, Side, compare
from tests.long import long_but
from tests.planted import Model, traced

#: Five programs to start from.
BASES = {
    "plain": Model(),
    "wide": Model(mesh="2x4", hidden=512, inner=1024, remat="none"),
    "deep": Model(mesh="8x4", layers=6, batch=64, dtype="float32", remat="dots"),
    "normed": Model(norm=True, inner=1024, scope="block"),
    "data": Model(mesh="8x2", up=(None, None, None), down=(None, None, None), batch=64),
}
QUICK = ("normed", "data")


def changed(m: Model, what: str) -> tuple[Model, CauseKind, str]:
    """A model with one change, the cause that it is, and words that have to be in its sentence."""
    data, model = map(int, m.mesh.split("x"))
    rows = tuple(reversed(m.up[1:]))
    return {
        "sharding": (
            replace(m, up=(None, *rows) if any(m.up) else (None, "model", None)),
            CauseKind.SHARDING,
            "params['gate']",
        ),
        "mesh": (
            replace(m, mesh=f"{data * 2}x{model}"),
            CauseKind.MESH,
            f"data {data} -> {data * 2}",
        ),
        "remat": (
            replace(m, remat="none" if m.remat != "none" else "full"),
            CauseKind.REMAT,
            "recomputed",
        ),
        "dtype": (
            replace(m, dtype="float32" if m.dtype == "bfloat16" else "bfloat16"),
            CauseKind.PRECISION,
            f"{m.dtype} -> ",
        ),
        "layers": (
            replace(m, layers=m.layers + 1),
            CauseKind.LAYERS,
            f"{m.layers} -> {m.layers + 1} iterations",
        ),
        "gather": (replace(m, gathers="data"), CauseKind.COLLECTIVES, "all_gather over data"),
    }[what]


@cache
def trace(m: Model) -> Any:
    return traced(m)


def difference(a: Model, b: Model, cluster: str | None) -> Difference:
    def side(m: Model) -> Side:
        found = trace(m)
        return Side.of(found.workload, None if cluster is None else found.estimate(cluster))

    return compare(side(a), side(b))


@pytest.mark.parametrize("what", ["sharding", "mesh", "remat", "dtype", "layers", "gather"])
@pytest.mark.parametrize("base", long_but(QUICK, BASES))
def test_the_first_cause_is_the_planted_change(base: str, what: str) -> None:
    other, kind, words = changed(BASES[base], what)
    for cluster in (None, "h100-dgx"):
        found = difference(BASES[base], other, cluster)
        assert found.causes[0].kind is kind, [f"{c.kind}: {c.text}" for c in found.causes]
        assert words in found.causes[0].text
        assert {c.kind for c in found.causes} <= {kind, CauseKind.OPERATIONS}
    assert found.estimated is not None
    one, two = found.estimated
    # every nanosecond by which the step differs is in one of them
    total = found.shifted_ns + sum(c.delta.path_ns for c in found.changes)
    assert total == pytest.approx(two.step_time_ns - one.step_time_ns, rel=1e-6, abs=1)


@pytest.mark.parametrize("base", long_but(QUICK, BASES))
def test_other_names_are_no_difference(base: str) -> None:
    m = BASES[base]
    found = difference(m, replace(m, scope="another"), "h100-dgx")
    assert found.is_equal and not found.changes
    assert found.moved > 0


def test_swapped_products_are_paired_by_their_weights() -> None:
    """Gate and up have equal shapes; only the weights that they read tell them apart."""
    m = BASES["plain"]
    found = difference(m, replace(m, up=(None, "model", None)), None)
    assert found.causes[0].text == (
        "[{}, {}, {\"model\"}] -> [{}, {\"model\"}, {}] of params['gate'], params['up']"
    )


def test_another_function_is_no_recomputation_although_other_operations_are_repeated() -> None:
    """A norm in each layer: the forward pass and what is repeated of it have more operations."""
    found = difference(BASES["plain"], replace(BASES["plain"], norm=True), None)
    assert [c.kind for c in found.causes] == [CauseKind.OPERATIONS]
