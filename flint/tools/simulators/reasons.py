"""Why a simulator's time is not the estimate: its parts, each of them calculated.

Between the two stand Flint's own runs by ASTRA-sim's rules, one as they are and one without the rule
that a rank communicates once at a time. What each part changes adds up to the whole difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flint.backends.cost.astrasim.run import simulate_traces
from flint.backends.cost.astrasim.step import NeverEndsError, SimulatedStep, Spent
from flint.backends.cost.chips.kernels import KernelKind
from flint.backends.cost.simulate.exposure import IDLE
from flint.cluster.astrasim.files import read_system
from flint.cluster.astrasim.system import SystemFile
from flint.errors import FlintError
from flint.io.documents import Thousandths, Unpublished
from flint.ir.mesh import Mesh
from flint.text import format_duration, headings, text_table
from flint.tools.simulators.inputs import Case, Inputs
from flint.tools.simulators.rank_end import RankEnd

if TYPE_CHECKING:
    from flint.backends.cost.estimate import Estimate

#: What the writer of traces makes of kinds that simulators do not know.
_AS_WRITTEN = {"permute": "message", "broadcast": "all_gather"}
_COPIES = KernelKind.HOST_COPY.name.lower()
#: Kinds of communication that a sentence names.
_NAMED = 2


@dataclass(frozen=True)
class RuleTimes:
    """What Flint's runs by ASTRA-sim's rules say: as they are, and without the one slot; or why not."""

    step: SimulatedStep | None = None
    without_slot: SimulatedStep | None = None
    error: FlintError | None = None


@dataclass(frozen=True)
class Term:
    """A part of the difference between an estimate and a simulated time."""

    name: str  #: What it is.
    ns: Thousandths  #: What it adds to the step, in ns.
    because: str  #: What it rests on.


@dataclass(frozen=True)
class CommunicationTimes:
    """Communication of one kind over the same axes, of the slowest rank."""

    kind: str  #: Of collective, or message.
    over: str  #: Mesh axes.
    simulated_count: int  #: How often the rank does it in the traces.
    simulated_ns: Thousandths
    """How long that takes by the simulator's rules, in ns, with waiting for others."""
    estimated_count: int  #: How often the slowest class does it in the estimate.
    estimated_ns: Thousandths  #: How long that takes there, in ns.

    @property
    def difference_ns(self) -> float:
        """How much longer it takes in the simulator."""
        return self.simulated_ns - self.estimated_ns


@dataclass(frozen=True)
class Comparison:
    """The way from Flint's estimate to the simulated time."""

    simulated_ns: Unpublished[int]
    rules_step_time_ns: int | None
    """Step time of Flint's own run by ASTRA-sim's rules, in ns; null where it has none."""
    rules_note: str  #: Why it has none; else "".
    cluster: str  #: Cluster of the estimate.
    estimated_ns: Thousandths  #: Step time of the estimate, in ns.
    terms: tuple[Term, ...]
    """What each reason changes: they add up to the difference. Empty where nothing is known of
    it."""
    communication: tuple[CommunicationTimes, ...]
    """What communication takes on both sides. Empty without the rules' run."""

    def to_text(self) -> str:
        """For people."""
        whole = self.simulated_ns - self.estimated_ns
        rows = [(f"estimate on {self.cluster}", format_duration(self.estimated_ns), "", "")]
        rows += [(t.name, signed(t.ns), self._share(t.ns), t.because) for t in self.terms]
        rows.append(("simulated", format_duration(self.simulated_ns), self._share(whole), ""))
        titles = headings("from the estimate | >time | >of it | because")
        return text_table(titles, rows)

    def _share(self, ns: float) -> str:
        return f"{ns / self.estimated_ns:+.1%}" if self.estimated_ns else "-"


def run_rules(inputs: Inputs, case: Case) -> RuleTimes:
    """Run traces by ASTRA-sim's rules. What keeps Flint from that is in the result."""
    place = inputs.traces.folder / inputs.traces.prefix
    files = case.network, case.system, inputs.memory
    try:
        step = simulate_traces(place, *files)
    except FlintError as error:
        return RuleTimes(error=error)
    try:
        many = simulate_traces(place, *files, has_one_slot=False)
    except NeverEndsError:
        many = None
    return RuleTimes(step, many)


def compare(
    simulated: RankEnd, case: Case, rules: RuleTimes, e: Estimate, *, aware: bool
) -> Comparison:
    """The way from an estimate to when the slowest rank finished.

    `aware`: whether the simulator has congestion. Where Flint's rules say nothing the parts are
    what that rank said: computation, and the rest.
    """
    step, simulated_ns = rules.step, simulated.end_ns
    table = () if step is None else _communication(step, e)
    terms: list[Term] = []
    if step is not None:
        own = simulated_ns - step.step_time_ns
        terms = [t for t in _terms(step, rules, table, read_system(case.system), e) if t.ns]
        terms.append(Term("the simulator", own, _own(simulated_ns, step, aware)))
    elif simulated.compute_ns is not None:
        terms = _said(simulated_ns, simulated.compute_ns, e)
    return Comparison(
        simulated_ns=simulated_ns,
        rules_step_time_ns=step.step_time_ns if step else None,
        rules_note=rules.error.message if rules.error else "",
        cluster=e.cluster.name,
        estimated_ns=e.step_time_ns,
        terms=tuple(terms),
        communication=table,
    )


