"""What Flint itself says of traces that a simulator ran: why ranks hang, why the time differs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from flint.backends.cost.astrasim.step import NeverEndsError
from flint.errors import FlintError
from flint.text import format_bytes, format_duration
from flint.tools.simulators.inputs import Case, Inputs
from flint.tools.simulators.outcome import SimulatedRun
from flint.tools.simulators.reasons import RuleTimes, compare, run_rules

if TYPE_CHECKING:
    from flint.backends.cost.estimate import Estimate

#: Larger sets of traces are not run once more: that takes about a second for each 3 MiB.
MOST_BYTES = 192 << 20
#: Failures after which it matters that the traces end, and what that means.
_WAITED = {
    "FL712": "the cause is in the simulator or its settings",
    "FL713": "no rank waits forever because of them",
}


@dataclass(frozen=True)
class Explainer:
    """Says of each run what Flint knows. `estimate` gives that for a network, or raises FlintError.

    `aware`: whether the simulator has congestion.
    """

    inputs: Inputs
    estimate: Callable[[Case], Estimate]
    aware: bool

    def __call__(self, case: Case, run: SimulatedRun) -> SimulatedRun:
        paths = self.inputs.traces.paths.values()
        size = sum(path.stat().st_size for path in paths)
        if size > MOST_BYTES:
            told = f"{format_bytes(size)} of traces were not also run by Flint's rules of ASTRA-sim"
            return replace(run, notes=(*run.notes, told))
        rules = run_rules(self.inputs, case)
        if run.failure is not None:
            return _with_cause(run, rules)
        notes = run.notes if rules.error is None else (*run.notes, _no_rules(rules.error))
        try:
            estimate = self.estimate(case)
        except FlintError as error:
            return replace(run, notes=(*notes, f"no estimate to compare with: {error.message}"))
        found = compare(run.ends[run.slowest], case, rules, estimate, aware=self.aware)
        return replace(run, notes=notes, comparison=found)


def _with_cause(run: SimulatedRun, rules: RuleTimes) -> SimulatedRun:
    """A run that failed, with what ranks wait in if the traces are why."""
    error = rules.error
    if isinstance(error, NeverEndsError):
        assert run.failure is not None
        waiting = error.waiting
        failure = run.failure
        if error.cause:
            help_ = f"{error.cause}; flint check DIR says what is wrong with the traces"
            failure = FlintError(failure.code, failure.message, place=failure.place, help=help_)
        return replace(run, waiting=waiting, failure=failure)
    if error is not None:
        return replace(run, notes=(*run.notes, _no_rules(error)))
    assert rules.step is not None and run.failure is not None
    if run.failure.code not in _WAITED:
        return run
    end = format_duration(rules.step.step_time_ns)
    told = f"by Flint's run of ASTRA-sim's rules these traces end after {end} of simulated time: "
    return replace(run, notes=(*run.notes, told + _WAITED[run.failure.code]))


def _no_rules(error: FlintError) -> str:
    return f"Flint's rules of ASTRA-sim cannot run it: {error.message}"
