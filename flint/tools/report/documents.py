"""Documents of the core in which an estimate may have views: loaded for schemas alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NotRequired

from flint.backends.cost.estimate_json import ClassEstimateDocument, EstimateDocument
from flint.cli.documents import CaptureDocument
from flint.errors import FlintError, nearest
from flint.tools.hints.hint import Hint
from flint.tools.report.views.breakdown import ScopeTime, scope_tree
from flint.tools.report.views.communication import CommunicationRow, communication
from flint.tools.report.views.pipeline import PipelineTimeline, pipeline_schedule
from flint.tools.report.views.roofline import RooflineView, roofline
from flint.tools.report.views.slices import Slices, timeline_slices

if TYPE_CHECKING:
    from flint.backends.cost.estimate import Estimate

# Views in the JSON form of an estimate, and the names by which they are asked for.

#: Slices of a class that a document holds.
SLICES_IN_JSON = 100_000


class DocumentView(StrEnum):
    """What an estimate's JSON form holds if it is asked for."""

    SLICES = "slices"  #: the timeline of a rank class
    ROOFLINE = "roofline"  #: its kernels: flops, bytes and times, and the chip's peaks
    COMMUNICATION = "communication"  #: its collectives and messages, row by row, with causes
    SCOPES = "scopes"  #: its time as a tree of source scopes
    PIPELINE = "pipeline"  #: what the classes of a pipeline run when


class ViewedClass(ClassEstimateDocument):
    """The step of one rank class."""

    slices: NotRequired[Slices]  #: Its timeline (--view slices).
    roofline: NotRequired[RooflineView]
    """Its kernels against what the chip could do (--view roofline)."""
    communication: NotRequired[tuple[CommunicationRow, ...]]
    """Its communication, most exposed first (--view communication)."""
    scopes: NotRequired[ScopeTime]  #: Its time as a tree of source scopes (--view scopes).


class ViewedEstimate(EstimateDocument):
    """How long a step takes on a cluster, where the time goes, and whether it fits."""

    classes: list[ViewedClass]  # type: ignore[misc]
    """One entry for each rank class."""
    hints: NotRequired[list[Hint]]
    """What to change next, the best first; only where hints were looked for."""
    hints_not_tried: NotRequired[list[str]]
    """Changes that would have taken long to estimate; `--hints` tries them, too."""
    pipeline: NotRequired[PipelineTimeline | None]
    """What the classes of a pipeline run when (--view pipeline); null for what is not a pipeline."""


def find_views(names: Collection[str]) -> tuple[DocumentView, ...]:
    """The views of these names, in the order of `DocumentView`. Raises FlintError FL504 for another."""
    known = [v.value for v in DocumentView]
    for name in names:
        if name not in known:
            raise FlintError(
                "FL504",
                f"there is no view '{name}'{nearest(str(name), known)}",
                help=f"the views are {', '.join(known)}",
            )
    return tuple(v for v in DocumentView if v in names)


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


def _class_json(estimate: Estimate, number: int, views: Collection[DocumentView]) -> dict[str, Any]:
    """The views of a rank class that are asked for, by their names."""
    makers: Mapping[DocumentView, Callable[[], object]] = {
        DocumentView.SLICES: lambda: timeline_slices(estimate, number, limit=SLICES_IN_JSON),
        DocumentView.ROOFLINE: lambda: roofline(estimate, number),
        DocumentView.COMMUNICATION: lambda: communication(estimate, number),
        DocumentView.SCOPES: lambda: scope_tree(estimate, number),
    }
    return {str(v): make() for v, make in makers.items() if v in views}


def _estimate_json(estimate: Estimate, views: Collection[DocumentView]) -> Mapping[str, Any]:
    """The views that are of no one class; without a pipeline, that view is None."""
    return {"pipeline": pipeline_schedule(estimate)} if DocumentView.PIPELINE in views else {}


class ViewedCapture(CaptureDocument):
    """A captured program: its summary, its estimates, and what was written of it."""

    estimates: list[ViewedEstimate]  # type: ignore[misc]
    """An estimate for each cluster that was given with -c, in that order."""
