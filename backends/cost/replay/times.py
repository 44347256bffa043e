"""Whose times kernels have where some were measured or changed. What only models price needs none of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from flint.backends.cost.chips.model import tf32_kinds
from flint.backends.cost.kernel_times import MEASURED
from flint.backends.cost.network.placement import NetworkPlacement
from flint.backends.cost.replay.changes import Changes, Replacing, Scaling, main_rows, on_device
from flint.backends.cost.replay.plan import timing_of
from flint.backends.cost.replay.table import MeasuredTable, Predicted, table_of
from flint.backends.cost.row_prices import Basis, Pricing, RowPrices, Times, model_prices
from flint.backends.cost.simulate.streams import peers_of, together_of
from flint.backends.cost.software import stack_for, with_software_of, with_stack
from flint.cluster.devices import cluster_of_device
from flint.cluster.models import Chip, Cluster
from flint.errors import FlintError
from flint.ir.arrays import Float64s, Mask
from flint.ir.op_class import OpClass
from flint.ir.program import Int64s, Kind, Program
from flint.ir.workload import Workload
from flint.passes.profiles import RECORDED as RECORDED_PROFILE
from flint.passes.profiles import kernels_for

# Measured programs with their own times, as they are or scaled to other hardware.


@dataclass(frozen=True, slots=True)
class Replayed:
    """Each row takes what was measured; what other hardware runs, times a ratio of the models.

    `base` is the cluster that was measured on. Where the models price a row on neither, the
    measured time stays. Rows that nobody measured have the models' prices. `alone` are programs
    with the communication whose other ranks were not recorded: its time holds the wait for them, all
    that is more than the model's time, and waiting stays as long.
    """

    base: Pricing
    kernels_differ: bool
    network_differs: bool
    alone: tuple[tuple[Program, Mask], ...]

    def of(self, program: Program, prices: RowPrices) -> RowPrices:
        """Measured times."""
        measured = program.measured_ns.astype(np.float64)
        told = (measured > 0) | (program.op == OpClass.HOST)
        base = model_prices(program, self.base)
        waiting = self._waiting_ns(program, measured, base)
        ratio = _ratios(program, prices.ns, base.ns) * self._moved(program, prices)
        scaled = told & (ratio > 0)
        ns = np.where(scaled, waiting + (measured - waiting) * ratio, measured)
        basis = np.where(scaled, Basis.SCALED, np.where(measured > 0, Basis.MEASURED, Basis.NONE))
        communicates = told & (program.kind >= Kind.COLLECTIVE)
        return replace(
            prices,
            ns=np.where(told, ns, prices.ns),
            basis=np.where(told, basis, prices.basis).astype(np.uint8),
            missing=prices.missing & ~told,
            wire_ns=np.where(communicates, ns - waiting, prices.wire_ns),
            waiting_ns=waiting,
        )

    def _waiting_ns(self, program: Program, measured: Float64s, base: RowPrices) -> Float64s:
        alone = next((mask for one, mask in self.alone if one is program), None)
        if alone is None:
            return np.zeros(len(program))
        waits = alone & (base.wire_ns > 0)
        return np.where(waits, np.maximum(measured - base.wire_ns, 0.0), 0.0)

    def _moved(self, program: Program, prices: RowPrices) -> Mask:
        """The rows that run on other hardware than what was measured."""
        found = prices.replaced.copy()
        if self.network_differs:
            found |= program.kind >= Kind.COLLECTIVE
        if self.kernels_differ:
            found |= on_device(program)
        return found


@dataclass(frozen=True, slots=True)
class Modelled:
    """Kernels and communication take the models' times, the host what was measured of it.

    So do kernels without a price; what an operator launches beside a priced kernel takes none.
    """

    def of(self, program: Program, prices: RowPrices) -> RowPrices:
        """The models' times where they have any."""
        beside = _beside_priced(program, prices.ns)
        measured = (program.measured_ns > 0) & (prices.ns <= 0) & ~beside
        return replace(
            prices,
            ns=np.where(measured, program.measured_ns, prices.ns),
            basis=np.where(measured, Basis.MEASURED, prices.basis).astype(np.uint8),
            missing=prices.missing & ~measured,
        )


def _beside_priced(program: Program, ns: Float64s) -> Mask:
    """Rows of an operator's call whose main kernel has a price, except that kernel."""
    mains = main_rows(program)
    rows = np.arange(len(program))
    return np.asarray((mains >= 0) & (mains != rows) & (ns[np.maximum(mains, 0)] > 0))


def _ratios(program: Program, target_ns: Float64s, base_ns: Float64s) -> Float64s:
    """For each row how much longer the models say it takes; 0 where they do not.

    What an operator launches beside its main kernel changes with that.
    """
    both = (target_ns > 0) & (base_ns > 0)
    found = np.where(both, target_ns / np.where(both, base_ns, 1.0), 0.0)
    mains: Int64s = main_rows(program)
    beside = np.flatnonzero(~both & (mains >= 0) & on_device(program))
    found[beside] = found[mains[beside]]
    return found


def same_chip(one: Chip, other: Chip) -> bool:
    """Whether two chips are the same hardware. Fitted constants may differ: those are the models'."""
    return one.name == other.name or _plain(one) == _plain(other)


def _plain(chip: Chip) -> tuple[object, ...]:
    peaks = {k: q.value for k, q in chip.peak_flops_per_s.items()}
    return peaks, chip.memory_bandwidth_bytes_per_s.value, chip.memory_bytes.value


def same_network(one: Cluster, other: Cluster) -> bool:
    """Whether the tiers of two clusters are the same hardware, constants aside."""
    return [_tier(one, n) for n in range(len(one.network))] == [
        _tier(other, n) for n in range(len(other.network))
    ]


def _tier(cluster: Cluster, number: int) -> tuple[object, ...]:
    n = cluster.network[number]
    speeds = (n.bandwidth_bytes_per_s.value, n.latency_ns.value, n.oversubscription, n.links)
    return n.kind, n.size, n.torus_dimensions, n.in_network_reduction, *speeds


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
    placement = NetworkPlacement(workload.mesh, cluster, written=pricing.placement.written)
    tf32 = tf32_kinds(profile, cluster.chip)
    return Pricing(
        cluster, placement, tf32, lenient=True, slower=pricing.slower, routing=pricing.routing
    )
