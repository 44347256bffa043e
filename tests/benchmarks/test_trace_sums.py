"""The gate of real profiles: what it closes on, and that a profile is left out of what judges it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks import trace_kernels, trace_sums
from benchmarks.fits.fit import all_fits
from benchmarks.trace_sums import WHOLE, ClassSum, worse

SUM = ClassSum("a", "eager", "norms", 3, 100.0, 90.0, 50.0, 120.0, 0.5, 1.0)


@pytest.mark.parametrize(
    ("known", "said"),
    [
        (0.20, []),
        (-0.20, []),
        (0.30, []),  # it got better
        (0.19, ["a, norms: +20.0 %, recorded +19.0 %"]),
        (-0.19, ["a, norms: +20.0 %, recorded -19.0 %"]),
    ],
)
def test_the_gate_closes_on_what_got_worse(known: float, said: list[str]) -> None:
    assert worse([SUM], {("a", "norms"): known}) == said


def test_the_gate_closes_on_what_is_new_or_gone_and_ignores_small_classes() -> None:
    small = replace(SUM, name="copies", share=0.04)
    assert worse([SUM, small], {}) == ["a, norms: not in both"]
    assert worse([small], {("a", "norms"): 0.2}) == ["a, norms: not in both"]


def test_the_recorded_table_names_the_profiles_that_there_are() -> None:
    names = {path.name.removesuffix(".json.gz") for path, _ in trace_kernels.files()}
    known = trace_sums.recorded()
    assert {profile for profile, _ in known} == names
    assert {profile for profile, name in known if name == WHOLE} == names


def test_fits_on_profiles_are_found_by_what_they_read() -> None:
    read = {fit.name for fit in all_fits(trace_sums._reads_traces)}
    assert {"bytes-aten", "traced products"} <= read and "products" not in read


def test_a_profile_that_is_left_out_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    every = trace_kernels.files()
    monkeypatch.setenv(trace_kernels.WITHOUT, every[1][0].name)
    assert trace_kernels.files() == [every[0], *every[2:]]


@pytest.mark.long  # the gate of .ci/run leaves out each
def test_what_is_left_out_moves_constants_of_its_machine_alone() -> None:
    path, preset = next((p, m) for p, m in trace_kernels.files() if "h100_qwen" in p.name)
    ours = trace_kernels.read_trace(path, preset).cluster.chip.gpu
    theirs = trace_sums.left_out(path, preset).chip.gpu
    assert ours is not None and theirs is not None
    aten = [gpu.libraries["aten"]["copy.indexed_cycles"].value for gpu in (ours, theirs)]
    assert aten[0] != pytest.approx(aten[1], rel=0.01)
    assert ours.constants["gemm.step_ns"] == theirs.constants["gemm.step_ns"]