def _terms(
    step: SimulatedStep,
    rules: RuleTimes,
    table: Sequence[CommunicationTimes],
    system: SystemFile,
    e: Estimate,
) -> Iterator[Term]:
    """From the estimate to the run by the rules: what each part adds."""
    slowest = max(e.classes, key=lambda c: c.end_ns)
    work = [s for s in slowest.shares if not s.over and s.kind not in IDLE]
    shares = [s for s in work if s.kind != _COPIES]
    copies = step.memory_ns[step.slowest], sum(s.busy_ns for s in work if s.kind == _COPIES)
    kernels = sum(s.busy_ns for s in shares)
    counts = step.kernels[step.slowest], sum(s.count for s in shares)
    compute, many = step.compute_ns[step.slowest], rules.without_slot or step
    estimated = sum(c.estimated_ns for c in table)
    simulated = sum(c.simulated_ns for c in table)
    hidden = (
        slowest.compute_ns + estimated - e.step_time_ns,
        compute + simulated + copies[0] - many.step_time_ns,
    )
    slot = step.step_time_ns - many.step_time_ns
    yield Term("kernels side by side", kernels + copies[1] - slowest.compute_ns, _BESIDE)
    yield Term("durations", compute - kernels, _durations(system, *counts))
    yield Term("prices of communication", simulated - estimated, _dearer(table))
    yield Term("copies to and from hosts", copies[0] - copies[1], _both(copies[1], copies[0]))
    each = f"{_amount(hidden[0])} in the estimate, {_amount(hidden[1])} there, each with all slots"
    yield Term("under computation", hidden[0] - hidden[1], each)
    yield Term("one communication at a time", slot, _slot(rules))


def _said(simulated_ns: int, compute_ns: int, e: Estimate) -> list[Term]:
    """The two parts that the simulator itself tells apart."""
    before = max(e.classes, key=lambda c: c.end_ns).compute_ns
    exposed = e.step_time_ns - before, simulated_ns - compute_ns
    return [
        Term("computation", compute_ns - before, _both(before, compute_ns)),
        Term("exposed communication, waits", exposed[1] - exposed[0], _both(*exposed)),
    ]


def _both(estimated: float, simulated: float) -> str:
    return f"{format_duration(simulated)} instead of {format_duration(estimated)}"


_BESIDE = (
    "the estimate has streams beside that of computation, but ASTRA-sim computes one at a time"
)


def _durations(system: SystemFile, in_traces: int, in_estimate: int) -> str:
    others = f"; {in_traces:,} kernels instead of {in_estimate:,}"
    others = "" if in_traces == in_estimate else others
    if not system.roofline_enabled:
        return f"durations in traces are whole microseconds, for the cluster that they name{others}"
    peak, bandwidth = f"{system.peak_perf:g} TFLOP/s", f"{system.local_mem_bw:g} GB/s"
    return f"a roofline of {peak} and {bandwidth} for every kernel{others}"


def _dearer(table: Sequence[CommunicationTimes]) -> str:
    """The kinds that make most of the difference."""
    order = sorted(table, key=lambda c: -abs(c.difference_ns))
    named = [
        f"{c.kind} over {c.over} {format_duration(c.simulated_ns)} instead of "
        f"{format_duration(c.estimated_ns)}"
        for c in order[:_NAMED]
        if c.difference_ns
    ]
    return "rings of single messages: " + "; ".join(named) if named else ""


def _amount(hidden_ns: float) -> str:
    """Communication under computation; where it is negative, time in which neither goes on."""
    if hidden_ns < 0:
        return f"{format_duration(-hidden_ns)} of waiting"
    return f"{format_duration(hidden_ns)} hidden"


def _slot(rules: RuleTimes) -> str:
    if rules.without_slot is None:
        return "unknown: without that rule ranks wait for each other"
    copies = rules.step is not None and any(rules.step.memory_ns)
    what = "collectives, sends and copies" if copies else "collectives and sends"
    return f"{what} of a rank wait for each other"


def _own(simulated_ns: int, step: SimulatedStep, aware: bool) -> str:
    if aware:
        return "congestion: messages share links, which Flint's run by its rules does not model"
    if simulated_ns == step.step_time_ns:
        return "equal to the nanosecond to Flint's run by its rules"
    return "not by Flint's version of the rules (ASTRA-sim 518bd51): another version or backend"


def _communication(step: SimulatedStep, e: Estimate) -> tuple[CommunicationTimes, ...]:
    """What the slowest rank and the slowest class communicate, by kind and axes."""
    here = _sums(_of_rules(step.spent[step.slowest], e.workload.mesh))
    slowest = max(e.classes, key=lambda c: c.end_ns)
    there = _sums(
        ((_AS_WRITTEN.get(s.kind, s.kind), s.over), s.count, s.busy_ns)
        for s in slowest.shares
        if s.over and s.busy_ns
    )
    return tuple(
        CommunicationTimes(*key, *here.get(key, (0, 0.0)), *there.get(key, (0, 0.0)))
        for key in sorted({*here, *there})
    )


def _of_rules(spent: Iterable[Spent], mesh: Mesh) -> Iterable[tuple[tuple[str, str], int, float]]:
    for s in spent:
        kind = "message" if s.kind is None else s.kind.name.lower()
        yield (kind, _axes(s.members, mesh)), s.count, float(s.busy_ns + s.waited_ns)


def _axes(members: Sequence[int], mesh: Mesh) -> str:
    places = [mesh.coordinates(rank) for rank in members]
    return ",".join(name for name in mesh.names if len({p[name] for p in places}) > 1)


def _sums(
    entries: Iterable[tuple[tuple[str, str], int, float]],
) -> Mapping[tuple[str, str], tuple[int, float]]:
    found: dict[tuple[str, str], tuple[int, float]] = {}
    for key, count, ns in entries:
        before = found.get(key, (0, 0.0))
        found[key] = before[0] + count, before[1] + ns
    return found


def signed(ns: float) -> str:
    """A difference of times: `+1.20 ms`."""
    return f"{'-' if ns < 0 else '+'}{format_duration(abs(ns))}"
