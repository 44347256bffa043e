"""What each row of a program takes on a cluster, by Flint's models, and what a time rests on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from flint.backends.cost.chips.kernel_table import kernels_of, unpriced
from flint.backends.cost.chips.kernels import KernelKind, Kernels
from flint.backends.cost.chips.model import latency_ns
from flint.backends.cost.collectives.algorithm import CollectiveCall
from flint.backends.cost.network.placement import NetworkPlacement, call_of
from flint.backends.cost.routing import Routing, spread_of
from flint.backends.cost.simulate.steady_state import GRID_NS
from flint.cluster.models import Cluster
from flint.errors import FlintError
from flint.ir.arrays import Float64s, Mask
from flint.ir.program import Int64s, Kind, Program


class Basis(IntEnum):
    """What the time of a row rests on."""

    NONE = 0  #: it takes no time, or has no price
    MODEL = 1  #: Flint's models, or the cycles of a compiler
    MEASURED = 2  #: it was measured as it is
    SCALED = 3  #: a measured time times a ratio of the models' times


@dataclass(frozen=True, eq=False)
class RowPrices:
    """For each row of a program its time, and what that rests on.

    `missing` are rows that work and have no price. `wire_ns` is how long communication takes where
    nobody is waited for, `waiting_ns` how much of its time is nothing but that. `replaced` are rows
    that were put on another cluster than the others.
    """

    ns: Float64s
    missing: Mask
    basis: NDArray[np.uint8]
    wire_ns: Float64s
    waiting_ns: Float64s
    replaced: Mask

    def on_grid(self) -> RowPrices:
        """The same with times that the timeline adds up exactly."""
        return replace(self, ns=np.rint(self.ns / GRID_NS) * GRID_NS)


class Times(Protocol):
    """What changes the models' prices of rows: measured times, scales, replacements."""

    def of(self, program: Program, prices: RowPrices) -> RowPrices:
        """The prices of a program, from those before."""


@dataclass(frozen=True, slots=True)
class Pricing:
    """What prices depend on beside the program.

    With `cycles_per_ns` a kernel takes its `Program.cycles` where it has any. If `lenient`, a type
    that the chip has no peak for makes a row without a price, and no error. `slower` is how many times
    longer kernels take than on the mean chip (see `slowest`). `routing` is how tokens are spread over
    experts, None evenly.
    """

    cluster: Cluster
    placement: NetworkPlacement
    tf32: frozenset[KernelKind] = frozenset()
    cycles_per_ns: float = 0.0
    lenient: bool = False
    slower: float = 1.0
    routing: Routing | None = None

    def kernel_ns(self, kernels: Kernels, cycles: Int64s) -> Float64s:
        """By cycles where there are such and they count, else by the chip's model.

        A kernel without a price is NaN, if that is not an error.
        """
        told = (cycles > 0) & (self.cycles_per_ns > 0)
        found = np.zeros(len(kernels), dtype=np.float64)
        found[told] = cycles[told] / max(self.cycles_per_ns, 1e-9)
        found[~told] = self._by_model(kernels.select(~told))
        return found

    def _by_model(self, kernels: Kernels) -> Float64s:
        try:
            return latency_ns(kernels, self.cluster.chip)
        except FlintError:
            if not self.lenient:
                raise
        found = np.full(len(kernels), np.nan)
        for number in np.unique(kernels.dtype).tolist():
            mine = np.flatnonzero(kernels.dtype == number)
            try:
                found[mine] = latency_ns(kernels.select(mine), self.cluster.chip)
            except FlintError:
                continue
        return found


def model_prices(program: Program, pricing: Pricing) -> RowPrices:
    """The time of every row by the models. Raises FlintError FL705, unless `lenient`."""
    found = np.zeros(len(program), dtype=np.float64)
    missing = np.zeros(len(program), dtype=np.bool_)
    kernels, rows = kernels_of(program, tf32=pricing.tf32)
    if pricing.routing is not None:
        spread = spread_of(program, pricing.routing)
        kernels, program = spread.of_kernels(kernels, rows), spread.of_bytes(program)
    found[rows], missing[rows] = kernel_prices(kernels, program.cycles[rows], pricing)
    wire = _communication(program, pricing.cluster, pricing.placement)
    found += wire
    basis = np.where(found > 0, Basis.MODEL, Basis.NONE).astype(np.uint8)
    nowhere = np.zeros(len(program), dtype=np.bool_)
    return RowPrices(found, missing, basis, wire, np.zeros(len(program)), nowhere)


def kernel_prices(kernels: Kernels, cycles: Int64s, pricing: Pricing) -> tuple[Float64s, Mask]:
    """The time of every kernel by the models, and which have no price."""
    found = np.zeros(len(kernels), dtype=np.float64)
    copies = np.asarray(kernels.kind == KernelKind.HOST_COPY)
    link = pricing.cluster.chip.host_link_bytes_per_s
    without = unpriced(kernels) | (copies & (link is None))
    if pricing.cycles_per_ns:
        without &= copies | (cycles == 0)
    if link is not None:
        found[copies] = kernels.read_bytes[copies] / link.value * 1e9
    priced = np.flatnonzero(~without & ~copies)
    latency = pricing.kernel_ns(kernels.select(priced), cycles[priced])
    without[priced] = np.isnan(latency)
    found[priced] = np.nan_to_num(latency) * (pricing.slower / pricing.cluster.derate.value)
    return found, without


def _communication(program: Program, cluster: Cluster, placement: NetworkPlacement) -> Float64s:
    from flint.backends.cost.collectives import duration_ns

    found = np.zeros(len(program), dtype=np.float64)
    known: dict[CollectiveCall, float] = {}
    for row in np.flatnonzero(program.kind >= Kind.COLLECTIVE).tolist():
        call = call_of(program, row, placement)
        if call not in known:
            known[call] = duration_ns(call, cluster)
        found[row] = known[call]
    return found
