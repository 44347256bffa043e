"""The step time that surrogates predict: what `flint estimate` says on one cluster."""

from __future__ import annotations

from functools import cache

import numpy as np

from flint.backends.cost.setting import setting_of
from flint.cluster.models import Cluster, load_cluster
from flint.errors import FlintError
from flint.ir.program import Kind
from flint.ir.workload import Workload

#: Nodes of 8 GPUs; as many as the mesh needs.
CLUSTER = "h100-dgx"
#: Steps that execute more operations on a device have no label: the estimate writes each out.
MOST_EXECUTED = 500_000


def has_label(workload: Workload) -> bool:
    """Whether a step is short enough to be estimated."""
    executed = (float(p.trips[p.kind >= Kind.COMPUTE].sum()) for p in workload.programs)
    return max(executed) <= MOST_EXECUTED


def log_step_time(workload: Workload) -> float:
    """The natural logarithm of the seconds of a step, as `flint estimate` says; nan where it refuses.

    Operations without a price count nothing. Memory is not looked at: a step that does not fit has a
    time too. Programs that break rules may break any pass of the estimate: those have no label.
    """
    try:
        timed = setting_of(workload, _cluster(), unpriced_is_zero=True).timed()
    except (FlintError, AssertionError, ValueError, IndexError, ArithmeticError):
        return float("nan")
    total_ns = timed.timeline.total_ns
    return float(np.log(total_ns * 1e-9)) if total_ns > 0 else float("nan")


@cache
def _cluster() -> Cluster:
    return load_cluster(CLUSTER)
