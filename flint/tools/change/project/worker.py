"""One capture of a project, in a process of its own: `python -m flint.tools.change.project.worker JOB RESULT`.

The job is a capture of flint.toml as JSON; the process runs in the project's folder. The result is a
folder with `workload.flint` and `result.json`: the snapshot, or the error that stopped it.
"""

from __future__ import annotations

import contextlib
import json
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flint.io.inputs import record_if_asked

if TYPE_CHECKING:
    from flint.errors import FlintError
    from flint.ir.workload import Workload
    from flint.tools.change.project.config import Capture

RESULT, WORKLOAD = "result.json", "workload.flint"


def main() -> None:
    """Run the job, and end with status 0 whether it gave a snapshot or an error of the user's."""
    from flint.cli.exits import end_process
    from flint.errors import FlintError
    from flint.io.processes import begin_child

    begin_child()
    record_if_asked()
    job, folder = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    try:
        result = _result(job, folder)
    except FlintError as error:
        result = _error(error, error.__cause__ or error)
    except SystemExit as error:  # whatever the model's code raises to end the process
        from flint.frontends.user_code import user_error

        result = _error(user_error(error, "the model's code"), error)
    (folder / RESULT).write_text(json.dumps(result))
    end_process(0)


def _error(error: FlintError, seen: BaseException) -> dict[str, Any]:
    """What the parent raises again, with the traceback that `-v` prints."""
    trace = "".join(traceback.format_exception(seen))
    return {"error": [error.code, error.message, error.place, error.help, trace]}


def _result(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    from flint import capturing
    from flint.backends.cost.estimate import estimate
    from flint.cli.exits import user_process
    from flint.tools.change.diff.snapshot import snapshot
    from flint.tools.change.project.config import Capture
    from flint.tools.change.project.records import snapshot_record

    capture = Capture.model_validate(job)
    trace = capturing.capture(capture.capture_request(), user_process)
    estimates = {
        name: estimate(trace.workload, capture.estimate_request(name)) for name in capture.clusters
    }
    found = snapshot(trace.workload, estimates)
    trace.workload.save(folder / WORKLOAD)
    return {
        "snapshot": snapshot_record(found),
        "warnings": list(trace.warnings),
        "made_with": _versions(capture, trace.workload),
    }


#: What may change a result, by the names of distributions.
_DISTRIBUTIONS = {"flint-ir": "flint", "jax": "jax", "jaxlib": "jaxlib", "torch": "torch"}


def _versions(c: Capture, workload: Workload) -> dict[str, str]:
    """Versions of Flint and of the frameworks that took part."""
    from importlib.metadata import PackageNotFoundError, version

    used = (
        {"torch"} if c.world or "torch" in workload.metadata else set()
    )  # it ran in a process of its own
    found = {}
    for distribution, module in _DISTRIBUTIONS.items():
        if module in sys.modules or module in used:
            with contextlib.suppress(PackageNotFoundError):  # run from a source tree
                found[distribution] = version(distribution).partition("+")[0]  # as for CPUs
    if workload.compiled_by:
        package, _, number = workload.compiled_by.version.partition(" ")
        found[package] = number
    return found


if __name__ == "__main__":
    main()
