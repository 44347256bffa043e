"""`calibrate`: fit a cluster's constants to measurements, class by class and tier by tier."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypedDict

from flint.backends.cost.software import stack_for, with_stack
from flint.cluster.models import Chip, Cluster, Quantity
from flint.cluster.named import load_cluster
from flint.cluster.stack import Stack
from flint.errors import FlintError
from flint.io.documents import as_object
from flint.tools.measure.calibration.data import TRACE, Data, Source, read_data
from flint.tools.measure.calibration.fitted import Changed, Error, Fitted, Problem, Rows, fitted
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
from flint.tools.measure.fitting.networks import MeasuredCalls, Pricing, measured_calls
from flint.tools.measure.fitting.networks import roofline_ns as wire_ns
from flint.tools.measure.fitting.traces import TraceRows

SCHEMA: Final = "flint.calibration/1"


class FittedDocument(TypedDict):
    """One class of kernels, or one tier of the network."""

    name: str  #: The class (products, attention ...), or the tier's name.
    rows: int  #: Different kernels or collectives.
    fitted_on: int  #: Those that constants were fitted on.
    held_out: int  #: Those that errors are of.
    measured_ns: float  #: Their time in all.
    before: Error | None
    """With the base's constants, on the rows held out; null without any."""
    after: Error | None  #: With the fitted ones; null where nothing was fitted.
    one_constant: Error | None
    """Of a roofline times one constant, fitted on the same rows."""
    is_written: bool  #: Whether the fitted constants are better and go into the file.
    reason: str  #: Why not; empty if they do.
    constants: tuple[Changed, ...]  #: The constants that were fitted.
    kept: dict[str, str]  #: Constants that stay as the base has them, and why.


class CalibrationDocument(TypedDict):
    """Constants of a cluster from measurements."""

    schema: Literal["flint.calibration/1"]  #: Kind and version of this document.
    base: str  #: The cluster whose constants were fitted.
    sources: tuple[Source, ...]  #: What was read.
    kernels: list[FittedDocument]  #: Classes of kernels.
    tiers: list[FittedDocument]  #: Tiers of the network.
    left_out: dict[str, int]  #: Collectives that the cluster has no place for, by reason.
    host_launch_ns: float | None  #: Mean time of a launch on the host, from traces.
    files: list[str]  #: What was written, as it was named.


@dataclass(frozen=True)
class Calibration:
    """What was read and found. `base` is the cluster as it was.

    `kernels` are classes of kernels, `tiers` tiers of the network by their index. `host_launch_ns` is
    None where no trace says how long the host takes for a launch.
    """

    base: Cluster
    base_name: str
    sources: tuple[Source, ...]
    kernels: tuple[Fitted, ...]
    tiers: tuple[tuple[int, Fitted], ...]
    measured: MeasuredKernels
    stack: Stack | None
    host_launch_ns: float | None
    left_out: dict[str, int]
    members: dict[int, int] = field(default_factory=dict)

    @property
    def constants(self) -> dict[str, float]:
        """Fitted constants of the chip that are better than the base's."""
        return {c.name: c.after for k in self.kernels if k.is_better for c in k.changes}

    @property
    def is_changed(self) -> bool:
        """Whether anything is to be written."""
        better = [f for f in self.kernels if f.is_better]
        return bool(better or self.host_launch_ns or any(f.is_better for _, f in self.tiers))

    def write(
        self, path: str | os.PathLike[str], *, residuals: bool = False, force: bool = False
    ) -> list[Path]:
        """Write the cluster file; with `residuals` the times of exact shapes, too, beside it.

        Raises FlintError FL508 for a file that is there already, without `force`, FL849 where nothing is to be written.
        """
        from flint.tools.measure.calibration.cluster_file import write

        return write(self, Path(path), residuals=residuals, force=force)

    def to_json(self, files: Sequence[str] = ()) -> dict[str, Any]:
        """Exact numbers, JSON-able."""
        document: CalibrationDocument = {
            "schema": SCHEMA,
            "base": self.base_name,
            "sources": self.sources,
            "kernels": [_document(f) for f in self.kernels],
            "tiers": [_document(f) for _, f in self.tiers],
            "left_out": dict(self.left_out),
            "host_launch_ns": self.host_launch_ns,
            "files": list(files),
        }
        return as_object(document)

    def __str__(self) -> str:
        from flint.tools.measure.calibration.text import as_text

        return as_text(self)

    def lent(self, fitted: Fitted) -> dict[str, Quantity]:
        """Constants of a class that were not fitted, and that the base has for the stack's libraries.

        Fitted ones take the place of a whole class in libraries: these are kept with them.
        """
        family, prefixes = self.base.chip.family, CLASSES[fitted.name][1]
        found: dict[str, Quantity] = {}
        for library in self.stack.libraries if self.stack else ():
            found |= getattr(family, "libraries", {}).get(library, {})
        mine = {c.name for c in fitted.changes}
        return {n: q for n, q in found.items() if n.startswith(prefixes) and n not in mine}


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
        raise FlintError("FL848", "there are no measurements", help="give files of them")
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


def _document(f: Fitted) -> FittedDocument:
    return {
        "name": f.name,
        "rows": f.rows,
        "fitted_on": f.fitted_on,
        "held_out": f.held_out,
        "measured_ns": round(f.measured_ns, 3),
        "before": f.before,
        "after": f.after,
        "one_constant": f.one_constant,
        "is_written": f.is_better,
        "reason": f.reason,
        "constants": f.changes,
        "kept": dict(f.kept),
    }


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
    rows = Rows(data.measured_ns, data.weight, data.count, half)
    bounds = {} if check or not prefixes else bounds_of(chip, prefixes, data)
    return fitted(name, rows, Problem(bounds, predict, roofline_ns(data, chip)))


def _tier(data: MeasuredCalls, cluster: Cluster, tier: int, *, check: bool) -> Fitted:
    whole = Pricing(data.calls, cluster, tier)

    def predict(rows: NDArray[np.int64]) -> Predict:
        return whole.of(rows).predict

    half = np.ones_like(data.hashes) if check else halves(data.hashes.tolist())
    ones = np.ones(len(data))
    rows = Rows(data.measured_ns, ones, ones.astype(np.int64), half)
    bounds = {} if check else whole.bounds()
    problem = Problem(bounds, predict, wire_ns(data, cluster))
    return fitted(cluster.network[tier].name, rows, problem)
