"""Measured programs with their own times, as they are or scaled to other hardware."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from flint.backends.cost.replay.changes import main_rows, on_device
from flint.backends.cost.row_prices import Basis, Pricing, RowPrices, model_prices
from flint.cluster.models import Chip, Cluster
from flint.ir.arrays import Float64s, Mask
from flint.ir.op_class import OpClass
from flint.ir.program import Int64s, Kind, Program


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
