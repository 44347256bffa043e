"""Whose times kernels have where some were measured or changed. What only models price needs none of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from flint.backends.cost.chips.model import tf32_kinds
from flint.backends.cost.kernel_times import MEASURED
from flint.backends.cost.network.placement import NetworkPlacement
from flint.backends.cost.replay.changes import Changes, Replacing, Scaling
from flint.backends.cost.replay.plan import timing_of
from flint.backends.cost.replay.replay import Modelled, Replayed, same_chip, same_network
from flint.backends.cost.replay.table import MeasuredTable, Predicted, table_of
from flint.backends.cost.row_prices import Pricing, RowPrices, Times
from flint.backends.cost.simulate.streams import peers_of, together_of
from flint.backends.cost.software import stack_for, with_software_of, with_stack
from flint.cluster.devices import cluster_of_device
from flint.cluster.models import Cluster
from flint.errors import FlintError
from flint.ir.arrays import Mask
from flint.ir.program import Kind, Program
from flint.ir.workload import Workload
from flint.passes.profiles import RECORDED as RECORDED_PROFILE
from flint.passes.profiles import kernels_for


@dataclass(frozen=True, slots=True)
class Chain:
    """One after the other."""

    steps: tuple[Times, ...]

    def of(self, program: Program, prices: RowPrices) -> RowPrices:
        """What the last makes of it."""
        for step in self.steps:
            prices = step.of(program, prices)
        return prices


def measured_table(workloads: Sequence[Workload], cluster: Cluster) -> MeasuredTable:
    """The table of workloads made of profiles, at least one.

    Where they are of the hardware of `cluster`, or of a device that Flint does not know, the constants
    of that count. Raises FlintError FL832 for a workload that was not measured, and for several devices.
    """
    found = []
    for workload in workloads:
        timing_of(workload, MEASURED)
        kernels = kernels_for(workload, RECORDED_PROFILE)
        pricing = _recorded_pricing(kernels, cluster)
        alone = [_alone(kernels, n) for n in range(len(kernels.programs))]
        found.append((kernels, pricing, alone))
    if len({p.cluster.name for _, p, _ in found}) > 1:
        raise FlintError(
            "FL832",
            "the measured workloads are from several devices: "
            + ", ".join(sorted({p.cluster.name for _, p, _ in found})),
            help="take times from one device only",
        )
    return table_of(found)


def _recorded_pricing(workload: Workload, cluster: Cluster) -> Pricing:
    """How the models price a measured workload on the cluster that it was measured on."""
    by = workload.measured_by
    known = cluster_of_device(by.device) if by else None
    base = cluster if known is None or same_chip(known.chip, cluster.chip) else known
    base = with_stack(base, stack_for(RECORDED_PROFILE, base))
    placement = NetworkPlacement(workload.mesh, base)
    return Pricing(base, placement, tf32_kinds(RECORDED_PROFILE, base.chip), lenient=True)


def times_of(
    workload: Workload,
    pricing: Pricing,
    timing: str,
    changes: Changes,
    table: MeasuredTable | None = None,
) -> Times:
    """What changes the models' prices.

    A `table` of other measured workloads prices what was not measured itself.
    """
    steps: list[Times] = []
    if replaced := [(r.part, r.cluster) for r in changes.replacements if r.cluster]:
        steps.append(Replacing(tuple((part, _on(workload, pricing, c)) for part, c in replaced)))
    if workload.measured_by:
        steps.append(_replayed(workload, pricing) if timing == MEASURED else Modelled())
    elif table is not None:
        same = same_chip(table.cluster.chip, pricing.cluster.chip)
        base = pricing.cluster if same else table.cluster
        steps.append(Predicted(table, _on(workload, pricing, base)))
    if changes:
        steps.append(Scaling(changes, pricing))
    return Chain(tuple(steps))


def _replayed(workload: Workload, pricing: Pricing) -> Replayed:
    """Measured times, on the cluster of `pricing`; a device that Flint does not know is taken to be its."""
    by = workload.measured_by
    assert by is not None
    base = cluster_of_device(by.device) or pricing.cluster
    return Replayed(
        _on(workload, pricing, base),
        not same_chip(base.chip, pricing.cluster.chip),
        not same_network(base, pricing.cluster),
        tuple((p, _alone(workload, n)) for n, p in enumerate(workload.programs)),
    )


def _alone(workload: Workload, number: int) -> Mask:
    """The communication of a program whose ranks are all of one class, so that nobody is met."""
    program, owner = workload.programs[number], workload.class_of_ranks()
    found = np.asarray(program.kind >= Kind.COLLECTIVE)
    at = next(n for n, c in enumerate(workload.classes) if c.program == number)
    rank = int(np.flatnonzero(owner == at)[0])
    found[list(together_of(program, rank, owner))] = False
    found[list(peers_of(program, rank, owner, others_only=True))] = False
    return found


def _on(workload: Workload, pricing: Pricing, cluster: Cluster) -> Pricing:
    """The same prices on another cluster, with the default places of mesh axes and the same software."""
    cluster = with_software_of(cluster, pricing.cluster)
    if cluster == pricing.cluster:
        return replace(pricing, lenient=True)
    profile = str(workload.metadata.get("profile", ""))
    placement = NetworkPlacement(workload.mesh, cluster)
    tf32 = tf32_kinds(profile, cluster.chip)
    return Pricing(
        cluster, placement, tf32, lenient=True, slower=pricing.slower, routing=pricing.routing
    )
