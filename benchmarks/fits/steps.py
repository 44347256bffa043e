"""Constants that only whole steps show: sustained rates of chips without such data, and a host.

Products of H100 and A100-SXM are known from bursts. How much of the peak power allows them in steps
that run for minutes is one number for each chip, with which the mean error of half of the measured
steps is least. On H100 it is found together with the efficiency of the Triton attention of 2023, of
which nothing is published there. Over how long power is averaged is taken to be as on B200 and
A100-PCIe, where products were measured on machines that train.

How often the host of Megatron-DeepSpeed launches a kernel is found in the same way on vTrain's
single-node steps. That of eager PyTorch is measured: the time between launches in real profiles.

Only rows of half 0 (`Case.half`) are used, and of those the first `MOST` in the order of a hash.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np

from benchmarks.accuracy_steps import captured
from benchmarks.fits.fit import Constant, Fit, borrowed
from benchmarks.step_rows import DATA, Case, all_cases
from flint.backends.cost.estimate import estimate
from flint.cluster.models import Chip, Cluster
from flint.cluster.stack import Stack
from flint.cluster.tables import Quantity, SourceKind
from flint.ir.arrays import Float64s
from flint.ir.workload import Workload
from flint.requests.estimate import EstimateRequest

#: Modules whose constants these start from.
AFTER = ("products", "attention", "bytes", "traced_products", "networks")

MOST = 16
#: The share of the peak that products sustain, that of attention, and nanoseconds between launches.
SHARE, ATTENTION, LAUNCH = (0.3, 1.0, 0.7), (0.1, 0.7, 0.2), (4.4e4, 7.2e4, 57e3)
SUSTAINED, TABLE = ("sustained", "gemm.sustained"), "chip.gpu.libraries.sustained"


@dataclass(frozen=True)
class Level:
    """Shares of the peak on a preset that steps of a data set show.

    `shares` are libraries, constants and bounds of them; `averaged` is the preset whose
    `gemm.power_ns` it has.
    """

    preset: str
    data: str
    averaged: str
    shares: tuple[tuple[str, str, tuple[float, float, float]], ...] = ((*SUSTAINED, SHARE),)


LEVELS = (
    Level(
        "h100-dgx",
        "LLM Foundry H100",
        "b200-dgx",
        ((*SUSTAINED, SHARE), ("triton-flash", "attention.efficiency.128", ATTENTION)),
    ),
    Level("h100-500w", "torchtitan", "b200-dgx"),
    Level("a100-40-dgx", "LLM Foundry A100", "a100-80-pcie"),
)
#: Presets that have the sustained rates of another one, and why.
TWINS = {
    "a100-80-dgx": ("a100-40-dgx", "the same die and power"),
    "h200-dgx": ("h100-dgx", "the same die and power"),
}
#: Presets without data of training, and whose products a watt sustains as many of on them.
LIMITED_AS = {"gb200-nvl72": "b200-dgx", "gb300-nvl72": "b200-dgx", "b300-hgx": "b200-dgx"}
#: Profiles of eager PyTorch, of models and not of engines.
PROFILES = (
    "h100_qwen1.5-0.5b", "h100_bert-small", "h100_vit", "mi300x_qwen1.5-0.5b", "mi300x_bert-small",
)  # fmt: skip


def fits() -> list[Fit]:
    """Levels of chips, those of their twins, and the time between launches of two stacks."""
    return [
        *(fit for level in LEVELS for fit in _level_fits(level)),
        *(
            borrowed("steps-as", preset, like, TABLE, ("gemm.sustained", "gemm.power_ns"), why)
            for preset, (like, why) in TWINS.items()
        ),
        *(_power_fit(preset, like) for preset, like in LIMITED_AS.items()),
        _launch_fit(),
        _eager_fit(),
    ]


def fitted_rows(data: str) -> list[Case]:
    """The rows of a data set on which its constant is chosen."""
    rows = [c for c in all_cases() if c.data == data and c.half == 0]
    return sorted(rows, key=lambda c: c.order)[:MOST]


@cache
def _workloads(data: str) -> list[tuple[Case, Workload]]:
    return [(case, captured(case)) for case in fitted_rows(data)]


def _times(data: str, cluster: Cluster, stack: Stack) -> Float64s:
    rows = _workloads(data)
    return np.array(
        [estimate(w, EstimateRequest(cluster, stack=stack)).step_time_ns for _, w in rows]
    )


def _error(data: str, times: Float64s) -> float:
    """The mean error of a data set's rows."""
    measured = [case.measured_ns for case, _ in _workloads(data)]
    return float(np.abs(times / np.array(measured) - 1).mean())


def _tried(value: float) -> Quantity:
    return Quantity(value=value, kind=SourceKind.FITTED, source="tried here")


def _with(cluster: Cluster, values: Mapping[tuple[str, str], float]) -> Cluster:
    """The cluster with constants of libraries."""
    gpu = cluster.chip.gpu
    if gpu is None:
        raise ValueError(f"{cluster.name} is no GPU")
    libraries = {name: dict(table) for name, table in gpu.libraries.items()}
    for (library, name), value in values.items():
        libraries.setdefault(library, {})[name] = _tried(value)
    own = gpu.model_copy(update={"libraries": libraries})
    return cluster.model_copy(update={"chip": cluster.chip.model_copy(update={"gpu": own})})


def _power_ns(level: Level) -> float:
    gpu = Cluster.load(level.averaged).chip.gpu
    if gpu is None:
        raise ValueError(f"{level.averaged} is no GPU")
    return gpu.libraries["sustained"]["gemm.power_ns"].value


