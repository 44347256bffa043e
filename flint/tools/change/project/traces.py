"""Traces that `flint run` writes, where flint.toml asks for them and they are not there already."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from flint.backends.chakra.manifest import read_manifest
from flint.cluster.named import load_cluster
from flint.io.bounded import is_directory, is_file
from flint.io.files import write_atomically
from flint.io.inputs import digest, environment_of
from flint.ir.workload import Workload
from flint.requests.estimate import OF_TRACES, EstimateRequest
from flint.tools.change.project.cache import FOLDER
from flint.tools.change.project.captures import Captured
from flint.tools.change.project.config import Project, TraceOptions
from flint.tracing import Trace

if TYPE_CHECKING:
    from flint.cli.console import Progress


def are_written(project: Project, captured: Captured, options: TraceOptions) -> bool:
    """Whether the traces of this very workload, written with these options, are there."""
    data, stamp = captured.entry.workload.read_bytes(), _stamp_path(project, captured.name)
    if not is_file(stamp) or stamp.read_text() != _stamp(project, captured.name, options, data):
        return False
    folder = project.root / options.output
    manifest = read_manifest(folder) if is_directory(folder) else None
    if manifest is None or not set(manifest.listing) <= set(os.listdir(folder)):
        return False
    return any(p.read_bytes() == data for p in folder.glob("*.flint"))


def write(
    project: Project, captured: Captured, options: TraceOptions, progress: Progress | None
) -> None:
    """Write them. Raises what `Trace.save` raises."""
    data = captured.entry.workload.read_bytes()
    request = _timed(project, captured.name, options)
    Trace(Workload.from_bytes(data, captured.name)).save(
        project.root / options.output,
        granularity=options.granularity,
        ranks=options.ranks,
        link=options.link,
        progress=progress,
        cluster=request.cluster,
        **{name: getattr(request, name) for name in OF_TRACES},
    )
    stamp = _stamp(project, captured.name, options, data)
    write_atomically(_stamp_path(project, captured.name), stamp.encode())


def _timed(project: Project, name: str, options: TraceOptions) -> EstimateRequest:
    """How the durations of traces are estimated: as the capture is, on the cluster of its traces."""
    if options.cluster is None:
        return EstimateRequest()
    return project.estimate_request(project.captures[name], options.cluster)


def _stamp_path(project: Project, name: str) -> Path:
    """Where it stands of what traces were written."""
    return project.root / FOLDER / "traces" / name


def _stamp(project: Project, name: str, options: TraceOptions, workload: bytes) -> str:
    """What traces are of: the workload, how they are written and timed, and the Flint that did it."""
    said = [options.model_dump_json(), json.dumps(environment_of(()), sort_keys=True)]
    request = _timed(project, name, options)
    if request.cluster is not None:
        said += [load_cluster(request.cluster).model_dump_json()]
        said += [repr(getattr(request, each)) for each in OF_TRACES]
        if isinstance(request.stack, str | Path) and is_file(Path(request.stack)):
            said += [Path(request.stack).read_text()]
    return digest(b"\0".join([workload, *(text.encode() for text in said)]))
