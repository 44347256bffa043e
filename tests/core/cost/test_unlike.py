"""Ranks that differ: slow ones, slow links, other chips; in estimates, traces and their simulation."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flint
from flint.backends.chakra.checking.checker import check
from flint.backends.cost.astrasim.disturbance import read_disturbance
from flint.backends.cost.astrasim.run import simulate_traces
from flint.backends.cost.unlike import Unlike
from flint.errors import FlintError
from flint.ir.rank_class import RankClass
from flint.ir.workload import Workload
from tests.estimates import zoo
from tests.jax_pipelines import MESH, pipeline
from tests.measured_programs import one_rank
from tests.zoo import mixtures

ON = "h100-dgx"


@cache
def program(name: str) -> flint.Trace:
    if name == "pipeline":
        return flint.trace(pipeline(schedule="1f1b"), MESH)
    if name == "experts":
        example = next(e for e in mixtures() if e.name == "moe_all_to_all")
        return flint.trace(example.step(), example.mesh)
    return flint.Trace(one_rank()) if name == "recorded" else zoo(name)


def step_ns(name: str, **options: Any) -> float:
    return program(name).estimate(ON, **options).step_time_ns


CHANGES = [
    {"slow": ["rank:1=1.5"]},
    {"slow": ["host:0=1.2", "rank:0-1=1.1"]},
    {"slow": ["nvlink@rank:3=25%"]},
    {"chip_map": ["rank:1=a100-80-dgx"]},
]


@pytest.mark.parametrize(
    ("name", "options"),
    [*(("pipeline", c) for c in CHANGES), ("experts", CHANGES[0]), ("llama_fsdp_tp", CHANGES[2])],
)
def test_one_rank_stands_for_its_class(
    name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a class for each single rank the step takes as long."""
    found = step_ns(name, **options)

    def apart(self: Unlike) -> Workload:
        owner = self.unsplit.class_of_ranks()
        classes = tuple(
            RankClass(f"{r}", self.unsplit.classes[o].program, ranks=(r,))
            for r, o in enumerate(owner.tolist())
        )
        return dataclasses.replace(self.unsplit, classes=classes)

    monkeypatch.setattr(Unlike, "split", apart)
    assert step_ns(name, **options) == found


@pytest.mark.parametrize(
    ("unlike", "changed"),
    [
        ({"slow": ["rank:0-31=2"]}, {"scale": ["compute=0.5x"]}),
        ({"slow": ["ib@data:0-7=50%"]}, {"scale": ["ib:bandwidth=0.5x"]}),
        ({"chip_map": ["host:0-3=a100-80-dgx"]}, {"replace": ["compute=a100-80-dgx"]}),
    ],
)
def test_what_all_ranks_have_is_a_change_of_the_cluster(
    unlike: dict[str, Any], changed: dict[str, Any]
) -> None:
    found, expected = (step_ns("llama_fsdp_tp", **o) for o in (unlike, changed))
    assert found == pytest.approx(expected, rel=1e-6)
    assert found > step_ns("llama_fsdp_tp")


def test_a_step_waits_for_the_slowest_rank_and_its_link() -> None:
    usual, one = step_ns("llama_fsdp_tp"), step_ns("llama_fsdp_tp", slow=["rank:5=1.5"])
    every = step_ns("llama_fsdp_tp", slow=["rank:0-31=1.5"])
    assert usual < one <= every
    assert usual < step_ns("llama_fsdp_tp", slow=["ib@rank:5=10%"])


def test_a_position_of_a_pipeline_has_its_chip() -> None:
    found = program("pipeline").estimate(ON, chip_map=["stage1=a100-40-dgx"])
    first, last = found.classes
    chips = [flint.Cluster.load(name).chip for name in (ON, "a100-40-dgx")]
    told = [c.memory.capacity_bytes for c in (first, last)]
    assert told == [int(c.memory_bytes.value) for c in chips]
    usual = program("pipeline").estimate(ON)
    assert found.step_time_ns > usual.step_time_ns
    assert found.peak_flops_per_s < usual.peak_flops_per_s


def test_recorded_kernels_take_longer_too() -> None:
    measured = program("recorded")
    usual, slow = measured.estimate(), measured.estimate(slow=["rank:0=2"])
    kernels = [
        sum(s.busy_ns for s in e.classes[0].shares if not s.over and s.kind not in ("idle", "host"))
        for e in (usual, slow)
    ]
    assert kernels[1] == pytest.approx(2 * kernels[0], rel=1e-6)


@pytest.mark.parametrize("name", ["llama_fsdp_tp", "pipeline"])
def test_traces_of_slow_ranks_are_those_of_stragglers(name: str, tmp_path: Path) -> None:
    """Durations are whole microseconds: both round, once for each kernel."""
    program(name).save(tmp_path / "usual", cluster=ON)
    report = program(name).save(tmp_path / "slow", cluster=ON, slow=["rank:1=1.5"])
    late = read_disturbance(["1:1.5"], None, 0)
    expected = simulate_traces(
        tmp_path / "usual", tmp_path / "usual" / "network.yml", disturbance=late
    )
    found = simulate_traces(tmp_path / "slow", tmp_path / "slow" / "network.yml")
    kernels = max(report.nodes.values())
    assert np.abs(np.subtract(found.compute_ns, expected.compute_ns)).max() <= 1000 * kernels**0.5
    assert found.step_time_ns == pytest.approx(expected.step_time_ns, rel=0.01)
    assert check(tmp_path / "slow").ok


@pytest.mark.parametrize(
    ("code", "options"),
    [
        ("FL940", {"slow": ["rank=1.1"]}),
        ("FL940", {"slow": ["modle:0=1.1"]}),
        ("FL940", {"slow": ["rank:0=0"]}),
        ("FL940", {"slow": ["rank:0=fast"]}),
        ("FL940", {"slow": ["ib@rank:0=1.5"]}),
        ("FL940", {"slow": ["wifi@rank:0=50%"]}),
        ("FL941", {"slow": ["rank:99=1.1"]}),
        ("FL941", {"slow": ["rank:7-3=1.1"]}),
        ("FL942", {"slow": ["ib@rank:0=0%"]}),
        ("FL943", {"chip_map": ["rank:0=v5p"]}),
        ("FL702", {"chip_map": ["rank:0=h900"]}),
    ],
)
def test_what_names_no_rank_or_value_is_refused(code: str, options: dict[str, Any]) -> None:
    with pytest.raises(FlintError) as caught:
        step_ns("llama_fsdp_tp", **options)
    assert caught.value.code == code
