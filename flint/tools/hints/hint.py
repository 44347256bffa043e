"""Hint: a change of a step, what it gains, and how that was found out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any

from flint.errors import FlintError
from flint.io.documents import Thousandths
from flint.text import format_bytes, format_duration, plural

if TYPE_CHECKING:
    from flint.backends.cost.estimate import Estimate
    from flint.ir.workload import Workload
    from flint.requests.estimate import EstimateRequest

_log = logging.getLogger(__name__)
#: StepHints of an answer.
MOST_HINTS = 3
#: A change that shortens the step by less is no hint: estimates are not that sure.
LEAST_SHARE = 0.02


class HintKind(StrEnum):
    """What a hint is about."""

    MEMORY = "memory"  #: the step does not fit
    COLLECTIVE = "collective"  #: communication that another sharding or type avoids
    ATTENTION = "attention"  #: attention that is written out, where one kernel can do it
    HOST = "host"  #: kernels that wait until their host launches them
    AXIS = "axis"  #: a mesh axis over which nothing is split
    PLACEMENT = "placement"  #: axes on networks that are too slow for them


class CheckedBy(StrEnum):
    """How the gain of a hint was found out."""

    REQUEST = "estimated again with this option"
    GRAPH = "the captured program was changed in this way and estimated again"
    CAPTURE = "captured and estimated again with this change"


@dataclass(frozen=True)
class StepOutcome:
    """What an estimate says of a step, as far as hints compare it."""

    step_time_ns: Thousandths  #: Time of the step, in ns.
    memory_bytes: int  #: Memory that the fullest device needs, with that of the runtime.
    fits: bool  #: Whether that is no more than it has.

    @classmethod
    def of(cls, e: Estimate) -> StepOutcome:
        """That of an estimate."""
        memory = [c.memory for c in e.classes]
        most = max(m.total_bytes for m in memory)
        return cls(e.step_time_ns, most, all(m.fits for m in memory))


def estimated(workload: Workload, request: EstimateRequest) -> StepOutcome:
    """The outcome of a workload, without what only pages and tables need. Raises as `estimate` does."""
    from flint.backends.cost.setting import setting_of

    setting = setting_of(workload, request)
    time_ns, memory = setting.timed().timeline.total_ns, setting.memory()
    return StepOutcome(time_ns, max(m.total_bytes for m in memory), all(m.fits for m in memory))


@dataclass(frozen=True)
class HintCandidate:
    """A change that may be worth it. `make` estimates it, None if it cannot be made.

    `rows` is how much work that is: rows of the programs that are priced again (see `Budget`).
    """

    kind: HintKind
    change: str
    attempt: str
    checked_by: CheckedBy
    rows: int
    make: Callable[[], StepOutcome | None]
    place: str = ""
    where: Callable[[], str] = str  #: The place, where only the change tells it.
    devices: int = 0  #: That the changed step runs on; 0: as many as before.


@dataclass(frozen=True)
class Hint:
    """A change of a program, or of how it is run, that was estimated."""

    kind: HintKind  #: What it is about.
    change: str  #: What to change, in words.
    attempt: str  #: The option of a command, or the lines, that make the change.
    place: str  #: File and line of the user's source that it is about; "" if of none.
    checked_by: CheckedBy  #: How the gain was found out.
    gain_ns: Thousandths  #: How much shorter the step gets, in ns; below 0: longer.
    gain_bytes: int  #: How much less memory the fullest device needs; below 0: more.
    makes_it_fit: bool  #: Whether the step fits with it, and does not without.
    devices: int  #: Devices that the changed step runs on.
    after: StepOutcome  #: The step after the change.

    @property
    def saves_devices(self) -> bool:
        """Whether the gain is that fewer devices do the same."""
        return self.kind is HintKind.AXIS and self.checked_by is CheckedBy.GRAPH

    def to_text(self) -> str:
        """The change with its gain, what to try, and how it was checked."""
        place = f" ({self.place})" if self.place else ""
        return "\n".join(
            (
                f"{self.change}{place}: {self.gain_text()}",
                *(f"   {line}" for line in f"try  {self.attempt}".split("\n")),
                f"   {self.checked_by}",
            )
        )

    def gain_text(self) -> str:
        """What it gains, in time and memory, where that is more than nothing."""
        said = ["fits"] if self.makes_it_fit else []
        if abs(self.gain_bytes) >= 0.01 * self.after.memory_bytes:
            said.append(
                f"{format_bytes(abs(self.gain_bytes))} {'less' if self.gain_bytes > 0 else 'more'}"
            )
        if abs(self.gain_ns) >= 0.001 * self.after.step_time_ns:
            word = "shorter" if self.gain_ns > 0 else "longer"
            said.append(f"{format_duration(abs(self.gain_ns))} {word}")
        if self.saves_devices:
            said.append(f"as long on {plural(self.devices, 'device')}")
        return ", ".join(said)


@dataclass(frozen=True)
class StepHints:
    """The best hints of an estimate, at most MOST_HINTS, and what was not tried."""

    hints: tuple[Hint, ...] = ()  #: The largest gain first; those that make a step fit before all.
    not_tried: tuple[str, ...] = ()
    """Changes that would have taken too long to estimate: `--hints` tries them, too."""
    is_thorough: bool = False  #: Whether they were asked for, so that finding none is said.

    def to_text(self) -> str:
        """For people; "" if there is nothing to say."""
        lines = [f"{n}  {hint.to_text()}" for n, hint in enumerate(self.hints, 1)]
        if self.not_tried:
            some = "; ".join(self.not_tried[:MOST_HINTS])
            more = f"; {len(rest)} more" if (rest := self.not_tried[MOST_HINTS:]) else ""
            lines.append(f"not tried, because that takes longer (--hints does): {some}{more}")
        if self.is_thorough and not lines:
            lines = [
                f"no change that was tried saves {LEAST_SHARE:.0%} of the step or makes it fit"
            ]
        return "\n".join(["what now", *lines]) if lines else ""

    def added_to(self, document: dict[str, Any]) -> dict[str, Any]:
        """The document of an estimate with its hints."""
        return {**document, "hints": list(self.hints), "hints_not_tried": list(self.not_tried)}


def tried(
    candidates: Iterable[HintCandidate], rows: int
) -> tuple[list[tuple[HintCandidate, StepOutcome]], tuple[str, ...]]:
    """What came of candidates until so many rows were priced, and the changes for which too few were left.

    Rows and not seconds: with a clock, equal inputs would give unequal outputs.
    """
    found: list[tuple[HintCandidate, StepOutcome]] = []
    not_tried: list[str] = []
    for candidate in candidates:
        if candidate.rows > rows:
            not_tried.append(candidate.change)
            continue
        rows -= candidate.rows
        try:
            after = candidate.make()
        except FlintError as error:  # the changed step cannot be: it is no hint
            _log.debug("no hint: %s: %s", candidate.change, error)
            continue
        if after is not None:
            found.append((candidate, after))
    return found, tuple(dict.fromkeys(not_tried))


def best(
    before: StepOutcome, found: Iterable[tuple[HintCandidate, StepOutcome]], devices: int
) -> list[Hint]:
    """The hints that are worth it, the best first: one of each kind, of memory two."""
    hints = [_hint(before, c, after, devices) for c, after in found]
    taken: list[Hint] = []
    for hint in sorted(filter(partial(_is_worth, before), hints), key=partial(_rank, devices)):
        alike = sum(h.kind is hint.kind for h in taken)
        if alike < (2 if hint.kind is HintKind.MEMORY else 1):
            taken.append(hint)
    return taken[:MOST_HINTS]


def _hint(before: StepOutcome, c: HintCandidate, after: StepOutcome, devices: int) -> Hint:
    return Hint(
        *(c.kind, c.change, c.attempt, c.place or c.where(), c.checked_by),
        gain_ns=round(before.step_time_ns - after.step_time_ns, 3),
        gain_bytes=before.memory_bytes - after.memory_bytes,
        makes_it_fit=after.fits and not before.fits,
        devices=c.devices or devices,
        after=after,
    )


def _is_worth(before: StepOutcome, hint: Hint) -> bool:
    if hint.makes_it_fit:
        return True
    if hint.kind is HintKind.MEMORY or before.fits and not hint.after.fits:
        return False
    least = LEAST_SHARE * before.step_time_ns
    return abs(hint.gain_ns) < least if hint.saves_devices else hint.gain_ns >= least


def _rank(devices: int, hint: Hint) -> tuple[bool, int, float, str]:
    """What makes a step fit comes first, on as many devices before on more; then the shortest step."""
    more = hint.devices if hint.makes_it_fit and hint.devices > devices else 0
    return not hint.makes_it_fit, more, -hint.gain_ns, hint.change
