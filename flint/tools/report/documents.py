"""Documents of the core in which an estimate may have views: loaded for schemas alone."""

from __future__ import annotations

from flint.cli.documents import CaptureDocument
from flint.tools.report.views.documents import ViewedEstimate


class ViewedCapture(CaptureDocument):
    """A captured program: its summary, its estimates, and what was written of it."""

    estimates: list[ViewedEstimate]  # type: ignore[misc]
    """An estimate for each cluster that was given with -c, in that order."""
