"""Distributed PyTorch programs -> Workload: run as ranks of a world that need not exist.

The program runs in processes of its own, once for each rank class, on tensors without data. What
it did there becomes a Program; see `flint.frontends.torch_world`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from flint.frontends.torch_world.program.classes import rank_classes
from flint.frontends.torch_world.program.groups import mesh_before, mesh_of
from flint.frontends.torch_world.record.job import Job
from flint.frontends.torch_world.record.process import Relay, rank_processes
from flint.frontends.user_process import StepMissing
from flint.frontends.user_program import NOTEBOOK
from flint.ir.made_by import StoodIn
from flint.ir.workload import Workload
from flint.steps.step import WorldStep

_log = logging.getLogger(__name__)


def capture_world(step: WorldStep, mesh: object, *, name: str = "", source: str = "") -> Workload:
    """Run `step.fn` as ranks of a world as large as `mesh`, and return what every rank does.

    `mesh` is a Mesh or its text; sizes without names take those of the program's own mesh if it
    has the same sizes. Raises FlintError FL224 and FL230 to FL238 for what the user can mend.
    """
    job = Job.of_function(step)
    return _capture(job, mesh, name or step.name or job.name, source)


def capture_script(
    path: Path,
    argv: Sequence[str],
    mesh: object,
    *,
    hints: Mapping[str, Any] | None = None,
    steps: int | None = None,
    chip: str | None = None,
    part: str = "",
    per_host: int | None = None,
) -> Workload:
    """Run a torchrun script, `python path *argv`, as ranks of a world. See `capture_world`.

    `chip` names the cluster whose GPU the script is told that it runs on, `per_host` processes are
    on each host (8). Without `steps` it is the second optimizer step, or what there is if the script
    takes fewer. With 0 steps, `part` is what is kept of inference: "prefill" or "decode" (FL729 where
    there is none).
    """
    job = Job.of_script(path, argv, steps=2, hints=hints, chip=chip, per_host=per_host, part=part)
    if steps is None:
        return _captured_as_far_as_it_goes(job, mesh, path)
    job = replace(job, steps=steps)
    return _capture(job, mesh, _title(path), path.name)


def _title(path: Path) -> str:
    """`train` of train.py, and of the module package.train."""
    return path.stem if path.suffix in (".py", NOTEBOOK) else path.suffix[1:] or path.name


def _captured_as_far_as_it_goes(job: Job, mesh: object, path: Path) -> Workload:
    try:
        return _capture(job, mesh, _title(path), path.name)
    except StepMissing as error:
        done = error.done_steps
    found = _capture(replace(job, steps=done), mesh, _title(path), path.name)
    said = (
        "the script takes only 1 optimizer step, which was recorded with all that it sets up"
        if done
        else "no optimizer stepped: the whole script was recorded from the first module that ran"
    )
    warnings = [said, *found.metadata.get("warnings", ())]
    return replace(found, metadata={**found.metadata, "warnings": warnings})


def _capture(job: Job, mesh: object, name: str, source: str) -> Workload:
    asked = mesh_before(mesh)
    job = replace(job, world_size=asked.size, mesh_sizes=asked.sizes, mesh_names=asked.names)

    with rank_processes() as processes:
        recorded = Relay(job, processes.record)
        (first,) = recorded([0])
        exact = mesh_of(mesh, first)
        found = rank_classes(recorded, first, exact, job.local_world_size)
    _log.info("%d ranks form %d classes with their own programs", exact.size, len(found.classes))
    about: dict[str, Any] = {
        "producer": "flint",
        "name": name,
        "source": source,
        "partitioner": "none",
        "torch": version("torch").partition("+")[0],
    }
    if found.stood_in != StoodIn():
        about["stood_in"] = found.stood_in.to_json()
    if found.warnings:
        about["warnings"] = list(found.warnings)
    return Workload(exact, found.programs, found.classes, about)
