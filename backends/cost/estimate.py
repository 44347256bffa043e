"""From a workload and a cluster to an Estimate: step time, where it goes, and what fits."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from flint.backends.cost.chips.kernels import KernelKind
from flint.backends.cost.chips.model import model_of
from flint.backends.cost.exact_shapes import exact_shape_notes
from flint.backends.cost.idle_options import idle_option_notes
from flint.backends.cost.kernel_times import MEASURED, KernelTimes
from flint.backends.cost.network.placement import NetworkPlacement
from flint.backends.cost.notes import (
    attention_notes,
    compiler_notes,
    congestion_notes,
    extrapolation_notes,
    lent_notes,
    rates_note,
    stood_in_notes,
)
from flint.backends.cost.price import Priced
from flint.backends.cost.routing import (
    BALANCED,
    Routing,
)
from flint.backends.cost.setting import Setting, Timed, setting_of
from flint.backends.cost.simulate.exposure import IDLE, Share, shares
from flint.backends.cost.simulate.timeline import Policy, Timeline
from flint.backends.cost.slowest import slowest_notes
from flint.backends.cost.utilisation import (
    ProductFlops,
    executed_flops,
    main_type_and_peak,
    needed_flops,
)
from flint.cluster.models import Cluster
from flint.cluster.stack import Stack
from flint.ir.program import PERHAPS_A_WINDOW
from flint.ir.workload import Workload
from flint.text import warning_lines
from flint.tools.measure.replay.facts import MeasuredFacts, measured_facts, recorded_notes

if TYPE_CHECKING:
    from flint.backends.cost.memory.memory import MemoryUse
    from flint.backends.cost.simulate.critical_path import Segment
    from flint.backends.cost.uncertainty.interval import Interval
    from flint.schemas.documents.estimate import (
        ClassEstimateDocument,
        EstimateDocument,
        MemoryDocument,
        SegmentDocument,
        ShareDocument,
    )

_log = logging.getLogger(__name__)
#: Version of the JSON form.
SCHEMA: Final = "flint.estimate/1"


@dataclass(frozen=True)
class ClassEstimate:
    """What one rank class does with the step's time and a device's memory."""

    name: str
    ranks: int
    end_ns: float
    shares: tuple[Share, ...]
    memory: MemoryUse

    @property
    def compute_ns(self) -> float:
        """How long its devices compute."""
        return sum(s.exposed_ns for s in self.shares if not s.over and s.kind not in IDLE)

    @property
    def exposed_ns(self) -> float:
        """How long its devices wait for communication."""
        return sum(s.exposed_ns for s in self.shares if s.over)


@dataclass(frozen=True, eq=False)
class Estimate:
    """How long a step takes on a cluster, and why.

    `mfu` counts the flops of matrix products that the model needs, `hfu` those that are executed,
    with those that are repeated (see `utilisation.ProductFlops`); both over what the chips could do
    in that time in `dtype`. With `unpriced` operations the time is a lower bound.
    """

    name: str
    cluster: Cluster
    mapping: tuple[tuple[str, ...], ...]
    stack: Stack
    profile: str
    policy: Policy
    step_time_ns: float
    model_flops: int
    executed_flops: int
    repeated_flops: int
    peak_flops_per_s: float
    dtype: str
    classes: tuple[ClassEstimate, ...]
    unpriced: Mapping[str, int]
    notes: tuple[str, ...]
    timeline: Timeline
    #: The compiler's times of kernels beside Flint's, where they were asked for.
    kernel_times: KernelTimes | None
    #: What rests on measured times, where any does, and what was changed.
    measured: MeasuredFacts | None
    #: What was estimated, and the kernels of the profile that became of it.
    workload: Workload = field(repr=False)
    kernels: Workload = field(repr=False)
    #: Where the mesh lies in the cluster's network.
    placement: NetworkPlacement = field(repr=False)
    #: How tokens are spread over experts.
    routing: str = BALANCED

    @property
    def mfu(self) -> float:
        """Model flops utilisation, 0 to 1."""
        return self._utilisation(self.model_flops)

    @property
    def hfu(self) -> float:
        """Hardware flops utilisation, 0 to 1."""
        return self._utilisation(self.executed_flops)

    def _utilisation(self, flops: int) -> float:
        ranks = sum(c.ranks for c in self.classes)
        possible = self.peak_flops_per_s * self.step_time_ns * 1e-9 * ranks
        return flops / possible if possible else 0.0

    @property
    def is_lower_bound(self) -> bool:
        """Whether operations without a price were counted as nothing."""
        return bool(self.unpriced)

    @cached_property
    def interval(self) -> Interval | None:
        """Where a measured step would lie four times of five; None for a lower bound or no time."""
        from flint.backends.cost.uncertainty.interval import interval_of

        return None if self.is_lower_bound or not self.step_time_ns else interval_of(self)

    @cached_property
    def critical_path(self) -> tuple[Segment, ...]:
        """What the step time is made of, longest first; found when it is asked for."""
        from flint.backends.cost.simulate.critical_path import critical_path

        return critical_path(self.timeline, self.policy)

    def to_json(
        self, *, views: Collection[str] = (), rank_class: int | str | None = None
    ) -> EstimateDocument:
        """Exact numbers, JSON-able.

        `views` ("slices", "roofline", "communication", "scopes", "pipeline") are added, those of a
        rank class to that which `rank_class` means: an index, a name, "all", or None for the
        slowest. Raises FlintError FL504 for a view, FL503 for a class that is not there.
        """
        from flint.tools.report.views.documents import class_json, estimate_json, find_views
        from flint.tools.report.views.rank_class import chosen_classes

        asked, chosen = find_views(views), chosen_classes(self, rank_class)
        classes = [
            _class_json(self, n, class_json(self, n, asked) if n in chosen else {})
            for n in range(len(self.classes))
        ]
        found: EstimateDocument = {
            "schema": SCHEMA,
            "name": self.name,
            "cluster": self.cluster.name,
            "derate": self.cluster.derate.value,
            "host_launch_ns": self.cluster.host_launch_ns.value
            if self.cluster.host_launch_ns
            else 0.0,
            "mapping": [(axis, size, tier) for axis, size, tier in self.mapping],
            "stack": self.stack.name,
            "profile": self.profile,
            "policy": self.policy.name,
            "routing": self.routing,
            "step_time_ns": round(self.step_time_ns, 3),
            "mfu": round(self.mfu, 6),
            "hfu": round(self.hfu, 6),
            "dtype": self.dtype,
            "lower_bound": self.is_lower_bound,
            "unpriced": dict(self.unpriced),
            "classes": classes,
            "critical_path": [cast("SegmentDocument", asdict(s)) for s in self.critical_path],
            "notes": list(self.notes),
        }
        if self.workload.warnings:
            found["warnings"] = list(self.workload.warnings)
        if self.interval:
            found["interval"] = self.interval.to_json()
        if self.kernel_times:
            found["kernel_times"] = self.kernel_times.to_json()
        if self.measured:
            found["measured"] = self.measured.to_json()
        return cast("EstimateDocument", {**found, **estimate_json(self, asked)})

    def to_text(self, *, verbose: bool = False) -> str:
        """For people, without the warnings of the capture: `str` has them too.

        `verbose` adds the critical path.
        """
        from flint.backends.cost.estimate_text import estimate_text

        return estimate_text(self, verbose=verbose)

    def to_html(
        self,
        *,
        against: Estimate | None = None,
        names: tuple[str, str] | None = None,
        rank_class: int | str | None = None,
    ) -> str:
        """The page that `report` writes."""
        if against is None:
            from flint.tools.report.page.document import report_html

            return report_html(self, rank_class=rank_class)
        from flint.tools.change.diff.difference import Side, compare
        from flint.tools.report.page.comparison import comparison_html

        sides = (Side.of(e.workload, e) for e in (self, against))
        return comparison_html(
            self, against, names or ("A", "B"), rank_class=rank_class, difference=compare(*sides)
        )

    def report(
        self,
        path: str | Path,
        *,
        against: Estimate | None = None,
        names: tuple[str, str] | None = None,
        rank_class: int | str | None = None,
        force: bool = False,
    ) -> int:
        """Write an HTML page on the estimate, or on it beside another one; gives its bytes.

        The page loads nothing from elsewhere. `names` are those of the two, `rank_class` is whose
        time it shows: an index or name, None for the slowest. Raises FlintError FL502 (cannot
        write), FL508 (no page of Flint's stands there, without `force`) and FL503 (no such class).
        """
        from flint.io.outputs import OutputKind, refuse_to_replace, write_output

        refuse_to_replace(Path(path), OutputKind.PAGE, force=force)
        page = self.to_html(against=against, names=names, rank_class=rank_class).encode()
        write_output(Path(path), page, OutputKind.PAGE, force=force)
        return len(page)

    def __str__(self) -> str:
        return "\n\n".join((self.to_text(), *warning_lines(self.workload.warnings)))

    def _repr_html_(self) -> str:
        from flint.tools.report.page.small import estimate_fragment

        return estimate_fragment(self)


def _class_json(e: Estimate, number: int, views: Mapping[str, object]) -> ClassEstimateDocument:
    c = e.classes[number]
    found: ClassEstimateDocument = {
        "name": c.name,
        "ranks": c.ranks,
        "end_ns": round(c.end_ns, 3),
        "shares": [cast("ShareDocument", asdict(s)) for s in c.shares],
        "memory": _memory_json(e, number),
    }
    return cast("ClassEstimateDocument", {**found, **views})


def _memory_json(e: Estimate, number: int) -> MemoryDocument:
    """The fields of a MemoryUse, those of the host only where something is there; its course."""
    from flint.tools.report.views.documents import memory_json

    memory = e.classes[number].memory
    found = cast("MemoryDocument", {**asdict(memory), **memory_json(e, number)})
    if not memory.host_bytes:
        del found["host_bytes"], found["host_breakdown"]
    if not memory.recorded:
        del found["recorded"]
    if not memory.runtime:
        del found["runtime"]
    return found


def estimate(
    workload: Workload,
    cluster: Cluster,
    *,
    stack: str | Path | Stack | None = None,
    profile: str = "",
    policy: str | Policy | None = None,
    mapping: Mapping[str, str] | str | None = None,
    unpriced_is_zero: bool = False,
    timing: str | None = None,
    scale: Sequence[str] = (),
    replaced: Sequence[str] = (),
    measured: Sequence[Workload] = (),
    routing: str | Path | Routing | None = None,
) -> Estimate:
    """Estimate a step.

    `stack` is whose software runs (None: what the program's kernels mean, see `software`), `profile`
    whose kernels the operations become ("": that of the stack, or of capture), `policy` when
    communication begins (None: as the stack does), `mapping` where mesh axes lie: {"model": "nvlink"}, or
    "model=nvlink,data=ib". `timing` is whose times kernels have: "model" (Flint's models), "compiler"
    (the cycles that XLA's TPU compiler estimated, where a kernel has any), or "measured" (what a
    profiler recorded; scaled by the models' ratio where the cluster is other hardware). None is
    "measured" for workloads made of profiles, else "model". `scale` ("gemm=1.5x") and `replaced`
    ("attention=h200") change parts, see `measured.changes`. With `measured`, workloads made of profiles,
    a captured program takes their times, see `measured.table`. `routing` is how tokens are spread over
    experts ("balanced", "power-law:1.2" or a file, see `routing`). Raises FlintError FL405 (profile), FL703
    (mapping, policy or timing), FL704 (an operation without a price), FL705 (a chip without what the
    estimate needs), FL708 (ranks that wait for each other), FL719 (no cycles), FL725 (stack), FL726 (routing), FL830 (a change that
    cannot be), FL832 (an option that what was measured, or was not, has no place for).
    """
    options = {
        "stack": stack,
        "profile": profile,
        "policy": policy,
        "mapping": mapping,
        "unpriced_is_zero": unpriced_is_zero,
        "timing": timing,
        "scale": scale,
        "replaced": replaced,
        "measured": measured,
        "routing": routing,
    }
    setting, timed, found = _estimated(workload, cluster, options)
    notes = (
        *_all_notes(setting, timed, found.measured),
        *idle_option_notes(found, options, lambda o: _estimated(workload, cluster, o)[2]),
    )
    return replace(found, notes=notes)


def _estimated(
    workload: Workload, cluster: Cluster, options: Mapping[str, Any]
) -> tuple[Setting, Timed, Estimate]:
    """The setting that options mean, in time, and what an estimate says of it without notes."""
    setting = setting_of(workload, cluster, **options)
    timed, memory = setting.timed(), setting.memory()
    parts = [shares(t) for t in timed.timeline.classes]
    return setting, timed, estimate_of(setting, timed, memory, parts)


def estimate_of(
    setting: Setting, timed: Timed, memory: Sequence[MemoryUse], parts: Sequence[Sequence[Share]]
) -> Estimate:
    """What an estimate says of a setting in numbers, without notes; `parts` are shares by rank class."""
    s, workload, timeline = setting, setting.workload, timed.timeline
    sizes = setting.ranks_of_classes()
    classes = tuple(
        ClassEstimate(c.name, int(ranks), t.total_ns, tuple(p), m)
        for c, ranks, t, p, m in zip(
            workload.classes, sizes, timeline.classes, parts, memory, strict=True
        )
    )
    facts = None
    if timed.changed is not None:
        on = s.table.cluster.name if s.table else ""
        facts = measured_facts(s.kernels, timed.priced, timeline, s.cluster, s.changes.texts, on)
    flops = _flops(workload, s.kernels)
    counted = [flops[c.program] for c in workload.classes]
    dtype, peak = main_type_and_peak(workload, s.cluster, s.tf32)
    return Estimate(
        name=str(workload.metadata.get("name") or "program"),
        cluster=s.cluster,
        mapping=tuple(s.placement.table()),
        stack=s.stack,
        profile=s.profile,
        policy=s.policy,
        step_time_ns=timeline.total_ns,
        model_flops=sum(f.model * int(r) for f, r in zip(counted, sizes, strict=True)),
        executed_flops=sum(f.executed * int(r) for f, r in zip(counted, sizes, strict=True)),
        repeated_flops=sum(f.repeated * int(r) for f, r in zip(counted, sizes, strict=True)),
        peak_flops_per_s=peak,
        dtype=dtype,
        classes=classes,
        unpriced=timed.priced.unpriced,
        notes=(),
        timeline=timeline,
        kernel_times=timed.kernel_times,
        measured=facts,
        workload=workload,
        kernels=s.kernels,
        placement=s.placement,
        routing=s.routing.name if s.routing else BALANCED,
    )


def _all_notes(s: Setting, timed: Timed, facts: MeasuredFacts | None) -> tuple[str, ...]:
    """What is left out, assumed or extrapolated, in the order in which it is read."""
    kernels, timeline, times = s.kernels, timed.timeline, timed.kernel_times
    replays = s.timing == MEASURED and s.table is None
    return (
        *((times.note(timeline.total_ns),) if times else ()),
        *(recorded_notes(facts) if facts else ()),
        *_notes(s.cluster, s.profile),
        *slowest_notes(kernels, s.cluster),
        *(lent_notes(kernels.programs, s.placement) if not replays else ()),
        *_exact(timed.priced, timeline, s.cluster, s.tf32, s.timing),
        *stood_in_notes(s.workload, s.stack.name, routed=s.routing is not None),
        *compiler_notes(s.workload, s.cluster.chip.name),
        *_notes_of_masks(kernels),
        *(
            attention_notes(s.workload, kernels, s.profile)
            if s.workload.measured_by is None
            else ()
        ),
        *(extrapolation_notes(kernels.programs, s.placement) if not replays else ()),
        *(congestion_notes(timeline, s.placement) if not replays else ()),
    )


def ranking_notes(setting: Setting) -> tuple[str, ...]:
    """Of a setting's notes those that say how far to trust a comparison, without any work in time.

    They are on constants that another chip or network lends, groups larger than was measured, and kernels
    compiled for another chip.
    """
    programs = setting.kernels.programs
    return (
        *lent_notes(programs, setting.placement),
        *compiler_notes(setting.workload, setting.cluster.chip.name),
        *extrapolation_notes(programs, setting.placement),
    )


def _flops(workload: Workload, kernels: Workload) -> Sequence[ProductFlops]:
    """The flops of products of each program, and of those of the kernels that became of it."""
    if workload.measured_by:  # kernels that ran: what they did again is known by their phase
        done = workload.kept.get(
            "executed", None, lambda: [executed_flops(p) for p in workload.programs]
        )
        return [ProductFlops(flops - again, flops, again) for flops, again in done]
    needed = workload.kept.get("needed", None, lambda: list(map(needed_flops, workload.programs)))
    done = kernels.kept.get("executed", None, lambda: list(map(executed_flops, kernels.programs)))
    return [ProductFlops(n, *e) for n, e in zip(needed, done, strict=True)]


def _exact(
    priced: Priced, timeline: Timeline, cluster: Cluster, tf32: frozenset[KernelKind], timing: str
) -> tuple[str, ...]:
    """Notes on the kernels of the class that ends last."""
    if timing == MEASURED:
        return ()
    work = priced.works[int(np.argmax([c.total_ns for c in timeline.classes]))]
    return exact_shape_notes(work.program, work.duration_ns, cluster.chip, tf32)


def _notes(cluster: Cluster, profile: str) -> tuple[str, ...]:
    notes = [model_of(cluster.chip).note(), rates_note(cluster.chip)]
    if cluster.derate.value != 1:
        notes.append(
            f"kernels are taken {1 / cluster.derate.value:.3g} times as long as their models say "
            f"(derate {cluster.derate.value:g}, {cluster.derate.kind}: {cluster.derate.source})"
        )
    if cluster.host_launch_ns:
        host = cluster.host_launch_ns
        notes.append(
            f"the host launches a kernel every {host.value / 1e3:g} us ({host.kind}: {host.source})"
        )
    elif profile in ("eager", "torch"):
        notes.append(
            "no time of a host: launches are never late (host_launch_ns in a cluster's file sets it)"
        )
    return tuple(n for n in notes if n)


def _notes_of_masks(kernels: Workload) -> tuple[str, ...]:
    if any((p.mask == PERHAPS_A_WINDOW).any() for p in kernels.programs):
        return (
            "attention whose mask compares positions more than once (a window?) counts as causal",
        )
    return ()
