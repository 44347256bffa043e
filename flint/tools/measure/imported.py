"""`import_profiles`, and what was measured: kernels, their time, and how much is understood."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from flint.errors import FlintError
from flint.io.documents import as_object
from flint.ir.made_by import MeasuredClass
from flint.ir.op_class import OpClass
from flint.ir.program import Flag, Kind, Program
from flint.ir.workload import Workload
from flint.log import stage
from flint.text import format_bytes, format_count, format_duration, headings, text_table
from flint.tracing import Trace


def import_profiles(*paths: str | Path, step: int | None = None) -> Trace:
    """The trace of a step that ran, from profiles of one or several ranks of a job.

    Each path is a profile (PyTorch profiler, execution trace, xplane, Nsight Systems ..., see
    docs/measured.md), gzip or not; formats are told by content. `step` is the number of a step
    (`ProfilerStep#N`), None the one of median duration.

    Raises FlintError FL801 to FL806 (what cannot be read), FL811 (no such step), FL812 (two profiles
    of a rank), FL813 (profiles that are not of one job).
    """
    from flint.tools.measure.profiles.build import workload_of
    from flint.tools.measure.profiles.formats import read_profiles

    if not paths:
        raise FlintError("FL801", "no profile is given", help="import_profiles(path, ...)")
    timings: dict[str, float] = {}
    with stage("read", timings):
        profiles = [profile for path in paths for profile in read_profiles(Path(path))]
    with stage("build", timings):
        workload = workload_of(profiles, step=step)
    return Trace(workload, timings)


@dataclass(frozen=True)
class ImportedClass:
    """The step of one profiled rank."""

    rank: int  #: The rank.
    steps: int  #: Steps that the profile has, of which one was taken.
    kernels: int  #: Kernels, copies, fills and communication on the device.
    kernel_ns: int  #: Their time together, in nanoseconds; streams may overlap.
    communication_ns: int
    """Time of collectives and messages; with profiles of all members that of the transfer alone."""
    known_ns: int  #: Time of kernels whose operator's work is known.
    span_ns: float
    """The recorded time of the step that was taken: from its first moment to the end of the last
    kernel."""
    step_ns: float  #: The time of a step: by `rule`, the median period or the span.
    rule: Literal["period", "span"]
    """period: the median period between the ends of several steps; span: there is one step."""
    peak_bytes: int
    """Most memory that the framework's allocator held; 0 where the profile does not say."""
    known_share: float  #: `known_ns` as a part of `kernel_ns`.


@dataclass(frozen=True)
class Imported:
    """What profiles told of the steps that they recorded."""

    format: str  #: The tool's format: kineto, xplane, ...
    device: str  #: Name of the device, empty where nothing says it.
    ranks: int  #: Ranks of the job.
    classes: tuple[ImportedClass, ...]  #: Each rank that has a profile.

    @classmethod
    def of(cls, workload: Workload) -> Imported:
        """Of a workload made of profiles."""
        by = workload.measured_by
        assert by is not None, "the workload was not measured"
        classes = tuple(
            _class_of(workload.programs[c.program], measured)
            for c, measured in zip(workload.classes, by.classes, strict=True)
        )
        return cls(by.format, by.device, workload.mesh.size, classes)

    def to_json(self) -> dict[str, Any]:
        """Exact numbers."""
        return as_object(self)

    @property
    def slowest(self) -> int:
        """The class whose step took longest: an index into `classes`."""
        return max(range(len(self.classes)), key=lambda i: self.classes[i].step_ns)

    def to_text(self) -> str:
        """Plain text: the device, then facts of the profiled rank, or a table of several."""
        profiled = f"{format_count(len(self.classes))} of {format_count(self.ranks)}"
        facts = [
            ("device", self.device or "not said"),
            ("profiles", f"{self.format}, {profiled} rank{'s' * (self.ranks > 1)}"),
        ]
        if len(self.classes) == 1:
            return f"{_facts(facts)}\n\n{_facts(_class_facts(self.classes[0]))}"
        return f"{_facts(facts)}\n\n{text_table(_COLUMNS, list(map(_cells, self.classes)))}"


_COLUMNS = headings(
    ">rank | >step | >kernels | >kernel time | >communication | >work known | >peak memory"
)


def _cells(c: ImportedClass) -> tuple[str, ...]:
    return (
        format_count(c.rank),
        _step_text(c),
        format_count(c.kernels),
        format_duration(c.kernel_ns),
        format_duration(c.communication_ns) if c.communication_ns else "-",
        f"{c.known_share:.1%}",
        format_bytes(c.peak_bytes) if c.peak_bytes else "-",
    )


def _class_facts(c: ImportedClass) -> list[tuple[str, str]]:
    times = f"{format_duration(c.kernel_ns)} in {format_count(c.kernels)} kernels"
    if c.communication_ns:
        times += f", {format_duration(c.communication_ns)} of them communication"
    facts = [
        ("step", f"{format_duration(c.step_ns)}, {_rule_text(c)}"),
        ("kernel time", times),
        ("work known", f"{c.known_share:.1%} of kernel time"),
    ]
    if c.peak_bytes:
        facts.append(("peak memory", format_bytes(c.peak_bytes)))
    return facts


def _rule_text(c: ImportedClass) -> str:
    if c.rule == "period":
        return f"the median period between the ends of {format_count(c.steps)} steps"
    of_several = f" (one of {format_count(c.steps)})" if c.steps > 1 else ""
    return f"from its first moment to its last kernel{of_several}"


def _step_text(c: ImportedClass) -> str:
    of_several = f", of {format_count(c.steps)}" if c.steps > 1 else ""
    return f"{format_duration(c.step_ns)}{of_several}"


def _facts(facts: list[tuple[str, str]]) -> str:
    return "\n".join(f"{label:<11} {value}" for label, value in facts)


def _class_of(program: Program, measured: MeasuredClass) -> ImportedClass:
    device = device_rows(program)
    ns = program.measured_ns
    communicates = (program.kind >= Kind.COLLECTIVE) | (program.op == OpClass.COMMUNICATION)
    kernel_ns, known_ns = (int(ns[r].sum()) for r in (device, device & work_is_known(program)))
    return ImportedClass(
        rank=measured.rank,
        steps=measured.steps,
        kernels=int(device.sum()),
        kernel_ns=kernel_ns,
        communication_ns=int(ns[communicates].sum()),
        known_ns=known_ns,
        span_ns=measured.span_ns,
        step_ns=measured.step_ns,
        rule="period" if measured.period_ns else "span",
        peak_bytes=measured.peak_bytes,
        known_share=known_ns / kernel_ns if kernel_ns else 1.0,
    )


def device_rows(program: Program) -> NDArray[np.bool_]:
    """Rows that were on the device: no arguments, nothing of the host, no pauses."""
    works = program.kind >= Kind.COMPUTE
    return np.asarray(works & ~((program.kind == Kind.COMPUTE) & (program.op == OpClass.HOST)))


def work_is_known(program: Program) -> NDArray[np.bool_]:
    """Rows whose own work is known, or that of the operator that launched them."""
    unpriced = (program.flags & Flag.UNPRICED) != 0
    lost = np.unique(program.launcher[unpriced & (program.launcher > 0)])
    return np.asarray(~unpriced & ~np.isin(program.launcher, lost))
