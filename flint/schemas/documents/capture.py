"""What `flint capture` says."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict

from flint.schemas.documents.estimate import EstimateDocument
from flint.schemas.documents.summary import SummaryDocument


class FilesDocument(TypedDict):
    """The traces that were written."""

    directory: str
    """Where they are, as it was given with -o."""
    files: int
    """Files of ranks and beside them."""
    ranks: int
    """Ranks that have a trace."""
    nodes: dict[str, int]
    """Nodes of a trace, by rank class."""
    trace_bytes: int
    """Bytes of all traces."""
    disk_bytes: int
    """Bytes of those that are no hard links to others."""


class CaptureDocument(TypedDict):
    """A captured program: its summary, its estimates, and what was written of it."""

    schema: Literal["flint.capture/1"]
    """Kind and version of this document."""
    summary: SummaryDocument
    """What the program computes, holds and sends. With -o, communication is that of the traces."""
    files: FilesDocument | None
    """The traces; null without -o."""
    estimates: list[EstimateDocument]
    """An estimate for each cluster that was given with -c, in that order."""
    warnings: list[str]
    """What could not be captured as asked for, and what was made up: sentences."""
    timings: dict[str, float]
    """Wall seconds of the stages of this run, total_seconds with them. The one part that varies."""
