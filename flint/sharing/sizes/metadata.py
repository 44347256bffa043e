"""Numbers of a workload's metadata that follow from sizes."""

from __future__ import annotations

from typing import Any

from flint.ir.workload import Workload


def resized_metadata(before: Workload, after: Workload) -> dict[str, Any]:
    """The metadata of a workload that was resized."""
    return dict(before.metadata)
