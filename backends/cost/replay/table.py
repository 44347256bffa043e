"""Measured workloads as a table of times, which prices programs that nobody ran.

A kernel is looked up by what it is: class, type, shape, dimensions, product and mask. What an
operator's call launched counts together (`Program.launcher`), since a captured program has one row for
it. Where no kernel is the same, its price is the model's times measured over model of kernels that are
near it: of the same kind, and of similar times by the model. So it is with communication: looked up by
kind, tiers with members and bytes, else scaled by near ones, first of those over the same tiers.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np

from flint.backends.cost.chips.kernel_table import kernels_of
from flint.backends.cost.network.placement import call_of
from flint.backends.cost.replay.changes import kernel_kinds, main_rows, on_device
from flint.backends.cost.row_prices import Basis, Pricing, RowPrices, model_prices
from flint.cluster.models import Cluster
from flint.ir.arrays import Float64s, Mask
from flint.ir.op_class import OpClass
from flint.ir.program import Flag, Int64s, Kind, Program
from flint.ir.workload import Workload

#: Kind of communication, tiers with members, bytes.
_CommunicationKey: TypeAlias = tuple[Hashable, tuple[tuple[int, int], ...], int]
#: How near another kernel is, in powers of e of its time by the model, to count half as much.
_NEAR = 0.25
#: Ratios of measured to modeled times are kept within these: outside, the model prices something else.
_LEAST_RATIO, _MOST_RATIO = 0.02, 50.0


class _Samples(NamedTuple):
    """Kernels of one kind: the logarithms of model times and of ratios, and how often they ran."""

    model: Float64s
    ratio: Float64s
    weight: Float64s

    def at(self, model_ns: Float64s) -> Float64s:
        """Ratios for kernels of other times: medians, those near by counting most.

        So a few kernels of which a profile says less than they do change nothing.
        """
        distance = np.log(model_ns)[:, None] - self.model[None, :]
        weight = self.weight[None, :] / ((distance / _NEAR) ** 2 + 0.1)
        order = np.argsort(self.ratio, kind="stable")
        below = np.cumsum(weight[:, order], axis=1)
        at = (below < below[:, -1:] / 2).sum(axis=1)
        found: Float64s = np.exp(self.ratio[order][at])
        return found


@dataclass(frozen=True)
class MeasuredTable:
    """Times of kernels and communication by what they are, and ratios to the models by kind.

    `kernel_ns` and `communication_ns` are means. `host_ns` is the mean time of the host for one
    launch of an operator, 0 where no profile has its host. All of it is of `cluster`.
    """

    cluster: Cluster
    kernel_ns: Mapping[Hashable, float]
    communication_ns: Mapping[Hashable, float]
    kernel_ratios: Mapping[Hashable, _Samples]
    communication_ratios: Mapping[Hashable, _Samples]
    host_ns: float


@dataclass(frozen=True, slots=True)
class Predicted:
    """Times of a program that nobody ran, from a table of others that were measured.

    `pricing` is how the models price the program on the cluster that the table was measured on. What
    the estimate puts on other hardware is scaled by the models, as measured times are.
    """

    table: MeasuredTable
    pricing: Pricing

    def of(self, program: Program, prices: RowPrices) -> RowPrices:
        """Measured times where there are such, else scaled ones."""
        base = model_prices(program, self.pricing)
        exact, ratio = np.zeros(len(program)), np.zeros(len(program))
        self._kernels(program, base.ns, exact, ratio)
        self._communication(program, base.ns, exact, ratio)
        moved = np.where(
            (base.ns > 0) & (prices.ns > 0), prices.ns / np.maximum(base.ns, 1e-9), 1.0
        )
        ns = np.where(exact > 0, exact * moved, np.where(ratio > 0, prices.ns * ratio, prices.ns))
        basis = prices.basis.copy()
        basis[ratio > 0] = Basis.SCALED
        basis[exact > 0] = Basis.MEASURED
        basis[(exact > 0) & (np.abs(moved - 1) > 1e-9)] = Basis.SCALED
        communicates = program.kind >= Kind.COLLECTIVE
        return replace(
            prices,
            ns=ns,
            basis=basis,
            missing=prices.missing & (exact <= 0),
            wire_ns=np.where(communicates, ns, prices.wire_ns),
        )

    def _kernels(
        self, program: Program, base_ns: Float64s, exact: Float64s, ratio: Float64s
    ) -> None:
        kinds = kernel_kinds(program)
        _, rows = kernels_of(program)
        for row in rows.tolist():
            key = kernel_key(program, row)
            found = self.table.kernel_ns.get(key) or self.table.kernel_ns.get(key[:-1])
            exact[row] = found or 0.0
        _scale(
            kinds,
            base_ns,
            rows[(exact[rows] == 0) & (base_ns[rows] > 0)],
            self.table.kernel_ratios,
            ratio,
        )

    def _communication(
        self, program: Program, base_ns: Float64s, exact: Float64s, ratio: Float64s
    ) -> None:
        rows = np.flatnonzero((program.kind >= Kind.COLLECTIVE) & (base_ns > 0))
        for row in rows.tolist():
            key = communication_key(program, row, self.pricing)
            exact[row] = self.table.communication_ns.get(key, 0.0)
            near = map(self.table.communication_ratios.get, _groups(key))
            samples = next((s for s in near if s is not None), None)
            if not exact[row] and samples is not None:
                ratio[row] = samples.at(base_ns[row : row + 1])[0]


def _scale(
    kinds: Int64s,
    base_ns: Float64s,
    rows: Int64s,
    samples: Mapping[Hashable, _Samples],
    ratio: Float64s,
) -> None:
    for kind in np.unique(kinds[rows]).tolist():
        near = samples.get(kind, samples.get("all"))
        mine = rows[kinds[rows] == kind]
        if near is not None and len(mine):
            ratio[mine] = near.at(base_ns[mine])


def kernel_key(program: Program, row: int) -> tuple[Hashable, ...]:
    """What a kernel is, the bytes that it reads last: profiles do not always tell these."""
    return (
        int(program.op[row]),
        program.dtypes[program.dtype[row]],
        program.shapes[program.shape[row]],
        tuple(program.dims[row].tolist()),
        program.products[program.product[row]],
        int(program.mask[row]),
        int(program.operand_bytes[row]),
    )


def communication_key(program: Program, row: int, pricing: Pricing) -> _CommunicationKey:
    """Kind of a collective or message, tiers with members, bytes."""
    call = call_of(program, row, pricing.placement)
    kind = (int(program.kind[row]), int(call.collective), call.written is not None)
    return kind, tuple((s.tier, s.size) for s in call.spans if s.size > 1), call.comm_bytes


class _Sums:
    """Times by key, to be means."""

    def __init__(self) -> None:
        self.total: dict[Hashable, float] = {}
        self.count: dict[Hashable, float] = {}
        self.model: dict[Hashable, float] = {}
        self.groups: dict[Hashable, list[Hashable]] = {}

    def add(self, key: Hashable, ns: float, model_ns: float, groups: Iterable[Hashable]) -> None:
        if key not in self.total:
            for group in groups:
                self.groups.setdefault(group, []).append(key)
        self.total[key] = self.total.get(key, 0.0) + ns
        self.count[key] = self.count.get(key, 0.0) + 1
        self.model[key] = model_ns

    def means(self) -> dict[Hashable, float]:
        return {key: total / self.count[key] for key, total in self.total.items()}

    def samples(self) -> dict[Hashable, _Samples]:
        """Ratios of each group, of what the models price at all."""
        found = {}
        for group, keys in self.groups.items():
            priced = [k for k in keys if self.model[k] > 0]
            if not priced:
                continue
            model = np.array([self.model[k] for k in priced])
            mean = np.array([self.total[k] / self.count[k] for k in priced])
            ratio = np.clip(mean / model, _LEAST_RATIO, _MOST_RATIO)
            weight = np.array([self.count[k] for k in priced])
            found[group] = _Samples(np.log(model), np.log(ratio), weight)
        return found


def table_of(measured: Sequence[tuple[Workload, Pricing, Sequence[Mask]]]) -> MeasuredTable:
    """The table of workloads made of profiles of one cluster.

    Each comes with how that cluster prices it and, for each of its programs, the communication whose
    other ranks were not recorded: its least time counts, as others hold waits.
    """
    kernels, coarse, turns = _Sums(), _Sums(), _Turns()
    host: list[float] = []
    for workload, pricing, alone in measured:
        for program, waits in zip(workload.programs, alone, strict=True):
            model = model_prices(program, pricing)
            _add_kernels(program, model.ns, kernels, coarse)
            turns.add(program, model.ns, pricing, waits)
            host += _host_ns(program)
    communication = turns.sums()
    return MeasuredTable(
        measured[0][1].cluster,
        {**coarse.means(), **kernels.means()},
        communication.means(),
        kernels.samples(),
        communication.samples(),
        float(np.mean(host)) if host else 0.0,
    )


def _add_kernels(program: Program, model_ns: Float64s, kernels: _Sums, coarse: _Sums) -> None:
    """Each operator's call: all its kernels are the time of the main one."""
    kinds, mains = kernel_kinds(program), main_rows(program)
    _, rows = kernels_of(program)
    time = program.measured_ns.astype(np.float64)
    beside = np.flatnonzero((mains >= 0) & (mains != np.arange(len(program))) & on_device(program))
    np.add.at(time, mains[beside], program.measured_ns[beside])
    taken = rows[(time[rows] > 0) & ((mains[rows] < 0) | (mains[rows] == rows))]
    for row in taken.tolist():
        key = kernel_key(program, row)
        kernels.add(key, float(time[row]), float(model_ns[row]), (int(kinds[row]), "all"))
        coarse.add(key[:-1], float(time[row]), float(model_ns[row]), ())


