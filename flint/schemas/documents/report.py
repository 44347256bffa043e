"""What `flint report` says."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict


class ReportDocument(TypedDict):
    """A page that was written."""

    schema: Literal["flint.report/1"]
    """Kind and version of this document."""
    file: str
    """The HTML file."""
    bytes: int
    """Its size."""
