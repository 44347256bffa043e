"""Workloads whose sizes do not follow from rows: what cannot be grown, and what can be done instead."""

from __future__ import annotations

from flint.errors import FlintError
from flint.ir.program import Flag
from flint.ir.workload import Workload
from flint.tools.share.inputs import Source, SourceKind


def refuse_source(source: Source) -> Workload:
    """The workload of a source. Raises FlintError FL926 for profiles, and traces without a workload."""
    if source.kind is SourceKind.PROFILE:
        raise FlintError(
            "FL926",
            f"{source.path} is a profile: times of one size say nothing of another",
            help="capture the program: flint capture MODEL --mesh 4x2 -o DIR",
        )
    if source.workload is None:
        raise FlintError(
            "FL926",
            f"{source.path} has traces, and no workload that they were written from",
            help="sizes are not in traces: give a directory that flint capture wrote",
        )
    return source.workload


def refuse_workload(workload: Workload) -> None:
    """Raise FlintError FL926 for programs that were measured, compiled, recorded, or are of several rank classes."""
    told = _why_not(workload)
    if told:
        why, instead = told
        raise FlintError("FL926", f"the workload cannot be grown: {why}", help=instead)


def _why_not(workload: Workload) -> tuple[str, str] | None:
    metadata = workload.metadata
    again = "capture it again with the sizes that are wanted"
    if workload.measured_by is not None:
        return "it was measured, and times of one size say nothing of another", again
    if workload.compiled_by is not None:
        return "a compiler chose its kernels for these sizes", "capture it without --compiler"
    if metadata.get("profile") not in (None, "none"):
        return (
            "its rows are kernels",
            "capture it without --profile, and rewrite the grown one: flint opt",
        )
    if metadata.get("pipeline") or metadata.get("pools"):
        what = "a pipeline" if metadata.get("pipeline") else "pools"
        return (
            f"it has {what} of {len(workload.programs)} programs, whose stages are cut for these sizes",
            "grow the program without stages, or capture it again",
        )
    if len(workload.programs) != 1 or len(workload.classes) != 1:
        return f"it has {len(workload.classes)} rank classes, each with sizes of its own", again
    flags = workload.programs[0].flags
    if ((flags & Flag.LAUNCHED) != 0).any():
        return (
            "it was recorded: its operations are those of a framework at these sizes",
            "capture an annotated program, or record it again with the sizes that are wanted",
        )
    return None
