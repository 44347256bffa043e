"""Durations of every row of a workload's programs on a cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from flint.backends.chakra.writing.expand import expand
from flint.backends.cost.row_prices import Pricing, RowPrices, Times, model_prices
from flint.backends.cost.simulate.layers import Issued, Preparation, one_layer_ahead, preparation
from flint.backends.cost.simulate.streams import peers_of, streams_of, together_of
from flint.backends.cost.simulate.timeline import ClassWork, Policy
from flint.cluster.models import Cluster
from flint.errors import FlintError
from flint.ir.program import MOST_INT64, Program
from flint.ir.workload import Workload
from flint.passes.work.host_copies import OPCODES


class PricesByClass(Protocol):
    """What changes the prices of ranks that differ: `unlike.ClassTimes`."""

    @property
    def pricing(self) -> Pricing: ...

    @property
    def of_chip(self) -> tuple[Times, ...]: ...

    def chip_of(self, number: int) -> int: ...

    def meetings(
        self, number: int, peers: dict[int, int], together: dict[int, tuple[int, ...]]
    ) -> tuple[dict[int, int], dict[int, tuple[int, ...]]]: ...

    def changed(
        self, number: int, prices: RowPrices, together: Mapping[int, tuple[int, ...]]
    ) -> RowPrices: ...


@dataclass(frozen=True, eq=False)
class Priced:
    """A workload with a duration for every row, ready to be placed in time.

    `unpriced` counts executions of operations without a price, by opcode: they take no time here.
    `prices` go by program.
    """

    works: tuple[ClassWork, ...]
    streams: tuple[str, ...]
    unpriced: Mapping[str, int]
    prices: tuple[RowPrices, ...] = ()


def price(
    workload: Workload,
    pricing: Pricing,
    policy: Policy,
    *,
    unpriced_is_zero: bool = False,
    times: Times | None = None,
    unlike: PricesByClass | None = None,
) -> Priced:
    """Price every program once and expand it for every rank class.

    `times` changes what the models say, `unlike` what that is for ranks that differ. What hangs on the workload and the policy alone is kept in it.
    Raises FlintError FL704 naming the operations without a price, unless `unpriced_is_zero`, FL705
    for a chip without what a price needs, unless `pricing.lenient`, and FL728 for times beyond int64.
    """
    prices = [_prices(p, pricing, times) for p in workload.programs]
    missing = _missing(workload.programs, prices)
    by_class = [prices[c.program] for c in workload.classes]
    if unlike is not None:
        by_class = [_on_chip(workload, n, found, unlike) for n, found in enumerate(by_class)]
        missing |= _missing([workload.programs[c.program] for c in workload.classes], by_class)
    if missing and not unpriced_is_zero:
        raise _no_price(missing, workload.programs)
    kept, cluster = workload.kept, pricing.cluster
    prepared = kept.get("prepared", policy.prepares_ahead, lambda: _prepared(workload, policy))
    streams, stream = streams_of(workload.programs, cluster, pricing.placement, policy, prepared)
    ahead = "ahead" if policy.prepares_ahead else "in place"
    issued = kept.get(
        f"nodes {ahead}", None, lambda: list(map(_issued, workload.programs, prepared))
    )
    peers = kept.get("peers", policy.recorded, lambda: _others(workload, policy))
    if unlike is not None:
        peers = [unlike.meetings(n, *others) for n, others in enumerate(peers)]
        by_class = [unlike.changed(n, found, peers[n][1]) for n, found in enumerate(by_class)]
    works = []
    for number, rank_class in enumerate(workload.classes):
        at = rank_class.program
        works.append(
            ClassWork(
                workload.programs[at],
                issued[at].nodes,
                by_class[number].ns,
                stream[at],
                *peers[number],
                _launch_ns(cluster, policy),
                issued[at].layer,
                policy.recorded,
            )
        )
    _require_that_it_ends(works)
    return Priced(tuple(works), streams, dict(sorted(missing.items())), tuple(prices))


def _require_that_it_ends(works: Sequence[ClassWork]) -> None:
    """Raise FlintError FL728 unless all nodes one after another take less than 2^63 ns.

    Then no time of a step is more than what timelines and traces hold.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        total_ns = sum(
            float(w.duration_ns @ w.program.trips) + len(w.nodes) * w.launch_ns for w in works
        )
    if total_ns < MOST_INT64:
        return
    longest = max(works, key=lambda w: float(w.duration_ns.max(initial=0.0)))
    program, row = longest.program, int(longest.duration_ns.argmax())
    raise FlintError(
        "FL728",
        f"the kernels of a step take {total_ns:.3g} ns; times must be below 2^63 ns (292 years)",
        place=f"{program.strings[program.location[row]]}  {program.opcodes[program.opcode[row]]}, "
        f"{longest.duration_ns[row]:.3g} ns".strip(),
        help="is a size, a peak or a bandwidth wrong by orders of magnitude?",
    )


