"""From a workload and a cluster to an Estimate: step time, where it goes, and what fits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flint.backends.chakra.reading.captured import workload_of
from flint.backends.cost.chips.kernels import KernelKind
from flint.backends.cost.chips.model import model_of
from flint.backends.cost.estimate_numbers import (
    ClassEstimate,
    EstimateNumbers,
    ProductFlops,
    executed_flops,
    main_type_and_peak,
    needed_flops,
)
from flint.backends.cost.kernel_times import MEASURED
from flint.backends.cost.notes import (
    attention_notes,
    compiler_notes,
    congestion_notes,
    exact_shape_notes,
    extrapolation_notes,
    lent_notes,
    rates_note,
    regathered_notes,
    slowest_notes,
    stood_in_notes,
)
from flint.backends.cost.price import Priced
from flint.backends.cost.replay.plan import cluster_for
from flint.backends.cost.routing import BALANCED
from flint.backends.cost.setting import Setting, Timed, setting_of
from flint.backends.cost.simulate.exposure import Share, shares
from flint.backends.cost.simulate.timeline import Timeline
from flint.cluster.models import Cluster
from flint.errors import FlintError
from flint.io.documents import as_object
from flint.ir.program import PERHAPS_A_WINDOW
from flint.ir.workload import Workload
from flint.plugins import API, drawn, load, registered
from flint.requests.estimate import EstimateRequest
from flint.requests.option import as_text
from flint.text import warning_lines

if TYPE_CHECKING:
    import flint
    from flint.backends.cost.memory.memory import MemoryUse
    from flint.backends.cost.replay.facts import MeasuredFacts
    from flint.backends.cost.uncertainty import Interval
    from flint.requests.capture import CaptureRequest

_log = logging.getLogger(__name__)


class Estimate(EstimateNumbers):
    """How long a step takes on a cluster, why, and how to show it.

    Its numbers are those of `EstimateNumbers`. Pages and the parts of a notebook are drawn by what is
    registered for them (`flint.api`); they raise FlintError FL881 where nothing is.
    """

    @cached_property
    def interval(self) -> Interval | None:
        """Where a measured step would lie four times of five; None for a lower bound or no time."""
        from flint.backends.cost.uncertainty import interval_of

        return None if self.is_lower_bound or not self.step_time_ns else interval_of(self)

    def to_json(
        self, *, views: Collection[str] = (), rank_class: int | str | None = None
    ) -> dict[str, Any]:
        """Exact numbers, JSON-able.

        `views` ("slices", "roofline", "communication", "scopes", "pipeline") are added, those of a
        rank class to that which `rank_class` means: an index, a name, "all", or None for the
        slowest. Raises FlintError FL504 for a view, FL503 for a class that is not there.
        """
        from flint.backends.cost.estimate_json import estimate_json

        chosen = self.chosen_classes(rank_class)
        document = estimate_json(self, self.interval)
        if views:
            with_views = load(API, "Estimate.to_json.views")
            return as_object(with_views(self, document, views, chosen))
        return as_object(document)

    def to_text(self, *, verbose: bool = False) -> str:
        """For people, without the warnings of the capture: `str` has them too.

        `verbose` adds the critical path.
        """
        from flint.backends.cost.estimate_text import estimate_text

        return estimate_text(self, self.interval, verbose=verbose)

    def hints(
        self, captured: CaptureRequest | None = None, *, thorough: bool | None = None
    ) -> flint.StepHints | None:
        """What to change next: at most three changes, each of which was estimated.

        With the request that it was `captured` by, changes of it are captured again, in this process.
        `thorough` also tries what takes longer than a second; False, or no tool for it: None.
        """
        if thorough is False or "Estimate.hints" not in registered(API):
            return None
        found: flint.StepHints = load(API, "Estimate.hints")(
            self, captured, thorough=bool(thorough)
        )
        return found

    def to_html(
        self,
        *,
        against: Estimate | None = None,
        names: tuple[str, str] | None = None,
        rank_class: int | str | None = None,
    ) -> str:
        """The page that `report` writes."""
        page = load(API, "Estimate.to_html")
        return str(page(self, against=against, names=names, rank_class=rank_class))

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
        return drawn("Estimate._repr_html_", self)


def estimate(workload: Workload, request: EstimateRequest) -> Estimate:
    """Estimate a step as a request says.

    Raises FlintError FL701, FL702, FL706 (cluster), FL831 (no cluster of the device), FL405 (profile),
    FL607 to FL611 (an algorithm of a collective), FL703 (mapping, policy or timing), FL704 (an operation without a price), FL705 (a chip without what
    the estimate needs), FL708 (ranks that wait for each other), FL719 (no cycles), FL725 (stack), FL726
    (routing), FL728 (a step of centuries), FL830 (a change that cannot be), FL832 (an option that what was measured, or was not, has
    no place for).
    """
    read = request.but(
        cluster=cluster_for(workload, request.cluster),
        measured=tuple(map(workload_of, request.measured)),
    )
    setting, timed, found = _estimated(workload, read)
    notes = (
        *_all_notes(setting, timed, found.measured),
        *_idle_option_notes(read, lambda others: _says_the_same(found, workload, others)),
    )
    return replace(found, notes=notes, request=read)


def _idle_option_notes(
    request: EstimateRequest, changes_nothing: Callable[[EstimateRequest], bool]
) -> tuple[str, ...]:
    """A sentence for each given option that `changes_nothing`, asked with the other options, is true of.

    Of an option that is given several times each one is omitted by itself.
    """
    return tuple(
        f"{said} changes nothing in this estimate"
        for said, others in _each_left_out(request)
        if changes_nothing(others)
    )


def _each_left_out(request: EstimateRequest) -> Iterator[tuple[str, EstimateRequest]]:
    """Each given option as a user writes it, and a request of all others."""
    options = request.options()
    for name, value in request.given().items():
        if name == "cluster":  # without it there is no estimate
            continue
        flag, usual = options[name].flag, options[name].default
        if value is True:
            yield f"{flag} {options[name].word}", request.but(**{name: usual})
        elif isinstance(value, list | tuple):
            for at, one in enumerate(value):
                left = (*value[:at], *value[at + 1 :])
                yield f"{flag} {as_text(one)}", request.but(**{name: left})
        else:
            yield f"{flag} {as_text(value)}", request.but(**{name: usual})


def _says_the_same(found: Estimate, workload: Workload, request: EstimateRequest) -> bool:
    try:
        other = _estimated(workload, request)[2]
    except FlintError:
        return False  # without the option there is no estimate
    return _numbers(other) == _numbers(found) and other.interval == found.interval


def _numbers(e: EstimateNumbers) -> tuple[Any, ...]:
    classes = [
        (c.end_ns, c.shares, c.memory.peak_bytes, c.memory.breakdown, c.memory.runtime)
        for c in e.classes
    ]
    work = (e.model_flops, e.executed_flops, e.peak_flops_per_s, e.dtype, dict(e.unpriced))
    return (e.step_time_ns, classes, *work, e.kernel_times is None)


def _estimated(workload: Workload, request: EstimateRequest) -> tuple[Setting, Timed, Estimate]:
    """The setting that a request means, in time, and what an estimate says of it without notes."""
    setting = setting_of(workload, request)
    timed, memory = setting.timed(), setting.memory()
    parts = [shares(t) for t in timed.timeline.classes]
    return setting, timed, estimate_of(setting, timed, memory, parts)


def _whole(flops: int, workload: Workload) -> int:
    share = workload.model_share
    return flops if share == 1 else round(flops * share)


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
    flops = _flops(workload, s.kernels)
    counted = [flops[c.program] for c in workload.classes]
    dtype, peak = main_type_and_peak(workload, s.cluster, s.tf32)
    if s.unlike is not None and s.unlike.clusters:
        chips = [s.unlike.chip_of(c) or s.cluster for c in workload.classes]
        peaks = [main_type_and_peak(workload, on, s.tf32)[1] for on in chips]
        peak = float(np.average(peaks, weights=sizes))
    return Estimate(
        name=str(workload.metadata.get("name") or "program"),
        cluster=s.cluster,
        mapping=tuple(s.placement.table()),
        stack=s.stack,
        profile=s.profile,
        policy=s.policy,
        step_time_ns=timeline.total_ns,
        model_flops=_whole(
            sum(f.model * int(r) for f, r in zip(counted, sizes, strict=True)), workload
        ),
        executed_flops=sum(f.executed * int(r) for f, r in zip(counted, sizes, strict=True)),
        repeated_flops=sum(f.repeated * int(r) for f, r in zip(counted, sizes, strict=True)),
        peak_flops_per_s=peak,
        dtype=dtype,
        classes=classes,
        unpriced=timed.priced.unpriced,
        notes=(),
        timeline=timeline,
        kernel_times=timed.kernel_times,
        measured=_facts(s, timed),
        workload=workload,
        kernels=s.kernels,
        placement=s.placement,
        routing=s.routing.name if s.routing else BALANCED,
    )


def _facts(s: Setting, timed: Timed) -> MeasuredFacts | None:
    """What an estimate with measured times rests on; None where models price all of it."""
    if timed.changed is None:
        return None
    from flint.backends.cost.replay.facts import measured_facts

    on = s.table.cluster.name if s.table else ""
    return measured_facts(s.kernels, timed.priced, timed.timeline, s.cluster, s.changes.texts, on)


def _all_notes(s: Setting, timed: Timed, facts: MeasuredFacts | None) -> tuple[str, ...]:
    """What is omitted, assumed or extrapolated, in the order in which it is read."""
    kernels, timeline, times = s.kernels, timed.timeline, timed.kernel_times
    replays = s.timing == MEASURED and s.table is None
    return (
        *((times.note(timeline.total_ns),) if times else ()),
        *(facts.notes() if facts else ()),
        *(s.unlike.said if s.unlike else ()),
        *_notes(s.cluster, s.profile),
        *slowest_notes(kernels, s.cluster),
        *(s.placement.written.said if s.placement.written and not replays else ()),
        *(lent_notes(kernels.programs, s.placement) if not replays else ()),
        *_exact(timed.priced, timeline, s.cluster, s.tf32, s.timing),
        *stood_in_notes(s.workload, s.stack.name, routed=s.routing is not None),
        *compiler_notes(s.workload, s.cluster.chip.name),
        *regathered_notes(s.workload, timeline),
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
    # What a model needs is executed, also where kernels of a product with a vector sum elements.
    return [
        ProductFlops(n, max(flops, n + again), again)
        for n, (flops, again) in zip(needed, done, strict=True)
    ]


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
            f"kernels take {1 / cluster.derate.value:.3g} times as long as their models say "
            f"(derate {cluster.derate.value:g}, {cluster.derate.kind}: {cluster.derate.source})"
        )
    if cluster.host_launch_ns:
        host = cluster.host_launch_ns
        notes.append(
            f"the host launches a kernel every {host.value / 1e3:g} us ({host.kind}: {host.source})"
        )
    elif profile in ("eager", "torch"):
        notes.append(
            "host launches take no time: launches are never late (host_launch_ns in a cluster's file sets it)"
        )
    return tuple(n for n in notes if n)


def _notes_of_masks(kernels: Workload) -> tuple[str, ...]:
    if any((p.mask == PERHAPS_A_WINDOW).any() for p in kernels.programs):
        return (
            "attention whose mask compares positions more than once (a window?) counts as causal",
        )
    return ()