@cache
def level_of(level: Level) -> tuple[float, ...]:
    """The shares with the least mean error, to 0.005.

    A step takes as long as a constant plus each share's part divided by it, very nearly: as many
    estimates as there are parts say all.
    """
    cluster, stack = Cluster.load(level.preset), Stack.load(fitted_rows(level.data)[0].stack)
    start = [bounds[2] for *_, bounds in level.shares]
    points = [start] + [
        [v * (1.25 if i == n else 1) for i, v in enumerate(start)] for n in range(len(start))
    ]
    power = {("sustained", "gemm.power_ns"): _power_ns(level)}
    keys = [(library, name) for library, name, _ in level.shares]
    times = [
        _times(level.data, _with(cluster, power | dict(zip(keys, p, strict=True))), stack)
        for p in points
    ]
    parts = np.linalg.solve([[1, *(1 / v for v in p)] for p in points], times)
    grid = product(*(np.arange(low, high + 1e-9, 0.005) for *_, (low, high, _) in level.shares))
    best = min(grid, key=lambda p: _error(level.data, np.array([1, *(1 / v for v in p)]) @ parts))
    return tuple(float(v) for v in best)


def _level_fits(level: Level) -> Iterator[Fit]:
    source = f"benchmarks.fits steps on half of the steps of {level.data}"
    rows = len(fitted_rows(level.data))
    for number, (library, name, bounds) in enumerate(level.shares):

        def run(n: int = number, library: str = library, name: str = name) -> dict[str, Constant]:
            found = {name: (level_of(level)[n], "fitted", source)}
            if (library, name) == SUSTAINED:
                found["gemm.power_ns"] = (_power_ns(level), "assumed", f"as {level.averaged}")
            return found

        names = (name, "gemm.power_ns") if (library, name) == SUSTAINED else (name,)
        table = f"chip.gpu.libraries.{library}"
        yield Fit("steps", level.preset, table, names, rows, run, {name: bounds})


def _power_fit(preset: str, like: str) -> Fit:
    """Sustained rates of another chip of a generation: what its power allows, no more than in bursts.

    That more power sustains more, and bursts do not tell how much, show the audited steps that may be
    looked at (benchmarks.accuracy_recorded).
    """

    def run() -> dict[str, Constant]:
        there, chip = Cluster.load(like).chip, Cluster.load(preset).chip
        assert there.gpu is not None and chip.gpu is not None, "both are GPUs"
        table = there.gpu.libraries["sustained"]
        share = table["gemm.sustained"].value * _flop_a_joule(there) / _flop_a_joule(chip)
        share = min(share, chip.gpu.constants["gemm.sustained"].value)
        why = f"as many FLOP a joule as on {like}"
        return {
            "gemm.sustained": (share, "assumed", why),
            "gemm.power_ns": (table["gemm.power_ns"].value, "assumed", f"as {like}"),
        }

    names = ("gemm.sustained", "gemm.power_ns")
    return Fit("steps-power", preset, TABLE, names, len(names), run, {}, quick=True)


def _flop_a_joule(chip: Chip) -> float:
    """At the peak."""
    assert chip.power_w is not None, f"{chip.name} says its power"
    return chip.peak_flops_per_s["bf16"].value / chip.power_w.value


def _launch_fit() -> Fit:
    data = "vTrain single node"

    def run() -> dict[str, Constant]:
        case = fitted_rows(data)[0]
        cluster, stack = Cluster.load(case.preset), Stack.load(case.stack)

        def error(launch_ns: float) -> float:
            own = stack.model_copy(update={"host_launch_ns": _tried(launch_ns)})
            return _error(data, _times(data, cluster, own))

        source = (
            "benchmarks.fits steps on half of vTrain's single-node steps, whose host is slow; of "
            "another machine `host_launch_ns` in its own file"
        )
        return {
            "host_launch_ns": (float(min(np.arange(44e3, 73e3, 4e3), key=error)), "fitted", source)
        }

    name, rows = "megatron-deepspeed", len(fitted_rows(data))
    return Fit("steps", name, "", ("host_launch_ns",), rows, run, {"host_launch_ns": LAUNCH})


def _eager_fit() -> Fit:
    def run() -> dict[str, Constant]:
        gaps = np.concatenate([launch_gaps_ns(name) for name in PROFILES])
        source = (
            f"benchmarks.fits steps: the lower quartile of the {len(gaps)} times between launches "
            "of one thread in profiles of eager PyTorch on H100 and MI300X; the profiler's own time "
            "is in them"
        )
        return {"host_launch_ns": (float(np.percentile(gaps, 25)), "measured", source)}

    rows = len(PROFILES)
    return Fit("steps", "pytorch-eager", "", ("host_launch_ns",), rows, run, {}, quick=True)


def launch_gaps_ns(name: str) -> Float64s:
    """Times between launches of kernels of one thread of the host in a profile of data/kineto."""
    with gzip.open(DATA / "kineto" / f"{name}.json.gz", "rt") as file:
        events = json.load(file)["traceEvents"]
    return np.concatenate([np.diff(np.sort(times)) for times in _launches(events)]) * 1e3


def _launches(events: list[dict[str, object]]) -> Iterator[list[float]]:
    threads: dict[object, list[float]] = {}
    for event in events:
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and "Launch" in str(event["name"]):
            threads.setdefault(event["tid"], []).append(float(str(event["ts"])))
    yield from threads.values()