def _prepared(workload: Workload, policy: Policy) -> list[Preparation | None]:
    return [preparation(p) if policy.prepares_ahead else None for p in workload.programs]


def _others(
    workload: Workload, policy: Policy
) -> list[tuple[dict[int, int], dict[int, tuple[int, ...]]]]:
    """For each rank class `peers_of` and `together_of` its first rank."""
    owner = workload.class_of_ranks()
    found = []
    for number, rank_class in enumerate(workload.classes):
        program = workload.programs[rank_class.program]
        rank = int(np.flatnonzero(owner == number)[0])
        peers = peers_of(program, rank, owner, others_only=policy.recorded)
        found.append((peers, together_of(program, rank, owner)))
    return found


def _prices(program: Program, pricing: Pricing, times: Times | None) -> RowPrices:
    found = model_prices(program, pricing)
    return (found if times is None else times.of(program, found)).on_grid()


def _on_chip(workload: Workload, number: int, usual: RowPrices, unlike: PricesByClass) -> RowPrices:
    """The prices of a rank class on the chip that it has."""
    at = unlike.chip_of(number)
    program = workload.programs[workload.classes[number].program]
    return usual if at < 0 else _prices(program, unlike.pricing, unlike.of_chip[at])


def _missing(programs: Sequence[Program], prices: Sequence[RowPrices]) -> Counter[str]:
    """How often operations without a price run, by opcode."""
    found: Counter[str] = Counter()
    for program, priced in zip(programs, prices, strict=True):
        for row in np.flatnonzero(priced.missing).tolist():
            found[program.opcodes[program.opcode[row]]] += int(program.trips[row])
    return found


def _launch_ns(cluster: Cluster, policy: Policy) -> float:
    """How often a host launches; 0 where it is never late, or where the rows say what it does."""
    return cluster.host_launch_ns.value if cluster.host_launch_ns and not policy.recorded else 0.0


def _no_price(missing: Mapping[str, int], programs: Sequence[Program]) -> FlintError:
    places = [_place_of(name, programs) for name in sorted(missing)]
    named = zip(sorted(missing.items()), places, strict=True)
    listed = ", ".join(f"{name} x{count}{place}" for (name, count), place in named)
    return FlintError(
        "FL704",
        f"{len(missing)} operation{'s have' if len(missing) > 1 else ' has'} no price: {listed}",
        help="copies to and from the host need host_link_bytes_per_s in the chip's file"
        if set(missing) <= set(OPCODES.values())
        else "say what they cost: @flint.cost_of(NAME), or "
        "pallas_call(cost_estimate=pl.CostEstimate(...)); --unpriced zero counts "
        "operations as zero, and the estimate becomes a lower bound",
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


def _issued(program: Program, early: Preparation | None) -> Issued:
    nodes = expand(program)
    return one_layer_ahead(program, nodes, early) if early else Issued(nodes)