class _Turns:
    """Communication by what it is and how manieth of that a rank does: over all ranks, the slowest.

    Groups that do the same at the same time wait for the slowest of them, at the latest where they
    next meet others. Of ranks that were recorded alone the least time of all turns counts.
    """

    def __init__(self) -> None:
        self._slowest: dict[tuple[_CommunicationKey, int], tuple[float, float]] = {}

    def add(self, program: Program, model_ns: Float64s, pricing: Pricing, waits: Mask) -> None:
        """All communication of a program; `waits` holds the wait for ranks that were not recorded."""
        measured = (program.kind >= Kind.COLLECTIVE) & (program.measured_ns > 0)
        turns: dict[_CommunicationKey, int] = {}
        least: dict[_CommunicationKey, tuple[float, float]] = {}
        for row in np.flatnonzero(measured).tolist():
            key = communication_key(program, row, pricing)
            took = float(program.measured_ns[row]), float(model_ns[row])
            if waits[row]:
                least[key] = min(took, least.get(key, took))
                continue
            turn = turns[key] = turns.get(key, -1) + 1
            self._slowest[key, turn] = max(took, self._slowest.get((key, turn), took))
        for key, took in least.items():
            self._slowest.setdefault((key, -1), took)

    def sums(self) -> _Sums:
        found = _Sums()
        for (key, _), (ns, model_ns) in self._slowest.items():
            found.add(key, ns, model_ns, _groups(key))
        return found


def _groups(key: _CommunicationKey) -> tuple[Hashable, ...]:
    """What communication is near to, the nearest first."""
    kind, spans, _ = key
    tiers = tuple(tier for tier, _ in spans)
    return (kind, tiers), tiers, kind, "all"


def _host_ns(program: Program) -> list[float]:
    """What the host did for each operator's call: over all its launches, its waits aside."""
    host = (program.op == OpClass.HOST) & ((program.flags & Flag.WAITS) == 0)
    launches = np.flatnonzero(host)
    if not len(launches):
        return []
    calls = len(np.unique(program.launcher[program.launcher > 0]))
    calls += int((on_device(program) & (program.launcher == 0)).sum())
    return [float(program.measured_ns[launches].sum()) / max(calls, 1)]
