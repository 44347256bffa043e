"""Views in the JSON form of an estimate, and the names by which they are asked for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from flint.errors import FlintError, nearest

if TYPE_CHECKING:
    from flint.backends.cost.estimate import Estimate

#: Slices of a class that a document holds.
SLICES_IN_JSON = 100_000


class View(StrEnum):
    """What an estimate's JSON form holds if it is asked for."""

    SLICES = "slices"  #: the timeline of a rank class
    ROOFLINE = "roofline"  #: its kernels: flops, bytes and times, and the chip's peaks
    COMMUNICATION = "communication"  #: its collectives and messages, row by row, with causes
    SCOPES = "scopes"  #: its time as a tree of source scopes
    PIPELINE = "pipeline"  #: what the classes of a pipeline run when


def find_views(names: Collection[str]) -> tuple[View, ...]:
    """The views of these names, in the order of `View`. Raises FlintError FL504 for another."""
    known = [v.value for v in View]
    for name in names:
        if name not in known:
            raise FlintError(
                "FL504",
                f"there is no view '{name}'{nearest(str(name), known)}",
                help=f"the views are {', '.join(known)}",
            )
    return tuple(v for v in View if v in names)


def with_views(
    estimate: Estimate, document: Mapping[str, Any], names: Collection[str], chosen: Collection[int]
) -> Mapping[str, Any]:
    """The JSON form `document` of an estimate with views: those of classes in the `chosen` ones.

    Raises FlintError FL504 for a name that no view has.
    """
    views = find_views(names)
    classes = [
        {**c, **(_class_json(estimate, n, views) if n in chosen else {})}
        for n, c in enumerate(document["classes"])
    ]
    return {**document, "classes": classes, **_estimate_json(estimate, views)}


def _class_json(estimate: Estimate, number: int, views: Collection[View]) -> dict[str, Any]:
    """The views of a rank class that are asked for, by their names."""
    makers = {
        View.SLICES: _slices,
        View.ROOFLINE: _roofline,
        View.COMMUNICATION: _communication,
        View.SCOPES: _scopes,
    }
    return {str(v): make(estimate, number) for v, make in makers.items() if v in views}


def _estimate_json(estimate: Estimate, views: Collection[View]) -> Mapping[str, Any]:
    """The views that are of no one class; without a pipeline, that view is None."""
    if View.PIPELINE not in views:
        return {}
    from flint.tools.report.views.pipeline import pipeline_schedule

    found = pipeline_schedule(estimate)
    return {"pipeline": None if found is None else asdict(found)}


def _slices(estimate: Estimate, number: int) -> Any:
    from flint.tools.report.views.slices import timeline_slices

    return asdict(timeline_slices(estimate, number, limit=SLICES_IN_JSON))


def _roofline(estimate: Estimate, number: int) -> Any:
    from flint.tools.report.views.roofline import roofline

    return asdict(roofline(estimate, number))


def _communication(estimate: Estimate, number: int) -> Any:
    from flint.tools.report.views.communication import communication

    return [asdict(c) for c in communication(estimate, number)]


def _scopes(estimate: Estimate, number: int) -> Any:
    from flint.tools.report.views.breakdown import scope_tree

    return asdict(scope_tree(estimate, number))
