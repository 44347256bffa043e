"""StepHints of an estimate: what may be changed is tried, and the best of it is told."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

from flint.log import stage
from flint.tools.hints.hint import HintCandidate, StepHints, StepOutcome, best, tried
from flint.tools.hints.on_graph import graph_candidates
from flint.tools.hints.recaptured import fitting, recapture, resharding
from flint.tools.hints.state import state_candidates

if TYPE_CHECKING:
    from flint.backends.cost.estimate import Estimate
    from flint.requests.capture import CaptureRequest

#: Rows that are priced for hints: in about a second of processor time, with `--hints` in half a minute.
ROWS, MORE_ROWS = 12_000, 400_000
#: Rows beside these where the program can be captured again.
CAPTURED_ROWS = 24_000


def hints_of(
    e: Estimate, captured: CaptureRequest | None = None, *, thorough: bool = False
) -> StepHints:
    """What to change next, with its gain: for `Estimate.hints`.

    Changes are tried on the captured program, and, where `captured` says how to, by capturing it
    again. `thorough` tries those that take long, too.
    """
    if e.is_lower_bound or not e.step_time_ns:
        return StepHints()
    rows = MORE_ROWS if thorough else ROWS + (CAPTURED_ROWS if captured else 0)
    before = StepOutcome.of(e)
    with stage("hints"):
        found, not_tried = tried(_candidates(e, before, captured), rows)
    return StepHints(tuple(best(before, found, e.workload.mesh.size)), not_tried, thorough)


def _candidates(
    e: Estimate, before: StepOutcome, captured: CaptureRequest | None
) -> Iterator[HintCandidate]:
    """What makes it fit first, where it does not."""
    again = recapture(e, captured) if captured else None
    return chain(
        () if before.fits else state_candidates(e, e.request),
        fitting(again) if again and not before.fits else (),
        graph_candidates(e, e.request),
        resharding(again) if again else (),
    )
