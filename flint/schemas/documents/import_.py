"""What `flint import` says."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict

from flint.schemas.documents.capture import FilesDocument
from flint.schemas.documents.summary import SummaryDocument


class ImportedClassDocument(TypedDict):
    """The step of one profiled rank."""

    rank: int
    """The rank."""
    steps: int
    """Steps that the profile has, of which one was taken."""
    kernels: int
    """Kernels, copies, fills and communication on the device."""
    kernel_ns: int
    """Their time together, in nanoseconds; streams may overlap."""
    communication_ns: int
    """Time of collectives and messages; with profiles of all members that of the transfer alone."""
    known_ns: int
    """Time of kernels whose operator's work is known."""
    known_share: float
    """The same as a part of `kernel_ns`."""
    span_ns: float
    """The recorded time of the step that was taken: from its first moment to the end of the last kernel."""
    step_ns: float
    """The time of a step: by `rule`, the median period or the span."""
    rule: Literal["period", "span"]
    """period: the median period between the ends of several steps; span: there is one step."""
    peak_bytes: int
    """Most memory that the framework's allocator held; 0 where the profile does not say."""


class ImportedDocument(TypedDict):
    """What profiles told of the steps that they recorded."""

    format: str
    """The tool's format: kineto, xplane, ..."""
    device: str
    """Name of the device, empty where nothing says it."""
    ranks: int
    """Ranks of the job."""
    classes: list[ImportedClassDocument]
    """Each rank that has a profile."""


class ImportDocument(TypedDict):
    """Imported profiles: what was measured, what it does, and what was written."""

    schema: Literal["flint.import/1"]
    """Kind and version of this document."""
    imported: ImportedDocument
    """What was measured."""
    summary: SummaryDocument
    """What the step computes and sends, as of a captured program."""
    workload: str | None
    """The .flint file that was written; null without one."""
    files: FilesDocument | None
    """The traces that were written; null without a directory to write."""
    warnings: list[str]
    """What the profiles lack and what was made up: sentences."""
    timings: dict[str, float]
    """Wall seconds of the stages of this run, total_seconds with them. The one part that varies."""
