"""What `flint import` says with `--json`: loaded for its schema alone."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict

from flint.backends.summary.summary import Summary
from flint.cli.documents import FilesDocument
from flint.tools.measure.imported import Imported


class ImportDocument(TypedDict):
    """Imported profiles: what was measured, what it does, and what was written."""

    schema: Literal["flint.import/1"]  #: Kind and version of this document.
    imported: Imported  #: What was measured.
    summary: Summary  #: What the step computes and sends, as of a captured program.
    workload: str | None  #: The .flint file that was written; null without one.
    files: FilesDocument | None  #: The traces that were written; null without a directory to write.
    warnings: list[str]  #: What the profiles lack and what was made up: sentences.
    timings: dict[str, float]
    """Wall seconds of the stages of this run, total_seconds with them. The one part that varies."""
