"""Traces that `flint run` writes, where flint.toml asks for them and they are not there already."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flint.io.bounded import is_file
from flint.io.files import write_atomically
from flint.io.inputs import digest
from flint.ir.workload import Workload
from flint.tools.change.project.cache import FOLDER
from flint.tools.change.project.captures import Captured
from flint.tools.change.project.config import Project, TraceOptions
from flint.tracing import Trace

if TYPE_CHECKING:
    from flint.cli.console import Progress


def are_written(project: Project, captured: Captured, options: TraceOptions) -> bool:
    """Whether the traces of this very workload, written with these options, are there."""
    data, stamp = captured.entry.workload.read_bytes(), _stamp_path(project, captured.name)
    if not is_file(stamp) or stamp.read_text() != _stamp(project, options, data):
        return False
    return any(p.read_bytes() == data for p in (project.root / options.output).glob("*.flint"))


def write(
    project: Project, captured: Captured, options: TraceOptions, progress: Progress | None
) -> None:
    """Write them. Raises what `Trace.save` raises."""
    data = captured.entry.workload.read_bytes()
    Trace(Workload.from_bytes(data, captured.name)).save(
        project.root / options.output,
        granularity=options.granularity,
        cluster=project.cluster(options.cluster) if options.cluster else None,
        ranks=options.ranks,
        link=options.link,
        progress=progress,
    )
    write_atomically(_stamp_path(project, captured.name), _stamp(project, options, data).encode())


def _stamp_path(project: Project, name: str) -> Path:
    """Where it stands of what traces were written."""
    return project.root / FOLDER / "traces" / name


def _stamp(project: Project, options: TraceOptions, workload: bytes) -> str:
    """What traces are of: the workload, how they are written, and a cluster's file."""
    parts = [workload, options.model_dump_json().encode()]
    if options.cluster is not None:
        path = Path(project.cluster(options.cluster))
        parts.append(path.read_bytes() if path.is_file() else b"")
    return digest(b"\0".join(parts))
