"""Times that cannot be."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from flint.tools.measure.profiles.contradictions.finding import Checked, ms
from flint.tools.measure.profiles.profile import ActivityKind

#: Clocks of host and device are aligned as well as this.
_CLOCKS_NS = 1e6
#: Kernels of one stream that overlap by less are as exact as clocks are.
_TOLERANCE_NS = 1_000.0
_MINUTE_NS = 6e10
#: Part of a stream's time, of kernels, of operators, from which something is told.
_WORTH_TELLING = 0.01


def everything_is_twice(c: Checked) -> Iterator[str]:
    """At least half of the kernels are there again, with the same times."""
    copies, kernels = _copies(c), len(c.profile.activities.start_ns)
    if kernels > 1 and copies >= kernels / 2:
        yield (
            f"{copies:,} of {kernels:,} kernels appear twice, with the same name, stream and times"
        )


def something_is_twice(c: Checked) -> Iterator[str]:
    """Kernels that are there again."""
    if copies := _copies(c):
        yield f"{copies:,} kernels appear twice, with the same name, stream and times"


def _copies(c: Checked) -> int:
    """Kernels, however short, that another one repeats."""
    a = c.profile.activities
    lasting = a.duration_ns > 0
    rows = np.stack(
        (a.name[lasting], a.stream[lasting], a.start_ns[lasting], a.duration_ns[lasting]), axis=1
    )
    return len(rows) - len(np.unique(rows, axis=0))


def stream_overlaps(c: Checked) -> Iterator[str]:
    """Kernels that run at once on one stream, which runs one at a time."""
    a = c.profile.activities
    for stream in np.unique(a.stream[c.rows]).tolist():
        rows = c.rows[a.stream[c.rows] == stream]
        rows = rows[np.argsort(a.start_ns[rows], kind="stable")]
        over = np.maximum.accumulate(a.end_ns[rows])[:-1] - a.start_ns[rows][1:]
        shared = np.minimum(over, a.duration_ns[rows][1:])
        shared = np.where(shared > _TOLERANCE_NS, shared, 0.0)
        if shared.sum() > _WORTH_TELLING * a.duration_ns[rows].sum():
            yield (
                f"{int((shared > 0).sum()):,} kernels begin on stream {stream} before the one ahead of them "
                f"ends ({ms(shared.sum())} in all): they are played back at once"
            )


def kernel_is_too_long(c: Checked) -> Iterator[str]:
    """Kernels of more than a minute."""
    a = c.profile.activities
    longest = int(c.rows[np.argmax(a.duration_ns[c.rows])])
    if a.duration_ns[longest] > _MINUTE_NS:
        name = c.profile.strings[a.name[longest]][:60]
        yield f"a kernel takes {a.duration_ns[longest] / 1e9:,.0f} s ('{name}')"


def pause_is_too_long(c: Checked) -> Iterator[str]:
    """A device that does nothing for more than a minute within a step."""
    a = c.profile.activities
    rows = c.rows[np.argsort(a.start_ns[c.rows], kind="stable")]
    idle = a.start_ns[rows][1:] - np.maximum.accumulate(a.end_ns[rows])[:-1]
    if len(idle) and idle.max() > _MINUTE_NS:
        yield f"the device is idle for {idle.max() / 1e9:,.0f} s within the step"


def kernels_take_no_time(c: Checked) -> Iterator[str]:
    """Kernels of 0 ns."""
    a = c.profile.activities
    kernels = c.rows[a.kind[c.rows] == ActivityKind.KERNEL]
    none = int((a.duration_ns[kernels] <= 0).sum())
    if none > 0.1 * len(kernels):
        yield f"{none:,} of {len(kernels):,} kernels take no time"


def kernel_runs_before_its_launch(c: Checked) -> Iterator[str]:
    """Kernels that begin before the host asked for them."""
    a, calls = c.profile.activities, c.profile.calls
    rows = c.rows[a.call[c.rows] >= 0]
    early = calls.start_ns[a.call[rows]] - a.start_ns[rows]
    if len(early) and early.max() > _CLOCKS_NS:
        yield (
            f"{int((early > _CLOCKS_NS).sum()):,} kernels begin before they are launched, by up to "
            f"{ms(early.max())}: clocks of host and device differ"
        )


def steps_overlap(c: Checked) -> Iterator[str]:
    """Annotations of steps that are open at the same time on one thread."""
    marks = c.profile.marks
    named = [i for i, s in enumerate(c.profile.strings) if s.startswith("ProfilerStep#")]
    rows = np.flatnonzero(np.isin(marks.name, named) & ~marks.on_device)
    ends = marks.start_ns[rows] + marks.duration_ns[rows]
    over = np.maximum.accumulate(ends)[:-1] - marks.start_ns[rows][1:] if len(rows) else ends
    if len(over) and over.max() > _CLOCKS_NS:
        yield f"annotations of steps overlap, by up to {ms(over.max())}"


def operators_cross(c: Checked) -> Iterator[str]:
    """Operators of one thread that begin within another and end after it."""
    o = c.profile.operators
    crossing = 0
    for thread in np.unique(o.thread).tolist():
        rows = np.flatnonzero(o.thread == thread)  # in order of their start
        ends = o.start_ns[rows] + o.duration_ns[rows]
        reached = np.maximum.accumulate(ends)[:-1]
        within = o.start_ns[rows][1:] < reached - _CLOCKS_NS
        crossing += int((within & (ends[1:] > reached + _CLOCKS_NS)).sum())
    if crossing > _WORTH_TELLING * len(o.start_ns):
        yield f"{crossing:,} operators end after their caller"


def gradient_comes_first(c: Checked) -> Iterator[str]:
    """Operators of the backward pass that begin before the forward ones that they belong to."""
    o = c.profile.operators
    known = o.sequence >= 0
    first: dict[int, float] = {}
    for row in np.flatnonzero(known & ~o.is_backward).tolist():
        first.setdefault(int(o.sequence[row]), float(o.start_ns[row]))
    rows = np.flatnonzero(known & o.is_backward).tolist()
    early = [r for r in rows if o.start_ns[r] < first.get(int(o.sequence[r]), -np.inf) - _CLOCKS_NS]
    if early:
        yield f"{len(early):,} operators of the backward pass run before their forward ones"


def call_of_another_vendor(c: Checked) -> Iterator[str]:
    """Calls of one vendor's runtime on a device of the other's."""
    names = {c.profile.strings[n] for n in np.unique(c.profile.calls.name).tolist()}
    hip, cuda = (_starts(names, prefix) for prefix in ("hip", "cuda"))
    device = c.profile.device
    if (hip and not cuda and "NVIDIA" in device) or (cuda and not hip and "AMD" in device):
        yield f"calls of {'HIP' if hip else 'CUDA'} ran on '{device[:40]}'"


def _starts(names: set[str], prefix: str) -> bool:
    return any(n.startswith(prefix) for n in names)
