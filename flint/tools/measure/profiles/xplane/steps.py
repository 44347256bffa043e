"""Steps of XLA's profiles: annotations with a number, else runs of the program that takes longest."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import pairwise

from flint.tools.measure.profiles.builder import ProfileBuilder
from flint.tools.measure.profiles.xplane.host import Host
from flint.tools.measure.profiles.xplane.planes import Plane, PlaneEvent

_STEPS, _MODULES = "Steps", "XLA Modules"
_THREAD = "steps"
#: A program that runs but twice may be a warm-up and the rest.
_LEAST_RUNS = 3


def add_steps(builder: ProfileBuilder, plane: Plane, host: Host) -> None:
    """Marks `step#N`: the device's own, the host's, or runs of a program, the first that there are."""
    own = [e for line in plane.lines if line.name == _STEPS for e in line.events]
    if own:
        for place, step in enumerate(sorted(own, key=lambda e: e.start_ns)):
            digits = step.name.removeprefix("step").strip("# ")
            _add(builder, digits if digits.isdecimal() else str(place), step.start_ns, step.end_ns)
    elif host.steps:
        for thread, step in host.steps:
            builder.add_mark(
                f"step#{step.number('step_num', 0)}", step.start_ns, step.duration_ns, thread,
                on_device=False,
            )  # fmt: skip
    else:
        starts = _runs(plane)
        if starts:
            builder.warnings.append(
                "no annotation says what a step is: runs of one program are steps"
            )
        for number, (start, end) in enumerate(pairwise([*starts, float("inf")])):
            _add(builder, str(number), start, min(end, 1e18))


def _add(builder: ProfileBuilder, number: str, start_ns: float, end_ns: float) -> None:
    builder.add_mark(f"step#{number}", start_ns, end_ns - start_ns, _THREAD, on_device=True)


def _runs(plane: Plane) -> list[float]:
    """When each run of the program that takes longest begins on the device; [] for few runs."""
    modules = [e for line in plane.lines if line.name == _MODULES for e in line.events]
    if modules:
        longest = _longest((e.name, e) for e in modules)
        starts = [e.start_ns for e in modules if e.name == longest]
    else:
        starts = _runs_of_kernels(plane)
    return sorted(starts) if len(starts) >= _LEAST_RUNS else []


def _runs_of_kernels(plane: Plane) -> list[float]:
    """Where programs are told by their kernels alone: by the first of those that no loop repeats.

    Kernels get lost in recordings, so that those of one run are not equally many.
    """
    kernels = [e for line in plane.lines for e in line.events if e.word("hlo_op")]
    longest = _longest((e.word("hlo_module"), e) for e in kernels)
    found: dict[str, list[float]] = defaultdict(list)
    for event in kernels:
        if event.word("hlo_module") == longest:
            found[f"{event.word('hlo_op')} {event.name}"].append(event.start_ns)
    most = 1.5 * min(map(len, found.values()), default=0)
    return min((starts for starts in found.values() if len(starts) <= most), key=min, default=[])


def _longest(named: Iterable[tuple[str, PlaneEvent]]) -> str:
    total: Counter[str] = Counter()
    for name, event in named:
        total[name] += round(event.duration_ns)
    return max(sorted(total), key=total.__getitem__, default="")
