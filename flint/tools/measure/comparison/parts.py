"""To what a modeled step belongs, and what makes the measured one longer or shorter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flint.backends.cost.estimate import Estimate
from flint.backends.cost.replay.attribution import Attribution
from flint.backends.cost.replay.changes import HOST
from flint.io.documents import Thousandths
from flint.text import format_duration, plural
from flint.tools.measure.comparison.pairing import Pairing
from flint.tools.measure.comparison.units import ExecutedCall, total_ns

_WAIT = "wait"
Units = Sequence[ExecutedCall]


@dataclass(frozen=True, slots=True)
class DifferencePart:
    """A part of the difference of the step times."""

    name: str  #: A kind of kernels, or launch, wire, waiting, unknown, overlap, forms.
    sentence: str  #: What it is, for people.
    delta_ns: Thousandths  #: Measured less estimated.


def modelled(priced: Estimate, number: int) -> Attribution:
    """Where the time of a rank class goes in the model, in the words of a measurement."""
    shares = priced.classes[number].shares
    wire = sum(s.exposed_ns for s in shares if s.over)
    waiting = sum(s.exposed_ns for s in shares if s.kind == _WAIT)
    launch = sum(s.exposed_ns for s in shares if s.kind == HOST and not s.over)
    compute = sum(s.exposed_ns for s in shares if not s.over and s.kind not in (_WAIT, HOST))
    rest = priced.step_time_ns - wire - waiting - launch - compute
    return Attribution(compute, wire, waiting, launch, max(0.0, rest))


def causes(
    parts: tuple[Attribution, Attribution], units: tuple[Units, Units], pairing: Pairing
) -> tuple[DifferencePart, ...]:
    """All causes, the largest first. They add up to the difference of the step times."""
    measured, estimated = parts
    found = [
        *_of_kernels(units, pairing),
        _of_part("launch", "the host launches too late", parts, "launch_ns"),
        _of_part("wire", "communication that nothing hides", parts, "wire_ns"),
        _of_part("waiting", "waiting for other ranks", parts, "waiting_ns"),
        _of_part("unknown", "idle for unknown reasons", parts, "unknown_ns"),
    ]
    kernels = [total_ns([u for u in side if not u.communicates]) for side in units]
    beside = (measured.compute_ns - kernels[0]) - (estimated.compute_ns - kernels[1])
    found.append(DifferencePart("overlap", "kernels that run beside each other", beside))
    return tuple(sorted((c for c in found if c.delta_ns), key=lambda c: -abs(c.delta_ns)))


def _of_part(
    name: str, what: str, parts: tuple[Attribution, Attribution], field: str
) -> DifferencePart:
    mine, theirs = (float(getattr(p, field)) for p in parts)
    times = f"{format_duration(mine)} measured, {format_duration(theirs)} in the model"
    return DifferencePart(name, f"{what}: {times}", mine - theirs)


def _of_kernels(units: tuple[Units, Units], pairing: Pairing) -> list[DifferencePart]:
    """Time of kernels: of those that both have by kind, and of those that one alone has."""
    mine, theirs = units
    found = [
        *_of_pairs("", [(mine[i], theirs[j]) for i, j in pairing.pairs]),
        *_of_pairs(" of other sizes", [(mine[i], theirs[j]) for i, j in pairing.resized]),
    ]
    formed = [mine[n] for f in pairing.forms for n in f.measured]
    forming = [theirs[n] for f in pairing.forms for n in f.captured]
    if formed:
        times = total_ns(formed), total_ns(forming)
        sentence = (
            f"{plural(len(formed), 'measured call')} have another form in the capture "
            f"({plural(len(forming), 'call')}): {format_duration(times[0])} against "
            f"{format_duration(times[1])}"
        )
        found.append(DifferencePart("forms", sentence, times[0] - times[1]))
    found += _of_alone("only measured", [mine[n] for n in pairing.only_measured], 1)
    found += _of_alone("only captured", [theirs[n] for n in pairing.only_captured], -1)
    return found


def _of_pairs(
    which: str, pairs: Sequence[tuple[ExecutedCall, ExecutedCall]]
) -> list[DifferencePart]:
    by_kind: dict[str, list[tuple[ExecutedCall, ExecutedCall]]] = {}
    for measured, captured in pairs:
        if not measured.communicates:
            by_kind.setdefault(measured.kind, []).append((measured, captured))
    found = []
    for kind, both in by_kind.items():
        times = total_ns([m for m, _ in both]), total_ns([c for _, c in both])
        ratio = f", {times[0] / times[1]:.2f}x" if times[1] else ""
        sentence = (
            f"{plural(len(both), 'call')} of {kind}{which} take {format_duration(times[0])}, the "
            f"model says {format_duration(times[1])}{ratio}"
        )
        found.append(DifferencePart(kind + which, sentence, times[0] - times[1]))
    return found


def _of_alone(name: str, units: Units, sign: int) -> list[DifferencePart]:
    by_kind: dict[str, list[ExecutedCall]] = {}
    for unit in units:
        if not unit.communicates:
            by_kind.setdefault(unit.kind, []).append(unit)
    return [
        DifferencePart(
            f"{kind}, {name}",
            f"{plural(len(group), 'call')} of {kind} are {name}: {_names(group)}",
            sign * total_ns(group),
        )
        for kind, group in by_kind.items()
    ]


def _names(units: Units) -> str:
    times: dict[str, float] = {}
    for unit in units:
        times[unit.opcode] = times.get(unit.opcode, 0.0) + unit.time_ns
    longest = sorted(times, key=lambda name: -times[name])
    return ", ".join(longest[:3]) + (", ..." if len(longest) > 3 else "")
