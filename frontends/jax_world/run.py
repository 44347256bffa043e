"""Runs a JAX script on devices that are not there, in this process, and lowers its step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from flint.errors import FlintError
from flint.frontends.jax_world.calls import Calls, StepDone
from flint.frontends.jax_world.job import Job
from flint.frontends.jax_world.values.places import raising_place
from flint.frontends.user_program import run_program
from flint.io.kept_files import KeptFiles
from flint.steps.captured import Captured
from flint.text import plural

if TYPE_CHECKING:
    from jaxlib.mlir import ir

    from flint.frontends.jax_world.calls import Call


def run(job: Job) -> Captured:
    """Run the job's script up to its step and lower that for the chip.

    Raises FlintError FL203, FL204, FL231, FL232, FL233, FL237 and FL239; what the program raises
    goes through, unless its step is certain by then.
    """
    from flint.frontends.jax_step.settings import start_backend
    from flint.frontends.jax_world.runtime.devices import VirtualClient
    from flint.frontends.jax_world.runtime.install import World, installed
    from flint.frontends.jax_world.values.answers import Answers
    from flint.passes import jax_private

    jax_private.check()
    start_backend()
    calls, answers = Calls(job.choice), Answers(job.hints)
    world = World(VirtualClient(job.chip, job.mesh.sizes), calls, answers)
    warnings: list[str] = []
    kept = KeptFiles(answers.say, job.began)
    with installed(world):
        with kept.guarded():
            _until_done(job, calls, warnings)
        return _captured(job, calls, (*warnings, *answers.warnings))


def _until_done(job: Job, calls: Calls, warnings: list[str]) -> None:
    try:
        run_program(Path(job.script), job.module, job.argv)
    except StepDone:
        return
    except SystemExit as exit_:
        if exit_.code not in (None, 0):
            raise
    except Exception as error:
        if not calls.is_certain:
            raise
        warnings.append(f"after its step the program {raised(error)}")


def raised(error: Exception) -> str:
    """What a program raised and where, in the middle of a sentence."""
    if isinstance(error, FlintError):
        return f"stopped: {error.message} ({error.place})" if error.place else error.message
    what = str(error).strip().partition("\n")[0]
    return f"raised {type(error).__name__}: {what} ({raising_place(error)})"


def _captured(job: Job, calls: Calls, warnings: tuple[str, ...]) -> Captured:
    from flint.frontends.jax_world.generation import generation_in, lowered_generation
    from flint.frontends.jax_world.runtime.lowering import lowered

    call = calls.chosen()
    found = _finished(job, call, lowered(call, job.chip.platform), (calls.note(call), *warnings))
    generation = generation_in(calls.free)
    if generation is None:
        return found
    try:
        module = lowered_generation(generation)
        passes = plural(generation.first.function.run_length, "call")
        said = f"captured {generation.name} as one program: a prefill, and {passes} in a loop; --step NAME captures one of them"
        whole = _finished(job, generation.first, module, (said, *warnings))
    except FlintError:
        return found
    return replace(found, generation=replace(whole, name=generation.name))


def _finished(job: Job, call: Call, module: ir.Module, warnings: tuple[str, ...]) -> Captured:
    from flint.frontends.jax_step.callbacks import callbacks_of
    from flint.frontends.jax_step.meshes import abstract_mesh, check_meshes
    from flint.frontends.jax_world.meshes import mesh_of
    from flint.passes.mlir import write_bytecode
    from flint.passes.partition.prepare.attention import attach_attention_rules
    from flint.passes.partition.prepare.gspmd import refuse_gspmd

    attach_attention_rules(module)
    mesh, said = mesh_of(module, call, job)
    said = (*said, *check_meshes(module, abstract_mesh(mesh), call.function.place or None))
    written = write_bytecode(module)
    refuse_gspmd(module, written, "FL107", call.function.name)
    said = (*said, callbacks_of(call.parameters["jaxpr"]))
    return Captured(
        written,
        mesh,
        call.function.name,
        job.name,
        warnings=tuple(filter(None, (*warnings, *said))),
    )
