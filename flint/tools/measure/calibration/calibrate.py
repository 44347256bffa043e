"""`calibrate`: fit a cluster's constants to measurements, class by class and tier by tier."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flint.backends.cost.software import stack_for, with_stack
from flint.cluster.models import Chip, Cluster
from flint.cluster.named import load_cluster
from flint.cluster.stack import Stack
from flint.errors import FlintError
from flint.tools.measure.calibration.data import TRACE, Data, read_data
from flint.tools.measure.calibration.fitted import FitRows, Fitted, Problem, fitted
from flint.tools.measure.calibration.result import Calibration
from flint.tools.measure.fitting.fit import Predict, halves
from flint.tools.measure.fitting.kernels import (
    CLASSES,
    MeasuredKernels,
    bounds_of,
    latencies,
    measured_kernels,
    roofline_ns,
    settled,
    with_constants,
)
from flint.tools.measure.fitting.networks import MeasuredCalls, NetworkPricing, measured_calls
from flint.tools.measure.fitting.networks import roofline_ns as wire_ns
from flint.tools.measure.fitting.traces import TraceRows


def calibrate(
    *data: str | os.PathLike[str],
    base: str | os.PathLike[str] | Cluster,
    stack: str | os.PathLike[str] | Stack | None = None,
    check: bool = False,
) -> Calibration:
    """Fit the constants of the cluster `base` to measurements in files, on one half of their rows.

    `data` are logs of nccl-tests, rccl-tests and OSU, CSVs, tables of aiconfigurator, profiles, or
    .flint files of `flint import`. With `check` nothing is fitted: the errors are those of `base` on
    all rows. `stack` is whose kernels were measured (None: "pytorch-eager" where there are profiles,
    else none: bursts of the chip's own constants). `Calibration.to_json` and `write` tell and keep what was found.

    Raises FlintError FL842 to FL855 for files that cannot be read, FL853 for a chip without constants,
    FL725 for a stack, and as loading a cluster does.
    """
    if not data:
        raise FlintError("FL848", "there are no measurements", help="give files with measurements")
    cluster = load_cluster(base)
    rows = read_data([Path(p) for p in data], cluster.chip)
    name = cluster.name if isinstance(base, Cluster) else os.fspath(base)
    chosen = (
        None
        if stack is None
        else Stack.load(stack if isinstance(stack, Stack) else os.fspath(stack))
    )
    return calibrated(rows, cluster, name, check=check, stack=chosen)


def calibrated(
    rows: Data, cluster: Cluster, name: str, *, check: bool = False, stack: Stack | None = None
) -> Calibration:
    """What rows say of a cluster. Without a `stack` profiles are those of PyTorch's own kernels."""
    if stack is None and any(s.format == TRACE for s in rows.sources):
        stack = stack_for("eager", cluster)
    running = with_stack(cluster, stack).chip if stack else cluster.chip
    kernels = measured_kernels(rows.kernels)
    calls, left_out = measured_calls(rows.collectives, cluster)
    classes = _classes(kernels, running, check=check) if len(kernels) else ()
    tiers = tuple((tier, _tier(data, cluster, tier, check=check)) for tier, data in calls.items())
    launches = TraceRows(launches_ns=rows.launches_ns).host_launch_ns
    return Calibration(
        cluster, name, tuple(rows.sources), classes, tiers, kernels, stack,
        None if check or launches is None else float(f"{launches:.4g}"), left_out,
        {tier: max(s.size for c in data.calls for s in c.spans if s.tier == tier) for tier, data in calls.items()},
    )  # fmt: skip


def _classes(data: MeasuredKernels, chip: Chip, *, check: bool) -> tuple[Fitted, ...]:
    chip = settled(chip)
    found = []
    for name, (kinds, prefixes) in CLASSES.items():
        here = np.isin(data.kernels.kind, [int(k) for k in kinds])
        if here.any():
            found.append(_class(name, data.select(here), chip, prefixes, check=check))
    return tuple(found)


def _class(
    name: str, data: MeasuredKernels, chip: Chip, prefixes: Sequence[str], *, check: bool
) -> Fitted:
    def predict(rows: NDArray[np.int64]) -> Predict:
        some = data.select(rows)
        return lambda values: latencies(some, with_constants(chip, values), exact=check)

    half = np.ones_like(data.hashes) if check else halves(data.hashes.tolist())
    rows = FitRows(data.measured_ns, data.weight, data.count, half)
    bounds = {} if check or not prefixes else bounds_of(chip, prefixes, data)
    return fitted(name, rows, Problem(bounds, predict, roofline_ns(data, chip)))


def _tier(data: MeasuredCalls, cluster: Cluster, tier: int, *, check: bool) -> Fitted:
    whole = NetworkPricing(data.calls, cluster, tier)

    def predict(rows: NDArray[np.int64]) -> Predict:
        return whole.of(rows).predict

    half = np.ones_like(data.hashes) if check else halves(data.hashes.tolist())
    ones = np.ones(len(data))
    rows = FitRows(data.measured_ns, ones, ones.astype(np.int64), half)
    bounds = {} if check else whole.bounds()
    problem = Problem(bounds, predict, wire_ns(data, cluster))
    return fitted(cluster.network[tier].name, rows, problem)
