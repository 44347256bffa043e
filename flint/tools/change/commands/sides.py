"""What `flint diff` compares: captures, saved estimates, and models, also of another revision."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flint.cli.inputs import load_workload
from flint.cli.requests import refuse
from flint.errors import FlintError, Malformed
from flint.io.bounded import FileKind, is_directory, is_file, parse_json, read_bounded
from flint.requests.estimate import EstimateRequest

if TYPE_CHECKING:
    from flint.ir.workload import Workload
    from flint.tools.change.diff.difference import Side
    from flint.tools.change.project.config import Capture, Project

_MODELS = (".py", ".mlir", ".mlirbc", ".hlo", ".txt", ".pb")
_REVISION = re.compile(r"(?P<revision>[^:]+):(?P<model>.+)")


@dataclass(frozen=True)
class Request:
    """How both sides are captured, if they are models, and estimated, if there is a cluster."""

    mesh: str | None
    settings: tuple[str, ...]
    estimate: EstimateRequest


def side(text: str, revision: str | None, request: Request) -> Side:
    """One side of a comparison.

    `text` is a trace directory, a `.flint` file, a saved estimate (`.json`), a model
    (`model.py:NAME`), a model of a revision (`HEAD~1:model.py`), or a capture of flint.toml;
    `revision` is that of a model or capture. Raises FlintError FL301 for what is none of these,
    FL218 for a revision of what was captured already and for options of an estimate without a
    cluster, and what capturing raises.
    """
    from flint.tools.change.diff.difference import Side

    path = Path(text)
    if path.suffix == ".json" and is_file(path):
        return Side(_saved_estimate(path))
    if is_directory(path) or path.suffix == ".flint":
        if revision is not None:
            raise FlintError(
                "FL218",
                f"{text} is a capture: --rev is for models",
                help="omit --rev, or give the model or a capture of flint.toml",
            )
        return _estimated(load_workload(path), request)
    return _captured(text, revision, request)


def _estimated(workload: Workload, request: Request) -> Side:
    from flint.tools.change.diff.difference import Side

    if request.estimate.cluster is None and not _has_device(workload):
        given = request.estimate.given()
        refuse(request.estimate, given, "captures without --cluster", "add --cluster NAME")
        return Side.of(workload)
    from flint.backends.cost.estimate import estimate

    return Side.of(workload, estimate(workload, request.estimate))


def _has_device(workload: Workload) -> bool:
    """Whether it was measured on a device that Flint knows, so that it has times by itself."""
    from flint.cluster.devices import preset_of_device

    by = workload.measured_by
    return by is not None and preset_of_device(by.device) is not None


def _captured(text: str, revision: str | None, request: Request) -> Side:
    """A model or a capture of the project, estimated as that says if the request does not."""
    from flint.ir.workload import Workload
    from flint.tools.change.project.captures import capture_once
    from flint.tools.change.project.revisions import checkout

    found = _REVISION.fullmatch(text)
    if found and not is_file(Path(text.rpartition(":")[0])) and _is_model(found["model"]):
        text, revision = found["model"], found["revision"]
    root = Path.cwd()
    if revision is not None and _is_model(text):
        text, root = _in_its_repository(text)
    capture, folder, request = _capture(text, request, root)
    if revision is None:
        made, name = capture_once(folder, capture), text
    else:
        with checkout(revision, folder) as there:
            made = capture_once(there.folder, capture, there.paths)
        name = f"{revision}:{text}"
    return _estimated(Workload.from_bytes(made.workload, name), request)


def _in_its_repository(text: str) -> tuple[str, Path]:
    """A model of a revision by its path from a folder of its own repository, and that folder.

    It is this folder if that is in the repository, else the file's. An absolute path would be the file
    as it is now.
    """
    from flint.tools.change.project.revisions import top_of

    file, colon, entry = text.partition(":")
    here, there = Path.cwd(), Path(file).resolve()
    if not there.parent.is_dir():  # it may have been there in the revision
        return text, here
    inside = here.resolve().is_relative_to(top_of(there.parent))
    folder = here if inside else there.parent
    return f"{os.path.relpath(there, folder.resolve())}{colon}{entry}", folder


def is_model(text: str) -> bool:
    """Whether a side is a model file, of a revision (`HEAD~1:model.py`) or not."""
    return _is_model(text) or _is_model(text.partition(":")[2])


def _is_model(text: str) -> bool:
    return Path(text.partition(":")[0]).suffix in _MODELS


def _capture(text: str, request: Request, here: Path) -> tuple[Capture, Path, Request]:
    """The options of a capture, the folder in which its model is, and how it is estimated."""
    from flint.tools.change.project.config import Capture, find_project, load_project

    if _is_model(text):
        settings: dict[str, Any] = {}
        for pair in request.settings:
            name, _, value = pair.partition("=")
            settings[name] = value
        return Capture(model=text, mesh=request.mesh, set=settings), here, request
    try:
        project = load_project(find_project(here))
        capture = project.chosen([text])[text]
    except FlintError as error:
        raise FlintError(
            "FL301",
            f"cannot read {text}: it is neither a capture nor a model, and {error.message}",
            place=error.place,
            help="give a trace directory, a .flint file, a saved estimate (.json), a model, "
            "or REVISION:MODEL",
        ) from error
    return capture, project.root, _as_in(project, capture, request)


def _as_in(project: Project, capture: Capture, request: Request) -> Request:
    """The request; without a cluster, on the first of the capture, as flint run estimates it.

    What the request says counts before what the capture does.
    """
    if request.estimate.cluster is not None or not capture.clusters:
        return request
    usual = project.estimate_request(capture, capture.clusters[0])
    return replace(request, estimate=usual.but(**request.estimate.given()))


def _saved_estimate(path: Path) -> Any:
    """What `flint estimate --json` printed, as a snapshot. Raises FlintError FL304."""
    from flint.tools.change.diff.document import snapshot_of_estimate

    data = read_bounded(path, FileKind.ESTIMATE, "FL301")
    try:
        return snapshot_of_estimate(parse_json(data))
    except Malformed as error:
        raise FlintError(
            "FL304",
            f"{path} is not what flint estimate --json prints: {error}",
            help="save it with flint estimate ... --json > FILE.json",
        ) from error
