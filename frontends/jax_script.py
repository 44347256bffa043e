"""JAX scripts -> StableHLO of their step: run on devices that are not there.

The script runs in a process of its own, on arrays without data; see `flint.frontends.jax_world`.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flint.errors import FlintError
from flint.frontends.jax_world.calls import Choice
from flint.frontends.jax_world.child import Outcome
from flint.frontends.jax_world.job import Job
from flint.frontends.jax_world.runtime.chips import DEFAULT_CHIP, answers_of
from flint.frontends.script_kind import program_of
from flint.frontends.user_process import child_environment, died, gave_up, read_outcome
from flint.io.processes import Child, Patience
from flint.io.scratch import scratch_folder
from flint.ir.mesh import DEFAULT_AXIS_NAMES, Mesh
from flint.passes.mlir import missing_jax
from flint.steps.captured import Captured


def capture_jax_script(
    path: Path,
    argv: Sequence[str],
    mesh: object,
    *,
    chip: str | None = None,
    step: str = "",
    number: int | None = None,
    hints: Mapping[str, Any] | None = None,
) -> Captured:
    """Run `python path *argv`, or `python -m path *argv`, on as many devices as `mesh` has, and capture the step that it jits.

    `chip` is the name of a cluster or a TOML file, `step` the name of the jitted function (without
    one, the heaviest that is called often enough) and `number` which of its calls, from 1 (None: the
    second, or the first if there is no other). The mesh
    of the step is the program's own; `mesh` says how many devices there are and, with names, which
    axes they have. Raises FlintError FL301 for a file that cannot be read, FL206 without JAX, FL702
    for an unknown chip, FL218 for one that JAX does not drive, and FL230 to FL239.
    """
    path, module = program_of(path)
    try:
        import jaxlib  # noqa: F401 - the child would say it with a traceback
    except ImportError as error:
        raise missing_jax("jax") from error
    if number is not None and number < 1:
        raise FlintError(
            "FL218", "calls of a jitted function count from 1", help="--steps 1 is the first"
        )
    asked, is_named = _mesh(mesh)
    choice = Choice(step) if number is None else Choice(step, number, is_exact=True)
    answers = answers_of(chip or DEFAULT_CHIP)
    job = Job(str(path), tuple(argv), module, asked, is_named, answers, choice, dict(hints or {}))
    return captured_in_child(job)


def _mesh(spec: object) -> tuple[Mesh, bool]:
    """The mesh asked for, and whether the user named its axes."""
    if not isinstance(spec, str) or "=" in spec:
        return Mesh.parse(spec), True
    count = len(spec.replace("×", "x").replace(",", "x").split("x"))
    names = DEFAULT_AXIS_NAMES.get(count) or tuple(f"axis{i}" for i in range(count))
    return Mesh.parse(spec, names), False


def captured_in_child(job: Job) -> Captured:
    """Run a job in a new process.

    Raises FlintError FL230 (the program raised, died, or made no progress) and what `run` raises.
    """
    outcome = _outcome(job)
    if isinstance(outcome, Captured):
        return outcome
    raise outcome.error()


def _outcome(job: Job) -> Outcome:
    patience = Patience.from_environment()
    with scratch_folder() as folder:
        job_file, result_file = folder / "job", folder / "result"
        job_file.write_bytes(pickle.dumps(job))
        module = "flint.frontends.jax_world.child"
        child = Child(
            [sys.executable, "-P", "-m", module, str(job_file), str(result_file)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=_environment(),
        )
        try:
            with child.watched(patience) as watch:
                code = child.process.wait()
        finally:
            child.end()
        if watch.reason:
            return gave_up(job.name, watch)
        outcome: Outcome | None = read_outcome(result_file)
        return outcome or died(job.name, code)


def _environment() -> dict[str, str]:
    """Libraries find no real accelerator."""
    logging = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1")
    return child_environment(JAX_PLATFORMS="cpu", TF_CPP_MIN_LOG_LEVEL=logging)
