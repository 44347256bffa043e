"""Durations of every row of a workload's programs on a cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flint.backends.chakra.writing.expand import expand
from flint.backends.cost.chips.kernel_table import kernels_of, unpriced
from flint.backends.cost.chips.kernels import KernelKind, Kernels
from flint.backends.cost.chips.model import latency_ns
from flint.backends.cost.network.calls import CollectiveCall, Span
from flint.backends.cost.network.placement import NetworkPlacement
from flint.backends.cost.simulate.layers import Issued, Preparation, one_layer_ahead, preparation
from flint.backends.cost.simulate.steady_state import GRID_NS
from flint.backends.cost.simulate.timeline import ClassWork, Floats, Policy
from flint.cluster.models import Cluster
from flint.errors import FlintError
from flint.ir.program import Collective, Int64s, Kind, Program
from flint.ir.workload import Workload
from flint.passes.work.host_copies import OPCODES


@dataclass(frozen=True, eq=False)
class Priced:
    """A workload with a duration for every row, ready to be placed in time.

    `unpriced` counts executions of operations without a price, by opcode: they take no time here.
    """

    works: tuple[ClassWork, ...]
    streams: tuple[str, ...]
    unpriced: Mapping[str, int]


def price(
    workload: Workload,
    cluster: Cluster,
    placement: NetworkPlacement,
    policy: Policy,
    *,
    unpriced_is_zero: bool = False,
    tf32: Collection[KernelKind] = (),
    cycles_per_ns: float = 0.0,
) -> Priced:
    """Price every program once and expand it for every rank class.

    `tf32` is that of `kernels_of`. With `cycles_per_ns` a kernel takes its `Program.cycles` where it
    has any. Raises FlintError FL704 naming the operations without a price, unless `unpriced_is_zero`.
    """
    missing: Counter[str] = Counter()
    pricing = _Pricing(cluster, placement, frozenset(tf32), cycles_per_ns)
    durations = [_durations(p, pricing, missing) for p in workload.programs]
    if missing and not unpriced_is_zero:
        raise _no_price(missing, workload.programs)
    prepared = [preparation(p) if policy.prepares_ahead else None for p in workload.programs]
    streams, stream = _streams(workload.programs, cluster, placement, policy, prepared)
    issued = [_issued(p, early) for p, early in zip(workload.programs, prepared, strict=True)]
    owner = workload.class_of_ranks()
    works = []
    for number, rank_class in enumerate(workload.classes):
        at, program = rank_class.program, workload.programs[rank_class.program]
        rank = int(np.flatnonzero(owner == number)[0])
        works.append(
            ClassWork(
                program,
                issued[at].nodes,
                durations[at],
                stream[at],
                _peers(program, rank, owner),
                _together(program, rank, owner),
                cluster.host_launch_ns.value if cluster.host_launch_ns else 0.0,
                issued[at].layer,
            )
        )
    return Priced(tuple(works), streams, dict(sorted(missing.items())))


def _no_price(missing: Mapping[str, int], programs: Sequence[Program]) -> FlintError:
    places = [_place_of(name, programs) for name in sorted(missing)]
    named = zip(sorted(missing.items()), places, strict=True)
    listed = ", ".join(f"{name} x{count}{place}" for (name, count), place in named)
    return FlintError(
        "FL704",
        f"{len(missing)} operation{'s have' if len(missing) > 1 else ' has'} no price: {listed}",
        help="copies to and from the host need host_link_bytes_per_s in the chip's file"
        if set(missing) <= set(OPCODES.values())
        else "say what they cost: @flint.cost_of(NAME), or pallas_call(cost_estimate=pl.CostEstimate(...)); "
        "--unpriced zero counts operations as nothing, and calls the estimate a lower bound",
    )


def _place_of(opcode: str, programs: Sequence[Program]) -> str:
    """Where the first operation of a name is in the user's code, in brackets; "" if nowhere."""
    for program in programs:
        if opcode in program.opcodes:
            rows = np.flatnonzero(program.opcode == program.opcodes.index(opcode))
            places = [program.strings[at] for at in program.location[rows].tolist()]
            found = next(filter(None, places), "")
            if found:
                return f" ({found})"
    return ""


@dataclass(frozen=True, slots=True)
class _Pricing:
    """What prices depend on beside the program."""

    cluster: Cluster
    placement: NetworkPlacement
    tf32: frozenset[KernelKind]
    cycles_per_ns: float

    def kernel_ns(self, kernels: Kernels, cycles: Int64s) -> Floats:
        """By cycles where there are such and they count, else by the chip's model."""
        told = (cycles > 0) & (self.cycles_per_ns > 0)
        found = np.zeros(len(kernels), dtype=np.float64)
        found[told] = cycles[told] / max(self.cycles_per_ns, 1e-9)
        found[~told] = latency_ns(kernels.select(~told), self.cluster.chip)
        return found


