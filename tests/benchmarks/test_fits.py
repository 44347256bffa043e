"""Fits: every constant that is called fitted is made by one of them, and by one alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from benchmarks.accuracy_constants import doubtful
from benchmarks.fits.fit import Fit, all_fits
from flint.cluster.load import PRESETS, preset_names
from flint.tools.measure.fitting.toml_constants import constants_in


@pytest.fixture(scope="module")
def fits() -> Sequence[Fit]:
    return all_fits()


@pytest.mark.long  # all fits read their data: `.ci/run` makes them, too
def test_each_constant_has_one_fit(fits: Sequence[Fit]) -> None:
    made = Counter((f.preset, f.table, name) for f in fits for name in f.names)
    assert [key for key, count in made.items() if count > 1] == []


@pytest.mark.long
def test_a_preset_has_the_constants_of_its_fits(fits: Sequence[Fit]) -> None:
    wanting = {
        f"{fit.name}@{fit.preset}": set(fit.names) - set(constants_in(fit.path, fit.table))
        for fit in fits
    }
    assert {fit: names for fit, names in wanting.items() if names} == {}


def test_a_constant_at_its_bound_is_listed() -> None:
    value = constants_in(PRESETS / "h100-dgx.toml", "chip.gpu.constants")["gemm.launch_ns"]["value"]
    bounds = {"gemm.launch_ns": (value, 2 * value, 1.5 * value)}
    fit = Fit("t", "h100-dgx", "chip.gpu.constants", ("gemm.launch_ns",), 100, dict, bounds)
    (found,) = doubtful([fit])
    assert (found.constant, found.presets) == ("gemm.launch_ns", ("h100-dgx",))
    assert "at its bound" in found.why
    few = Fit("t", "h100-dgx", "chip.gpu.constants", ("gemm.launch_ns",), 1, dict, {})
    assert [d.why for d in doubtful([few])] == ["rests on one row"]


@pytest.mark.long
def test_what_is_called_fitted_is_made_by_a_fit(fits: Sequence[Fit]) -> None:
    """Sources that name `benchmarks.fits` alone: others say where they were fitted."""
    made = {(f.preset, f.table, name) for f in fits for name in f.names}
    for preset in preset_names():
        for table in ("chip.gpu.constants", "chip.systolic.constants"):
            for name, q in constants_in(PRESETS / f"{preset}.toml", table).items():
                if q["kind"] == "fitted" and "benchmarks.fits" in q["source"]:
                    assert (preset, table, name) in made
