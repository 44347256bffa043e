"""Fits: every constant that is called fitted is made by one of them, and by one alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from benchmarks.accuracy_constants import doubtful
from benchmarks.fits.bytes import fit_logs
from benchmarks.fits.fit import Fit, all_fits, constants_in
from flint.backends.cost.chips.families.gpu.constants import constants_of
from flint.backends.cost.software import with_stack
from flint.cluster.load import PRESETS, preset_names
from flint.cluster.models import Cluster
from flint.cluster.stack import Stack
from flint.ir.op_class import OpClass
from flint.tools.measure.fitting.kernels import measured_kernels
from flint.tools.measure.measurements.rows import KernelTime


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


def test_one_slow_kernel_does_not_outweigh_what_other_machines_say() -> None:
    row = KernelTime(OpClass.COPY, (0, 0, 0, 0), "bf16", 80.0, 0, 1, 1, 1, 2)
    own = (0.0, 100.0, 1.0)
    found = {
        name: fit_logs(
            {name: own}, lambda v: np.array([*v.values()]), measured_kernels([row]), 2, {name: 1.0}
        )[name]
        for name in ("copy.indexed_cycles", "copy.launch_ns")
    }
    assert found["copy.indexed_cycles"] == pytest.approx(80 ** (1 / 5), rel=0.02)  # one row of five
    assert found["copy.launch_ns"] == pytest.approx(80, rel=0.02)  # a machine's own


def test_attention_on_mi300x_is_that_of_the_library() -> None:
    cluster = Cluster.load("mi300x")
    sizes = {}
    for stack in ("pytorch-eager", "megatron", "serving"):
        used = constants_of(with_stack(cluster, Stack.load(stack)).chip).values
        sizes[stack] = {n.rpartition(".")[2] for n in used if n.startswith("attention.efficiency.")}
    assert sizes == {"pytorch-eager": {"64", "512"}, "megatron": {"128"}, "serving": {"128"}}