def _durations(program: Program, pricing: _Pricing, missing: Counter[str]) -> Floats:
    cluster = pricing.cluster
    found = np.zeros(len(program), dtype=np.float64)
    kernels, rows = kernels_of(program, tf32=pricing.tf32)
    cycles = program.cycles[rows]
    copies = np.asarray(kernels.kind == KernelKind.HOST_COPY)
    link = cluster.chip.host_link_bytes_per_s
    without = unpriced(kernels) | (copies & (link is None))
    if pricing.cycles_per_ns:
        without &= copies | (cycles == 0)
    for row in rows[without].tolist():
        missing[program.opcodes[program.opcode[row]]] += int(program.trips[row])
    if link is not None:
        found[rows[copies]] = kernels.read_bytes[copies] / link.value * 1e9
    priced = np.flatnonzero(~without & ~copies)
    latency = pricing.kernel_ns(kernels.select(priced), cycles[priced])
    found[rows[priced]] = latency / cluster.derate.value
    found += _communication(program, cluster, pricing.placement)
    return np.rint(found / GRID_NS) * GRID_NS


def _communication(program: Program, cluster: Cluster, placement: NetworkPlacement) -> Floats:
    from flint.backends.cost.collectives import duration_ns

    found = np.zeros(len(program), dtype=np.float64)
    known: dict[CollectiveCall, float] = {}
    for row in np.flatnonzero(program.kind >= Kind.COLLECTIVE).tolist():
        call = call_of(program, row, placement)
        if call not in known:
            known[call] = duration_ns(call, cluster)
        found[row] = known[call]
    return found


def call_of(program: Program, row: int, placement: NetworkPlacement) -> CollectiveCall:
    """What a communication row asks of the network."""
    collective = Collective(int(program.collective[row]))
    return CollectiveCall(
        collective, int(program.comm_bytes[row]), spans_of_row(program, row, placement)
    )


def spans_of_row(program: Program, row: int, placement: NetworkPlacement) -> tuple[Span, ...]:
    """The tiers that a communication row crosses."""
    group, route = int(program.group[row]), int(program.route[row])
    if group >= 0:
        return placement.spans_of_group(program.groups[group])
    return placement.spans_of_route(program.routes[route])


def _streams(
    programs: Sequence[Program],
    cluster: Cluster,
    placement: NetworkPlacement,
    policy: Policy,
    prepared: Sequence[Preparation | None],
) -> tuple[tuple[str, ...], list[NDArray[np.int64]]]:
    """Names of streams, and the stream of every row: computation, by tier and kind, as recorded."""
    names = ["compute"]
    found = []
    for program, early in zip(programs, prepared, strict=True):
        stream = np.zeros(len(program), dtype=np.int64)
        for row in np.flatnonzero(program.kind >= Kind.COLLECTIVE).tolist():
            kind = Kind(int(program.kind[row]))
            if policy.blocking and kind is not Kind.RECV:
                continue
            tier = max((s.tier for s in spans_of_row(program, row, placement)), default=0)
            suffix = "" if kind is Kind.COLLECTIVE else f" {kind.name.lower()}"
            name = cluster.network[tier].name + suffix
            if name not in names:
                names.append(name)
            stream[row] = names.index(name)
        if early:
            _beside(early, names, stream)
        if policy.keeps_streams:
            _as_recorded(program, names, stream)
        found.append(stream)
    return tuple(names), found


def _beside(early: Preparation, names: list[str], stream: NDArray[np.int64]) -> None:
    """Take kernels that prepare communication out of the compute stream."""
    for row, collective in early.feeds.items():
        stream[row] = stream[collective]
    if early.gathers.any() and early.counts.any():
        names += [] if "counters" in names else ["counters"]
        stream[early.counts] = names.index("counters")


def _as_recorded(program: Program, names: list[str], stream: NDArray[np.int64]) -> None:
    """Kernels that the program itself put on another stream than the first run on that."""
    aside = (program.kind == Kind.COMPUTE) & (program.stream > 0)
    for number in np.unique(program.stream[aside]).tolist():
        name = program.streams[number]
        names += [] if name in names else [name]
        stream[aside & (program.stream == number)] = names.index(name)


def _issued(program: Program, early: Preparation | None) -> Issued:
    nodes = expand(program)
    return one_layer_ahead(program, nodes, early) if early else Issued(nodes)


def _peers(program: Program, rank: int, owner: NDArray[np.int16]) -> dict[int, int]:
    """For each RECV row, the rank class that the message to `rank` comes from."""
    found = {}
    sources = {
        route: int(program.routes[route].sources(program.mesh)[rank])
        for route in np.unique(program.route[program.kind == Kind.RECV]).tolist()
    }
    for row in np.flatnonzero(program.kind == Kind.RECV).tolist():
        source = sources[int(program.route[row])]
        if source >= 0 and source != rank:
            found[row] = int(owner[source])
    return found


def _together(program: Program, rank: int, owner: NDArray[np.int16]) -> dict[int, tuple[int, ...]]:
    """For each collective row whose group reaches into several rank classes, those classes."""
    classes: dict[int, tuple[int, ...]] = {}
    for number in np.unique(program.group[program.kind == Kind.COLLECTIVE]).tolist():
        if number < 0:
            continue
        group = next(
            (g for g in program.groups[number].members(program.mesh) if rank in g), np.array([rank])
        )
        classes[number] = tuple(np.unique(owner[group]).tolist())
    rows = np.flatnonzero((program.kind == Kind.COLLECTIVE) & (program.group >= 0)).tolist()
    return {
        row: classes[int(program.group[row])]
        for row in rows
        if len(classes[int(program.group[row])]) > 1
    }
