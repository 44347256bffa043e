"""Setting: a workload with all that its estimate depends on, and the parts that an estimate is made of."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from flint.backends.chakra.reading.captured import workload_of
from flint.backends.cost.chips.kernels import KernelKind
from flint.backends.cost.chips.model import tf32_kinds
from flint.backends.cost.kernel_times import KernelTimes, cycles_per_ns, kernel_times
from flint.backends.cost.network.placement import NetworkPlacement
from flint.backends.cost.notes import alike, slower_than_mean
from flint.backends.cost.price import Priced, price
from flint.backends.cost.replay.changes import Changes, parse_changes
from flint.backends.cost.replay.plan import (
    cluster_for,
    launched_by,
    policy_of,
    refuse_profile,
    timing_of,
)
from flint.backends.cost.routing import Routing, find_routing, refuse_routing
from flint.backends.cost.row_prices import Pricing, Times
from flint.backends.cost.simulate.timeline import Policy, Timeline, simulate
from flint.backends.cost.software import (
    default_profile,
    find_policy,
    profile_on,
    stack_of,
    with_host,
    with_libraries,
)
from flint.cluster.models import Chip, Cluster
from flint.cluster.stack import Stack
from flint.ir.program import Int64s
from flint.ir.workload import Workload
from flint.log import stage
from flint.passes.base import run_passes
from flint.passes.profiles import kernels_for
from flint.plugins import API, load
from flint.requests.estimate import EstimateRequest

if TYPE_CHECKING:
    from flint.backends.cost.memory.memory import MemoryUse
    from flint.backends.cost.replay.table import MeasuredTable
    from flint.backends.cost.unlike import ClassTimes, Unlike

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Timed:
    """A setting in time. `changed` is what changed the models' times, where anything did."""

    priced: Priced
    timeline: Timeline
    changed: Times | None
    kernel_times: KernelTimes | None


@dataclass(frozen=True, eq=False)
class Setting:
    """What is estimated, on what: `cluster` with the software of `stack` on it.

    `kernels` are those of the `profile`, with collectives joined as the `policy` does. `clock` are the
    cycles of a nanosecond, 0 where kernels have no cycles. `unlike` says which ranks differ.
    """

    workload: Workload
    kernels: Workload
    cluster: Cluster
    placement: NetworkPlacement
    stack: Stack
    profile: str
    policy: Policy
    routing: Routing | None
    timing: str
    clock: float
    changes: Changes
    table: MeasuredTable | None
    unpriced_is_zero: bool
    unlike: Unlike | None = None

    @property
    def tf32(self) -> frozenset[KernelKind]:
        """The kinds of kernels that calculate in tf32."""
        return tf32_kinds(self.profile, self.cluster.chip)

    def timed(self) -> Timed:
        """Price the kernels and place them in time.

        Raises FlintError FL704 (an operation without a price), FL705 (a chip without what prices need),
        FL708 (ranks that wait for each other), FL728 (a step of centuries) and FL830
        (a change that cannot be).
        """
        with stage("price"):
            pricing = self._pricing()
            changed = self._changed(pricing)
            priced = price(
                *(
                    self.kernels,
                    self._of_kernels(pricing, lenient=changed is not None),
                    self.policy,
                ),
                unpriced_is_zero=self.unpriced_is_zero,
                times=changed,
                unlike=self._by_class(pricing),
            )
        with stage("simulate"):
            timeline = simulate(priced.works, priced.streams, self.policy)
            times = self._kernel_times(priced, timeline) if self.clock else None
        _log.info(
            "%d operations are %d kernels and collectives, in time %d nodes",
            *(sum(map(len, self.workload.programs)), sum(map(len, self.kernels.programs))),
            sum(len(c.start_ns) for c in timeline.classes),
        )
        return Timed(priced, timeline, changed, times)

    def pricing_of_kernels(self) -> Pricing:
        """What prices of the kernels depend on by Flint's models, nothing measured or changed."""
        return self._of_kernels(self._pricing(), lenient=False)

    def memory(self) -> Sequence[MemoryUse]:
        """Memory of each rank class."""
        with stage("memory"):
            found = _memory(self.workload, self.kernels, self.cluster.chip, self.policy, self.stack)
        if self.unlike is None:
            return found
        chips = [getattr(self.unlike.chip_of(c), "chip", None) for c in self.workload.classes]
        return [
            replace(use, capacity_bytes=int(chip.memory_bytes.value)) if chip else use
            for use, chip in zip(found, chips, strict=True)
        ]

    def ranks_of_classes(self) -> Int64s:
        """How many ranks each class has."""
        owner = self.workload.kept.get("owner", None, self.workload.class_of_ranks)
        return np.bincount(owner, minlength=len(self.workload.classes))

    def _pricing(self) -> Pricing:
        return Pricing(
            *(self.cluster, self.placement, self.tf32, self.clock),
            slower=slower_than_mean(self.kernels, self.cluster),
            routing=self.routing,
        )

    def _changed(self, pricing: Pricing) -> Times | None:
        """What changes the models' prices; None where nothing was measured or is changed."""
        if not (self.kernels.measured_by or self.table or self.changes):
            return None
        from flint.backends.cost.replay.times import times_of

        kernels = self.unlike.unsplit if self.unlike else self.kernels
        return times_of(kernels, pricing, self.timing, self.changes, self.table)

    def _by_class(self, pricing: Pricing) -> ClassTimes | None:
        """What the prices of rank classes are that differ; None where all are alike."""
        if self.unlike is None:
            return None
        on = self._of_kernels(pricing, lenient=True)
        return self.unlike.times(self.kernels, on, self.timing, self.changes, self.table)

    def _of_kernels(self, pricing: Pricing, *, lenient: bool) -> Pricing:
        """The same for the profile that the kernels are of, which is another for recorded ones."""
        name = str(self.kernels.metadata.get("profile", ""))
        return replace(pricing, tf32=tf32_kinds(name, self.cluster.chip), lenient=lenient)

    def _kernel_times(self, priced: Priced, timeline: Timeline) -> KernelTimes:
        """The compiler's times of kernels beside those of Flint's models."""
        pricing = replace(self._pricing(), cycles_per_ns=0.0)
        by_model = self._of_kernels(pricing, lenient=False)
        modelled = price(self.kernels, by_model, self.policy, unpriced_is_zero=True)
        step_ns = simulate(modelled.works, modelled.streams, self.policy).total_ns
        number = int(np.argmax([c.total_ns for c in timeline.classes]))
        return kernel_times(priced, modelled, number, step_ns, self.clock)


