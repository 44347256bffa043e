"""From what a user asks for, on the command line or in flint.toml, to a Trace."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from flint.errors import FlintError
from flint.frontends.contained import contained
from flint.requests.capture import LOWERED, CaptureRequest
from flint.requests.option import OnlyFor
from flint.steps.input_kind import holds_program

if TYPE_CHECKING:
    from flint.frontends.model_file import ModelFile, Target
    from flint.ir.mesh import Mesh
    from flint.passes.pipeline.split.shared import SharedBodies
    from flint.steps.entry import AnyStep
    from flint.tracing import Trace

#: A context that the user's code runs in.
Guard: TypeAlias = Callable[[], AbstractContextManager[None]]

#: Sees a step before it is captured, and the mesh that it is for; may give another to capture.
Check: TypeAlias = "Callable[[AnyStep, Mesh], AnyStep | None]"


def capture(options: CaptureRequest, guard: Guard = contained) -> Trace:
    """Capture a model file, a script or a program in a file, and rewrite it for its profile.

    The code of a model file runs in `guard`. Raises FlintError FL218 for options of another kind of model, and what capturing raises.
    """
    from flint.frontends.plugin_libraries import load_plugin_libraries

    options, said = decided(options)
    _refuse_other_kind(options)
    require_profile(options.profile)
    load_plugin_libraries()
    try:
        if options.cross_check:
            trace = _cross_checked(options, guard)
        else:
            trace = _trace_script(options) if options.world else _trace(options, guard)
    except FlintError as error:
        if said and "--world" not in str(error):
            error.help = f"{error.help or 'see docs/errors.md'} (it ran as with --world)"
        raise
    return replace(_rewritten(trace, options), recorded=said)


def decided(o: CaptureRequest) -> tuple[CaptureRequest, str]:
    """The request with `world` for a script, notebook, module or command line (`torchrun ...`), and a
    sentence that says so, "" if nothing follows. Raises FlintError FL211 (step or script?) and FL254.
    """
    from flint.steps.input_kind import InputKind, input_kind, marks_entry

    path = Path(o.model)
    if os.path.isfile(path) and path.suffix != ".ipynb":  # no name is too long for it
        asked = o.world or o.args is not None or o.settings or o.pipeline.given()
        if asked or input_kind(path) is not InputKind.PYTHON or marks_entry(path):
            return o, ""
    from flint.frontends.script_choice import script_chosen

    return script_chosen(o)


def _cross_checked(o: CaptureRequest, guard: Guard) -> Trace:
    """The captured step beside what a compiler makes of it. Raises FlintError FL252, too."""
    from flint.cross_checking import cross_checked

    alone = o.but(cross_check="", profile="none")

    def capture_by(compiler: str) -> Trace:
        if compiler:
            return capture(alone.but(compiler=compiler), guard)
        return capture(alone if o.world else alone.but(chip=None), guard)

    cluster = next(iter(o.clusters), None)
    trace, found = cross_checked(capture_by, o.cross_check, o.chip or cluster or "", cluster)
    return trace.beside(found)


def captured_from(
    file: ModelFile,
    options: CaptureRequest,
    check: Check | None = None,
    shared: SharedBodies | None = None,
) -> Trace:
    """Capture the step that a model file, imported once for many of them, has for these options.

    `check` sees the step before it is captured, and may raise; `shared` keeps what several pipelines
    have in common. Run this inside
    `importable(file.target.path.parent)`. Raises as `capture` does.
    """
    _refuse_other_kind(options)
    require_profile(options.profile)
    lowered = _lowered(options)
    return _rewritten(_trace_step_of(file, options, lowered, check, shared), options)


def _rewritten(trace: Trace, o: CaptureRequest) -> Trace:
    return trace if o.profile == "none" else trace.rewritten(o.profile)


def require_profile(name: str) -> None:
    """Raise FlintError FL405 for an unknown profile before anything is captured."""
    if name != "none":
        from flint.passes.profiles import profile

        profile(name)


def _refuse_other_kind(o: CaptureRequest) -> None:
    """Raise FlintError FL218 for options of model files with a script, and the other way round."""
    compiles = o.compiler or o.cross_check
    given = [o.options()[name] for name in o.given() if not (compiles and name == "chip")]
    if o.world and any(option.only_for is OnlyFor.MODELS for option in given):
        raise FlintError(
            "FL218",
            "--args, --set and pipeline options are for model files with an entry",
            help="omit --world, or give a script's arguments after --",
        )
    if o.world and os.path.isfile(o.model) and holds_program(Path(o.model)):
        raise FlintError(
            "FL218", f"{o.model} is a program, and --world is for scripts", help="omit --world"
        )
    if not o.world and any(option.only_for is OnlyFor.SCRIPTS for option in given):
        raise FlintError(
            "FL218",
            "--steps, --step, --chip, --hint and arguments after the model are for scripts",
            help="add --world (--chip also goes with --compiler and --cross-check)",
        )


def _trace_script(o: CaptureRequest) -> Trace:
    from flint.frontends.launch_command import launch_of
    from flint.frontends.user_process import variables_set
    from flint.steps.options import parse_hints
    from flint.tracing import trace_script

    mesh, hints = _required(o.mesh), parse_hints(list(o.hints))
    step, number = _step_of(o)
    more = {"hints": hints, "steps": number, "step": step, **_lowered(o)}
    launch = launch_of(o.model, o.script_arguments)
    with variables_set(launch.environment):
        return trace_script(
            launch.program, mesh, launch.arguments, per_host=launch.per_host, **more
        )


def _lowered(o: CaptureRequest) -> dict[str, Any]:
    """The fields of `LOWERED`. The chip is `--chip`, or that of the first cluster of an estimate."""
    from flint.steps.options import parse_trip_counts

    found = {name: getattr(o, name) for name in LOWERED}
    found["chip"] = o.chip or next(iter(o.clusters), None)
    return found | {"trip_counts": parse_trip_counts(o.trip_counts)}


def _step_of(o: CaptureRequest) -> tuple[str, int | None]:
    """`--step NAME[:N]` and `--steps N` as a name and a number, None for the usual one."""
    name, _, number = (o.step or "").rpartition(":")
    if not name or not number.isdigit():
        return o.step or "", o.steps
    if o.steps is not None:
        raise FlintError(
            "FL218", f"--step {o.step} and --steps both give a number", help="omit one"
        )
    return name, int(number)


def _required(mesh: str | None) -> str:
    if mesh is None:
        raise FlintError(
            "FL101", "the mesh is missing", help="add --mesh 64x8, or --mesh data=64,model=8"
        )
    return mesh


def _trace(o: CaptureRequest, guard: Guard) -> Trace:
    from flint.frontends.model_file import Target
    from flint.steps.input_kind import InputKind, input_kind
    from flint.steps.options import parse_settings

    target, lowered = Target.parse(o.model), _lowered(o)
    values = parse_settings(list(o.settings))
    if input_kind(target.path) is InputKind.PYTHON:
        _required(o.mesh)
        return _trace_model(target, lowered, o, guard)
    if o.args is not None or values or target.name is not None or o.pipeline.given():
        raise FlintError(
            "FL218",
            f"{target.path.name} is not a Python file, and :NAME, --args, --set and pipeline options need one",
        )
    from flint.ir.mesh import Mesh
    from flint.tracing import trace_file

    parsed = Mesh.parse(o.mesh) if o.mesh is not None else None
    return trace_file(target.path, parsed, **lowered)


def _trace_model(
    target: Target, lowered: Mapping[str, Any], o: CaptureRequest, guard: Guard
) -> Trace:
    from flint.frontends.model_file import ModelFile, importable

    with importable(target.path.parent), guard():
        return _trace_step_of(ModelFile.read(target), o, lowered)


def _trace_step_of(
    file: ModelFile,
    o: CaptureRequest,
    lowered: Mapping[str, Any],
    check: Check | None = None,
    shared: SharedBodies | None = None,
) -> Trace:
    from flint.frontends.model_file import Target
    from flint.steps.options import parse_settings
    from flint.tracing import trace_step

    given = Target.parse(o.args) if o.args is not None else None
    values, offered = parse_settings(list(o.settings)), o.pipeline.offered()
    loaded = file.step(_required(o.mesh), args=given, settings=values, offered=offered)
    step = o.pipeline.applied_to(loaded.step)
    if check is not None:
        step = check(step, loaded.mesh) or step
    about = {"name": loaded.name, "source": loaded.source}
    return trace_step(step, loaded.mesh, **about, shared=shared, **lowered)
