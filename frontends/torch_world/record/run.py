"""Runs a program as one rank of a world that is not there, in this process, and records a step."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import pickle
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.modules.module import register_module_module_registration_hook
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from flint.errors import FlintError
from flint.frontends import torch_private
from flint.frontends.torch_private import (
    FakeTensorMode,
    forget_library,
    make_device,
    meta_kernels,
    new_fake_group,
    without_modes,
)
from flint.frontends.torch_world.device.chips import chip_properties
from flint.frontends.torch_world.device.cuda import make_device_module
from flint.frontends.torch_world.device.device import NAME, SHOWN, DeviceTimeline
from flint.frontends.torch_world.device.fakes import Fakes, KnownResults
from flint.frontends.torch_world.packages.package import packages
from flint.frontends.torch_world.program.cuda_kernels import shape_kernels
from flint.frontends.torch_world.program.operands import is_meeting
from flint.frontends.torch_world.program.states import States
from flint.frontends.torch_world.record.handover import Handover
from flint.frontends.torch_world.record.job import Job
from flint.frontends.torch_world.record.modules import ModulePaths
from flint.frontends.torch_world.record.phases import Phases, StepDone
from flint.frontends.torch_world.record.rank_questions import questions_of_program
from flint.frontends.torch_world.record.recorder import Recorder
from flint.frontends.torch_world.record.recording import Event, GroupInfo, Recording
from flint.frontends.torch_world.record.serving import condensed
from flint.frontends.torch_world.record.session import Session
from flint.frontends.torch_world.runtime.files import (
    CHECKPOINTS,
    CHECKPOINTS_MODULE,
    UnwrittenFiles,
)
from flint.frontends.torch_world.runtime.objects import Broadcasts, Objects
from flint.frontends.torch_world.runtime.patches import PIPELINE, PIPELINES, PRIVATE
from flint.frontends.torch_world.runtime.patching import (
    Function,
    Patches,
    after_import,
    check,
    installed,
)
from flint.frontends.torch_world.runtime.stand_ins import single_thread, stand_ins
from flint.frontends.torch_world.runtime.versions import check_version
from flint.frontends.torch_world.values.answers import Values
from flint.frontends.torch_world.values.hints import Surroundings
from flint.frontends.torch_world.values.packed import KNOWN_LIST
from flint.frontends.user_process import StepMissing, variables_set
from flint.frontends.user_program import LOCAL_RANK, run_program
from flint.io.kept_files import KeptFiles

# Operators that GPUs have a kernel for, and that PyTorch takes apart, or has no shapes for, on any
# other device.

#: Composite operators with kernels of their own for CPU and CUDA, of PyTorch 2.13, whose results
#: are like the first input.
_WHOLE = ("mish_backward", "native_channel_shuffle", "silu_backward")


@contextmanager
def operators_kept_whole() -> Iterator[None]:
    """Keep those operators whole on the virtual device, as they are on a GPU."""
    library = torch.library.Library("aten", "IMPL", "PrivateUse1")
    shapes = torch.library.Library("aten", "IMPL", "Meta")
    meta_kernels()  # PyTorch's own come first
    try:
        for name, results in shape_kernels().items():
            shapes.impl(name, results, allow_override=True)
        for name in _WHOLE:
            library.impl(name, _like_the_first)
        library.impl("_pack_padded_sequence_backward", _unpacked)
        library.impl("_fused_rms_norm", _rms_norm)
        library.impl("_fused_rms_norm_backward", _rms_norm_backward)
        yield
    finally:
        forget_library(library)
        forget_library(shapes)


def _like_the_first(tensor: torch.Tensor, *rest: object) -> torch.Tensor:
    """The result of an operator that is recorded but not computed."""
    return torch.empty_like(tensor)


def _unpacked(gradient: torch.Tensor, size: list[int], *rest: object) -> torch.Tensor:
    """The gradient of a sequence that was packed."""
    return gradient.new_empty(size)


def _rms_norm(x: torch.Tensor, normalized_shape: list[int], *rest: object) -> tuple[Any, Any]:
    """What the kernel writes: the result, and 1 / root mean square of each row, which CUDA keeps.

    The latter is not rounded to half precision.
    """
    rows = (*x.shape[: x.dim() - len(normalized_shape)], *(1 for _ in normalized_shape))
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    return x.new_empty(x.shape), x.new_empty(rows, dtype=wide)


def _rms_norm_backward(
    gradient: torch.Tensor,
    x: torch.Tensor,
    normalized_shape: list[int],
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    wanted: tuple[bool, bool],
) -> tuple[Any, Any]:
    """Gradients of the input and of the weight, where they are wanted."""
    of_input = x.new_empty(x.shape) if wanted[0] else None
    return of_input, weight.new_empty(weight.shape) if wanted[1] and weight is not None else None


# DeepSpeed's own kernels, which it compiles where the program runs: the recorded stand-ins.

DEEPSPEED = Patches()
BUILDERS = "deepspeed.ops.op_builder.builder"
#: Its extensions, and those of Apex that have the same kernels under the same names.
_ALIKE = {"fused_adam": "amp_C"}


@DEEPSPEED.replaces(f"{BUILDERS}:OpBuilder.load")
def load(session: Session, original: Function) -> Function:
    """There is no compiler of CUDA here; kernels without a stand-in ask for it, and fail by name."""

    def loaded(builder: Any, verbose: bool = True) -> Any:
        package = packages().get(_ALIKE.get(builder.name, ""))
        if package is None:
            return original(builder, verbose)
        return SimpleNamespace(**package.names(package.name))

    return loaded


#: Replaced when the program imports the module.
_LATE = ((PIPELINES, PIPELINE), (CHECKPOINTS_MODULE, CHECKPOINTS), (BUILDERS, DEEPSPEED))


def run(job: Job, known: KnownResults | None = None) -> Recording:
    """Run the job's program and return what its rank did in the recorded step; `known` grows.

    The process is changed for good: it has a device named `flint`. Raises FlintError FL231, FL232,
    FL233, FL234, FL235; what the program raises goes through.
    """
    warning = check_version()
    torch_private.check(recording=True)
    check(PRIVATE.all)
    timeline = DeviceTimeline(job.local_rank)
    session = _session(job, timeline)
    _make_device(session, job)
    if warning:
        session.warnings[warning] = None
    recorder = Recorder(session)
    states = States(recorder, session.modules, session.device_meshes)
    _connect(session, recorder, states, job, Fakes(session.fake_mode, known=known))
    kept = KeptFiles(session.warnings.setdefault, job.began)
    session.files = UnwrittenFiles(session.warnings.setdefault, kept)
    with variables_set(_environment(job)), kept.guarded(), _world(session, recorder):
        _until_done(session, lambda: _program(job))
        return _recording(job, session, recorder, states)


def _session(job: Job, timeline: DeviceTimeline) -> Session:
    handover = Handover(job.known)
    session = Session(
        rank=job.rank,
        world_size=job.world_size,
        node=job.node,
        timeline=timeline,
        modules=ModulePaths(),
        phases=Phases(job.steps),
        fake_mode=FakeTensorMode(allow_non_fake_inputs=True),
        handover=handover,
        objects=Objects(handover),
    )
    return session


def _connect(session: Session, recorder: Recorder, states: States, job: Job, fakes: Fakes) -> None:
    def start() -> None:
        recorder.restart()
        states.begin()

    session.phases.on_start = start
    on_device = session.modules.are_on_device
    session.phases.is_moved = lambda *m: all(map(_moves, recorder.events)) and on_device(*m)
    session.phases.on_call = recorder.called
    session.phases.on_end = recorder.mark_end
    session.phases.on_done = states.settle
    session.phases.on_optimizer = states.optimizer_steps
    session.on_work = recorder.waited
    session.on_meeting = recorder.meets
    session.on_message = recorder.will_move
    session.values = Values(
        job.hints,
        Surroundings(
            place=recorder.place,
            module=lambda: session.modules.current,
            without_modes=without_modes,
            group_position=recorder.groups.position,
            call=fakes.call,
            on_host=lambda tensor: tensor.device.type == "cpu",
            sent=Broadcasts(session.handover, recorder.groups.members, session.rank).sent,
        ),
    )
    KNOWN_LIST.set(session.values.known_list)


def _moves(event: Event) -> bool:
    """Whether an event may bring a model to the device, or to another type."""
    return not event.module and (not event.inputs or event.op.startswith("aten._to_copy"))


def _make_device(session: Session, job: Job) -> None:
    count, chip = min(job.local_world_size, job.world_size), chip_properties(job.chip)
    if chip.assumed:
        session.warnings[chip.assumed] = None
    known = lambda tensor: session.values.known(tensor)
    warn = lambda sentence: session.warnings.setdefault(sentence)
    module = make_device_module(session.timeline, chip, count, known, warn)
    try:
        make_device(NAME, backend_module=module, device_guard=session.lost.guard())
    except RuntimeError as error:
        raise FlintError(
            "FL236",
            f"the virtual device cannot be made: {str(error).splitlines()[0]}",
            help="do not import torchax or another PyTorch backend where the program is captured",
        ) from error
    dist.Backend.register_backend(
        NAME, new_fake_group(), extended_api=True, devices=["cpu", "cuda", "hpu", "xpu", NAME]
    )


@contextlib.contextmanager
def _world(session: Session, recorder: Recorder) -> Iterator[None]:
    """Everything that makes PyTorch believe in the world, undone afterwards."""
    phases, modules = session.phases, session.modules
    with contextlib.ExitStack() as stack:
        stack.callback(_leave_world)
        stack.enter_context(installed([*PRIVATE.all, *stand_ins()], session))
        for module, patches in _LATE:
            late = functools.partial(_patch, patches, stack, session)
            stack.enter_context(after_import(module, late))
        stack.enter_context(session.autocast.registered())
        torch.set_autocast_dtype(SHOWN, torch.float16)  # as CUDA's
        stack.enter_context(operators_kept_whole())
        stack.enter_context(single_thread())
        before = register_optimizer_step_pre_hook(lambda o, *_: phases.optimizer_starts(o))
        stack.callback(before.remove)
        after = register_optimizer_step_post_hook(lambda o, *_: phases.optimizer_ends(o))
        stack.callback(after.remove)
        adopted = register_module_module_registration_hook(
            lambda parent, name, child: modules.adopted(parent, name, child)
        )
        stack.callback(adopted.remove)
        stack.enter_context(session.fake_mode)
        stack.enter_context(recorder)
        yield


def _patch(patches: Patches, stack: contextlib.ExitStack, session: Session) -> None:
    check(patches.all)
    stack.enter_context(installed(patches.all, session))


def _leave_world() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _environment(job: Job) -> dict[str, object]:
    """What torchrun tells a program."""
    local = min(job.local_world_size, job.world_size)
    return {
        "RANK": job.rank,
        "WORLD_SIZE": job.world_size,
        "LOCAL_RANK": job.local_rank,
        "LOCAL_WORLD_SIZE": local,
        "GROUP_RANK": job.node,
        "GROUP_WORLD_SIZE": -(-job.world_size // local),
        "NODE_RANK": job.node,
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": 29500,
        "TORCHELASTIC_RUN_ID": "flint",
        "HF_DEACTIVATE_ASYNC_LOAD": 1,  # fake tensors belong to the thread that made them
    }


# --- the program ----------------------------------------------------------------------------------


def _until_done(session: Session, program: Callable[[], None]) -> None:
    """Run to the end of the recorded step. Raises FL231 if the program ends before."""
    phases = session.phases
    try:
        program()
        phases.settle()
    except StepDone:
        return
    except SystemExit as exit_:
        if exit_.code not in (None, 0):
            raise
        with contextlib.suppress(StepDone):
            phases.settle()
    if phases.steps == 0 or phases.done_steps >= phases.steps:
        return
    help_ = (
        "let it train longer, or choose an earlier step with --steps; --steps 0 records "
        "everything from the first module that runs, as inference needs"
    )
    if "jax" in sys.modules:
        help_ = (
            "if its step is JAX's, import jax in the script, so that Flint runs it as a JAX script"
        )
    raise StepMissing(
        f"the program ended after {phases.done_steps} optimizer steps, so step {phases.steps}, "
        "which is to be recorded, never came",
        help_,
        phases.done_steps,
    )


def _program(job: Job) -> None:
    if job.script:
        argv = [word.replace(LOCAL_RANK, str(job.local_rank)) for word in job.argv]
        run_program(Path(job.script), job.module, argv)
    elif job.function:
        function = _import(job.function)
        args, kwargs = _Arguments(job.arguments, function.__module__).load()
        function(*args, **kwargs)
    else:
        assert job.call is not None, "a job is a script, a function that has a name, or a call"
        job.call()


class _Arguments(pickle.Unpickler):
    """Arguments of a function. Its model file is imported here under another name than there."""

    def __init__(self, pickled: bytes, home: str) -> None:
        super().__init__(io.BytesIO(pickled))
        self._home = home

    def find_class(self, module: str, name: str) -> Any:
        try:
            return super().find_class(module, name)
        except ModuleNotFoundError:
            return super().find_class(self._home, name)


def _import(reference: str) -> Callable[..., object]:
    where, _, name = reference.rpartition(":")
    found: Any = _load(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    for part in name.split("."):
        found = getattr(found, part)
    function: Callable[..., object] = found
    return function


def _load(file: Path) -> types.ModuleType:
    sys.path.insert(0, str(file.resolve().parent))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


# --- the recording --------------------------------------------------------------------------------


def _recording(job: Job, session: Session, recorder: Recorder, states: States) -> Recording:
    events = recorder.events[: recorder.end] if job.steps else recorder.events
    if not session.phases.recording:
        raise FlintError(
            "FL235",
            "the program called no torch.nn.Module, and what is recorded begins with the first one",
            help="put what is to be recorded into the forward() of a module, and call that",
        )
    if all(map(is_meeting, events)):
        raise FlintError(
            "FL235",
            "nothing ran on an accelerator in the recorded step: the model is on the CPU",
            help='move it to the device that the program would train on: model.to("cuda")',
        )
    if job.steps and session.phases.apart:
        session.warnings.setdefault(
            "optimizers step apart, with modules running between them: the recorded step is that of the "
            "last alone; --steps 0 records all of the program"
        )
    with without_modes():
        storages = states.named
        groups = {
            name: GroupInfo(
                str(group.group_desc),
                tuple(dist.get_process_group_ranks(group)),
                session.copies.get(name, 0),
            )
            for name, group in recorder.groups.seen.items()
        }
    recording = Recording(
        rank=job.rank,
        world_size=job.world_size,
        events=tuple(events),
        streams=tuple(stream.name for stream in session.timeline.streams),
        storages=storages,
        meshes=states.meshes(),
        groups=groups,
        world_groups=tuple(session.world_groups),
        warnings=(*session.warnings, *session.values.warnings),
        found=session.handover.found,
        assumed=session.handover.assumed,
        asks=questions_of_program(job),
        shares=tuple(session.values.shares),
        freed=recorder.storages.freed_in(len(events)),
        older=recorder.storages.older(events),
        leaving=recorder.storages.leaving(events),
    )
    return recording if job.steps else condensed(recording, recorder.calls, job.part)