def setting_of(workload: Workload, request: EstimateRequest) -> Setting:
    """The setting that a request means; raises what `estimate` does for its options."""
    cluster, profile = cluster_for(workload, request.cluster), request.profile or ""
    software = stack_of(workload, cluster, request.stack, profile)
    skew = find_routing(request.routing)
    asked_policy = None if request.policy is None else find_policy(request.policy)
    chosen = policy_of(workload, asked_policy, find_policy(software.policy))
    timing = timing_of(workload, request.timing, has_table=bool(request.measured))
    table = _table(request, cluster)
    clock = cycles_per_ns(workload, cluster.chip, timing)
    changes = parse_changes(request.scale, request.replace, cluster)
    if workload.measured_by:
        refuse_profile(profile)
        refuse_routing(skew)
    asked, profile = profile, profile_on(software, default_profile(workload, cluster), profile)
    recorded = workload.measured_by is not None
    cluster = with_libraries(launched_by(table, cluster, profile), software.libraries)
    cluster = cluster if recorded else with_host(cluster, software)
    cluster = changes.of_host(cluster, has_rows=recorded)
    cluster = alike(cluster) if table else cluster
    _log.info(
        "on %s: kernels as %s launches them (%s), communication by policy %s",
        *(cluster.name, profile, "asked for" if asked else f"stack {software.name}", chosen.name),
    )
    placement = NetworkPlacement(workload.mesh, cluster, request.mapping)
    with stage("fuse"):
        kernels = _kernels(workload, profile, chosen)
    if request.collective_algorithm:
        written = load(API, "estimate.algorithms")(request.collective_algorithm, kernels, placement)
        placement = replace(placement, written=written)
    unlike = None
    if request.slow or request.chip_map:
        from flint.backends.cost.unlike import unlike_of

        if unlike := unlike_of(request, kernels, placement):
            kernels = unlike.split()
            workload = unlike.with_classes_of(kernels, workload)
    return Setting(
        *(workload, kernels, cluster, placement, software, profile, chosen, skew),
        *(timing, clock, changes, table, request.unpriced_is_zero, unlike),
    )


def _table(request: EstimateRequest, cluster: Cluster) -> MeasuredTable | None:
    if not request.measured:
        return None
    from flint.backends.cost.replay.times import measured_table

    return measured_table([workload_of(m) for m in request.measured], cluster)


def _kernels(workload: Workload, profile: str, policy: Policy) -> Workload:
    """What a profile makes of a workload, with the collectives that a policy joins."""
    kernels, combined = kernels_for(workload, profile), policy.combined
    if combined is None:
        return kernels

    def join() -> Workload:
        return replace(kernels, programs=tuple(run_passes(p, [combined]) for p in kernels.programs))

    return kernels.kept.get("combined", combined, join)


def _memory(
    workload: Workload, kernels: Workload, chip: Chip, policy: Policy, stack: Stack
) -> Sequence[MemoryUse]:
    from flint.backends.cost.memory.memory import runtime_memory
    from flint.backends.cost.memory.stored import recorded_memory, stored

    capacity = int(chip.memory_bytes.value)  # all that a chip says of it
    if workload.measured_by:
        return recorded_memory(workload.measured_by, capacity)
    spread = stack.reserved_deviation.value if stack.reserved_deviation else 0.0
    found = [
        replace(use, runtime=runtime_memory(program, stack, use.peak_bytes), spread=spread)
        for program, use in zip(
            workload.programs, stored(workload, kernels, policy, stack).memory(), strict=True
        )
    ]
    return [replace(found[c.program], capacity_bytes=capacity) for c in workload.classes]


def price_kernels(
    kernels: Workload,
    cluster: Cluster,
    placement: NetworkPlacement,
    policy: Policy,
    unpriced_is_zero: bool,
    unlike: Unlike | None = None,
) -> Priced:
    """Durations by Flint's models of the kernels that `rewrite` made for a profile.

    With `unlike` they are split as it does, and classes that differ have their own.
    """
    name = str(kernels.metadata.get("profile", ""))
    pricing = Pricing(
        *(cluster, placement, tf32_kinds(name, cluster.chip)),
        slower=slower_than_mean(kernels, cluster),
    )
    times = unlike.times(kernels, replace(pricing, lenient=True)) if unlike else None
    return price(kernels, pricing, policy, unpriced_is_zero=unpriced_is_zero, unlike=times)
