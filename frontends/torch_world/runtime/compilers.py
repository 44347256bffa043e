"""`torch.compile` and CUDA graphs: what a program compiles is recorded as it is written, and marked.

A profile then makes Inductor's kernels of what was marked (`Program.compiled`). Nothing is
compiled: operators would be gone before anyone has seen them.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from flint.frontends.torch_private import compiled_module, note_compiled
from flint.frontends.torch_world.record.compiled import CompiledCalls
from flint.frontends.torch_world.record.session import Session
from flint.frontends.torch_world.runtime.patching import Function, Patches

COMPILERS = Patches()
#: Modes of `torch.compile` that put its kernels into CUDA graphs.
_REPLAYING_MODES = ("reduce-overhead", "max-autotune")
#: Backends that run operators as they are.
_NOT_FUSING = ("eager", "aot_eager", "aot_eager_decomp_partition", "cudagraphs")
_CONTROL = "torch._higher_order_ops"
_FSDP = "torch.distributed.fsdp._fully_shard"


@dataclass(frozen=True)
class _Settings:
    """What a call of `torch.compile` asks for."""

    fuses: bool
    replays: bool

    @classmethod
    def of(
        cls, backend: object, mode: str | None, options: Mapping[str, object] | None
    ) -> _Settings:
        """Settings from the arguments of `torch.compile`. A backend of one's own counts as Inductor."""
        graphs = bool((options or {}).get("triton.cudagraphs"))
        return cls(
            fuses=backend not in _NOT_FUSING,
            replays=graphs or mode in _REPLAYING_MODES or backend == "cudagraphs",
        )


@COMPILERS.replaces("torch:compile")
def compile_(session: Session, original: object) -> Function:
    """What a compiled function runs is marked as one call; it runs as it is written."""

    def compile_(
        model: Any = None,
        *,
        backend: object = None,
        mode: str | None = None,
        options: Mapping[str, object] | None = None,
        disable: bool = False,
        **kwargs: object,
    ) -> Any:
        settings = _Settings.of(backend, mode, options)
        if disable or _switched_off():
            settings = _Settings(False, False)
        if model is None:
            return lambda function: _compiled(session.compiled, settings, function)
        return _compiled(session.compiled, settings, model)

    return compile_


def _switched_off() -> bool:
    """Whether the program or its environment says that nothing is compiled."""
    config = sys.modules.get("torch._dynamo.config")
    names = ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")
    by_environment = any(os.environ.get(name) == "1" for name in names)
    return by_environment or bool(getattr(config, "disable", False))


def _compiled(calls: CompiledCalls, settings: _Settings, model: Any) -> Any:
    if not (settings.fuses or settings.replays):
        return model
    if isinstance(model, nn.Module):
        return compiled_module()(model, functools.partial(_marked, calls, settings))
    return _marked(calls, settings, model) if callable(model) else model


def _marked(calls: CompiledCalls, settings: _Settings, function: Function) -> Function:
    @functools.wraps(function)
    def run(*args: object, **kwargs: object) -> object:
        with calls.call(fuses=settings.fuses, replays=settings.replays):
            return function(*args, **kwargs)

    note_compiled(run, function)
    return run


@COMPILERS.replaces("torch.compiler:disable")
def compiler_disable(session: Session, original: Function) -> Function:
    """A function that the compiler omits of its graphs runs eagerly."""

    def disable(fn: Any = None, recursive: bool = True, *, reason: object = None) -> Any:
        if fn is None:
            return lambda function: disable(function, recursive)
        if isinstance(fn, nn.Module | type) or not callable(fn):
            return original(fn, recursive)
        return _left_out(session, fn)

    return disable


def _left_out(session: Session, function: Function) -> Function:
    @functools.wraps(function)
    def run(*args: object, **kwargs: object) -> object:
        with session.compiled.outside():
            return function(*args, **kwargs)

    return run


@COMPILERS.replaces(
    f"{_FSDP}._fsdp_state:FSDPState._pre_forward",
    f"{_FSDP}._fsdp_state:FSDPState._post_forward",
    f"{_FSDP}._fsdp_state:FSDPState._pre_backward",
    f"{_FSDP}._fsdp_state:FSDPState._root_post_backward_final_callback",
    f"{_FSDP}._fsdp_param_group:FSDPParamGroup.post_backward",
    parameters=("self",),
)
def fsdp_hook(session: Session, original: Function) -> Function:
    """The compiler breaks its graph at the hooks of FSDP, which run eagerly."""
    return _left_out(session, original)


@COMPILERS.replaces("torch.compiler:cudagraph_mark_step_begin")
def step_begin(session: Session, original: object) -> Function:
    """Tells Inductor's CUDA graphs, which are not there, that memory may be used again."""
    return lambda: None


@COMPILERS.replaces("torch.cuda:make_graphed_callables", "torch.cuda.graphs:make_graphed_callables")
def graphed(session: Session, original: object) -> Function:
    """What each callable runs, and its backward pass, is launched by the replay of a graph."""

    def make(callables: Any, sample_args: object = None, *args: object, **kwargs: object) -> Any:
        if isinstance(callables, tuple):
            return tuple(map(make, callables))
        if not isinstance(callables, nn.Module):
            return _replayed(session.compiled, callables)
        callables.forward = _replayed(session.compiled, callables.forward)
        return callables

    return make


def _replayed(calls: CompiledCalls, function: Callable[..., Any]) -> Callable[..., Any]:
    return _marked(calls, _Settings(fuses=False, replays=True), function)


# control flow -----------------------------------------------------------------------------------


@COMPILERS.replaces("torch:cond", "torch._higher_order_ops:cond", f"{_CONTROL}.cond:cond")
def cond(session: Session, original: object) -> Function:
    """One branch runs: the one that an `if` of the same number would take, hints included."""

    def run(pred: Any, true_fn: Function, false_fn: Function, operands: Any = ()) -> Any:
        return (true_fn if pred else false_fn)(*operands)

    return run


@COMPILERS.replaces(
    *("torch:while_loop", "torch._higher_order_ops:while_loop"), f"{_CONTROL}.while_loop:while_loop"
)
def while_loop(session: Session, original: object) -> Function:
    """As above: a `while`."""

    def run(cond_fn: Function, body_fn: Function, carried_inputs: Any) -> Any:
        carried = tuple(carried_inputs)
        while cond_fn(*carried):
            made = body_fn(*carried)
            carried = tuple(made) if isinstance(made, (tuple, list)) else (made,)
        return carried

    return run
