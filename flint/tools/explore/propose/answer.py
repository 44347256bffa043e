"""Proposal: the best plan with its estimate, the others, and what would change the choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from typing_extensions import TypedDict

from flint.text import format_bytes, format_duration, plural
from flint.tools.explore.propose.plan import ShardingPlan
from flint.tools.explore.propose.words import family, lines
from flint.tools.explore.result import Result, Status

if TYPE_CHECKING:
    from flint.steps.entry import AnyStep
    from flint.tools.explore.propose.judge import Judged
    from flint.tools.explore.propose.origin import ProgramOrigin


@dataclass(frozen=True)
class Sensitivity:
    """What is best where a condition is another one."""

    condition: str
    best: ShardingPlan
    step_time_ns: float


@dataclass(frozen=True)
class Proposal:
    """What `flint propose` answers: plans that were captured and estimated, the best first.

    `priced` plans were priced, `too_large` of them left out by their arguments alone. `sensitivities` are
    what would be best under other conditions.
    """

    origin: ProgramOrigin
    judged: tuple[Judged, ...]
    priced: int
    too_large: int
    sensitivities: tuple[Sensitivity, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> Judged:
        """The fastest plan that fits."""
        return self.judged[0]

    @property
    def plan(self) -> ShardingPlan:
        """The plan of `best`."""
        return self.best.plan

    @property
    def result(self) -> Result:
        """What `best` was estimated to take."""
        return self.best.result

    @property
    def step(self) -> AnyStep:
        """The step with the shardings of `best`, for `flint.trace`."""
        return self.origin.step(self.plan)

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """Lines to paste."""
        return tuple(lines(self.origin, self.plan))

    def said(self, plan: ShardingPlan) -> str:
        """A plan in words."""
        return family(plan, self.origin.blank)

    def to_text(self, top: int = 5) -> str:
        """A table of the first `top` plans, why the second lost, what would change the choice, and the lines."""
        rows = [self._row(n, j) for n, j in enumerate(self.judged[:top], 1)]
        told = [
            self._counted(),
            "",
            *rows,
            "",
            *self._runner_up(),
            *(self._change(s) for s in self.sensitivities),
            *(f"note    {n}" for n in self.notes),
            "",
            *self.lines,
        ]
        return "\n".join(told)

    def _counted(self) -> str:
        return (
            f"{plural(self.priced, 'plan')} priced, {self.too_large} too large by their arguments, "
            f"{len(self.judged)} captured and estimated"
        )

    def _row(self, number: int, judged: Judged) -> str:
        r = judged.result
        exposed = ", ".join(
            f"{a} {format_duration(ns)}" for a, ns in r.exposed_ns.items() if ns >= 1e3
        )
        if r.status is Status.REFUSED:
            what = f"refused: {r.reason}"
        else:
            interval = (
                f" ({format_duration(r.low_ns)} to {format_duration(r.high_ns)})"
                if r.high_ns
                else ""
            )
            what = f"{format_duration(r.step_time_ns)}{interval}, {format_bytes(r.memory_bytes)}"
            what += "" if r.status is Status.FITS else ", too large"
            what += f", waits for {exposed}" if exposed else ""
        return f"{number}. {judged.plan.mesh}: {self.said(judged.plan)}\n   {what}"

    def _runner_up(self) -> list[str]:
        if len(self.judged) < 2 or self.judged[1].result.status is not Status.FITS:
            return ["no other plan that was captured fits"]
        first, second = self.judged[0].result, self.judged[1].result
        gap = second.step_time_ns - first.step_time_ns
        reasons = {"computes": second.compute_ns - first.compute_ns}
        for axis in {*first.exposed_ns, *second.exposed_ns}:
            waits = second.exposed_ns.get(axis, 0.0) - first.exposed_ns.get(axis, 0.0)
            reasons[f"waits for '{axis}'"] = waits
        name = max(sorted(reasons), key=lambda n: reasons[n])
        why = f": it {name} {format_duration(reasons[name])} longer" if reasons[name] > 0 else ""
        return [f"the second takes {format_duration(gap)} longer{why}"]

    def _change(self, s: Sensitivity) -> str:
        where = (
            "the choice stays"
            if s.best == self.plan
            else f"{s.best.mesh} is best: {self.said(s.best)}"
        )
        return f"with {s.condition} {where} ({format_duration(s.step_time_ns)})"

    def __str__(self) -> str:
        return self.to_text()


class PlanDocument(TypedDict):
    """A plan and its estimate."""

    mesh: str  #: As --mesh takes it.
    family: str  #: The shardings in words.
    status: str  #: "fits", "too large" or "refused".
    reason: str  #: Why it does not fit; empty if it does.
    step_time_ns: float  #: Of a step.
    low_ns: float  #: Where its interval begins.
    high_ns: float  #: Where it ends.
    memory_bytes: int  #: Of the fullest device at its peak.
    exposed_ns: dict[str, float]  #: How long devices wait for communication, by mesh axes.
    priced_ns: float  #: What the search took a step for.


class SensitivityDocument(TypedDict):
    """What is best under another condition."""

    condition: str  #: In words.
    mesh: str  #: The best mesh then.
    family: str  #: Its shardings in words.
    step_time_ns: float  #: Of a step then.
    stays: bool  #: Whether the proposal is still the best.


class ProposeDocument(TypedDict):
    """What `flint propose --json` prints."""

    schema: Literal["flint.propose/1"]  #: Kind and version of this document.
    plans: list[PlanDocument]  #: Those that were captured, the proposal first.
    priced: int  #: Plans that were priced.
    too_large: int  #: Of these, those whose arguments alone do not fit.
    sensitivities: list[SensitivityDocument]  #: What would change the choice.
    arguments: dict[str, str]  #: Shardings of arguments, of the proposal.
    constraints: dict[str, str]  #: Shardings of values inside, by line and shape.
    lines: list[str]  #: Lines to paste.
    notes: list[str]  #: What was not tried, and why.


def propose_document(found: Proposal) -> ProposeDocument:
    """The document `flint.propose/1`."""
    keywords: Any = found.origin.keywords(found.plan)
    return {
        "schema": "flint.propose/1",
        "plans": [_plan(found, j) for j in found.judged],
        "priced": found.priced,
        "too_large": found.too_large,
        "sensitivities": [
            {"condition": s.condition, "mesh": s.best.mesh, "family": found.said(s.best),
             "step_time_ns": s.step_time_ns, "stays": s.best == found.plan}
            for s in found.sensitivities
        ],
        "arguments": {n: str(s) for n, s in keywords["arguments"].items()},
        "constraints": {n: str(s) for n, s in keywords.get("constraints", {}).items()},
        "lines": list(found.lines),
        "notes": list(found.notes),
    }  # fmt: skip


def _plan(found: Proposal, judged: Judged) -> PlanDocument:
    r = judged.result
    return {
        "mesh": judged.plan.mesh,
        "family": found.said(judged.plan),
        "status": r.status.value,
        "reason": r.reason,
        "step_time_ns": r.step_time_ns,
        "low_ns": r.low_ns,
        "high_ns": r.high_ns,
        "memory_bytes": r.memory_bytes,
        "exposed_ns": dict(r.exposed_ns),
        "priced_ns": judged.priced.cost.step_ns,
    }


def ranked(judged: Sequence[Judged]) -> tuple[Judged, ...]:
    """Those that fit by their step, then those that are too large by their memory, then the rest."""
    order = {Status.FITS: 0, Status.TOO_LARGE: 1}

    def key(j: Judged) -> tuple[int, float, ShardingPlan]:
        at = order.get(j.result.status, 2)
        return at, float(j.result.memory_bytes) if at else j.result.step_time_ns, j.plan

    return tuple(sorted(judged, key=key))
