"""Recurrent networks, packed sequences, CTC and searches, as PyTorch runs them on CUDA.

PyTorch asks in C++ whether a tensor is CUDA's, and takes another way on the virtual device; and it
reads lengths in C++, where they have no values.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from flint.frontends.torch_world.record.session import Session
from flint.frontends.torch_world.runtime.patching import Function, Patches

RECURRENT = Patches()
_VF = "torch._VF"
#: cuDNN's numbers of its modes, by the name of PyTorch's function.
_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}


@dataclass(frozen=True)
class _Call:
    """The arguments of one network. `sizes` are those of the steps of packed sequences, else ()."""

    x: Any
    sizes: Sequence[int]
    states: Sequence[Any]
    weights: Sequence[Any]
    has_biases: bool
    layers: int
    dropout: float
    train: bool
    both: bool
    batch_first: bool


@RECURRENT.replaces("torch.backends.cudnn:is_acceptable", adds=True)
def is_acceptable(session: Session, original: object) -> Function:
    """A build without cuDNN accepts nothing."""
    types = (torch.float16, torch.float32, torch.float64)

    def accepts(tensor: torch.Tensor) -> bool:
        return torch.backends.cudnn.enabled and tensor.is_cuda and tensor.dtype in types

    return accepts


def _network(name: str) -> None:
    @RECURRENT.replaces(f"{_VF}:{name}", adds=True)
    @RECURRENT.replaces(f"torch:{name}")
    def network(session: Session, original: Function) -> Function:
        """CUDA has all layers and steps in one call of cuDNN, for the types that it accepts."""

        @functools.wraps(original)
        def run(*args: Any) -> Any:
            if not torch.backends.cudnn.is_acceptable(args[0]) or not args[0].numel():
                return original(*args)
            call = _call(args, session.values.tolist)
            if torch.is_autocast_enabled("cuda"):
                call = _in_half(call, session.autocast.cast)
            return _cudnn(_MODES[name], call)

        return run


for _name in _MODES:
    _network(_name)


@RECURRENT.replaces("torch.nn.modules.rnn:_rnn_impls")
def implementations(session: Session, original: dict[str, Any]) -> dict[str, Any]:
    """The names under which `nn.RNN` found them when it was imported."""
    return {name: getattr(torch, name.lower()) for name in original}


def _call(args: Sequence[Any], numbers: Callable[[Any], Any]) -> _Call:
    """Packed sequences come with the number of sequences of every step behind the data."""
    lists, rest, sizes = (list, tuple), args[1:], ()
    if isinstance(args[1], torch.Tensor) and not isinstance(args[3], bool):
        sizes, rest = numbers(args[1]), args[2:]
    states, weights, *options = rest
    states = states if isinstance(states, lists) else [states]
    return _Call(args[0], sizes, states, weights, *options[:5], *(options[5:] or [False]))


def _in_half(call: _Call, cast: Callable[[Any, torch.dtype], Any]) -> _Call:
    """Autocast runs cuDNN's networks in float16, whatever type it is set to."""
    x, states, weights = (cast(t, torch.float16) for t in (call.x, call.states, call.weights))
    return replace(call, x=x, states=states, weights=weights)


def _cudnn(mode: int, call: _Call) -> tuple[Any, ...]:
    """Weights are taken to lie in one buffer, as `flatten_parameters` puts them on CUDA."""
    hidden = call.states[-1].shape[-1]  # that of the cell, where the output is projected
    size = call.states[0].shape[-1]
    projected = size if len(call.states) > 1 and size != hidden else 0
    each = len(call.weights) // (call.layers * (2 if call.both else 1))
    cell = call.states[1] if len(call.states) > 1 else None
    found = torch.ops.aten._cudnn_rnn(
        call.x, call.weights, each, None, call.states[0], cell, mode, hidden, projected,
        call.layers, call.batch_first, call.dropout, call.train, call.both, call.sizes, None,
    )  # fmt: skip
    return tuple(found[: 1 + len(call.states)])


@RECURRENT.replaces("torch:_weight_norm")
def weight_norm(session: Session, original: Function) -> Function:
    """CUDA has one kernel for norms over all but the first or the last dimension."""

    @functools.wraps(original)
    def normalised(v: Any, g: Any, dim: int = 0) -> Any:
        if v.is_cuda and dim in (0, v.dim() - 1):
            return torch.ops.aten._weight_norm_interface(v, g, dim)[0]
        return original(v, g, dim)

    return normalised


# --- lengths --------------------------------------------------------------------------------------


@RECURRENT.replaces(f"{_VF}:_pad_packed_sequence", adds=True)
@RECURRENT.replaces("torch:_pad_packed_sequence")
def pad_packed(session: Session, original: object) -> Function:
    """One copy for each run of steps that have the same number of sequences."""

    def pad(
        data: Any, sizes: Any, batch_first: bool, padding: float, total_length: int = 0
    ) -> tuple[Any, Any]:
        steps: list[int] = session.values.tolist(sizes)
        longest = max(total_length, len(steps))
        out = data.new_full((longest, steps[0], *data.shape[1:]), padding)
        row = first = 0
        for end in range(1, len(steps) + 1):
            if end < len(steps) and steps[end] == steps[first]:
                continue
            count = (end - first) * steps[first]
            rows = data[row : row + count].view(end - first, steps[first], *data.shape[1:])
            out[first:end, : steps[first]].copy_(rows)
            row, first = row + count, end
        lengths = [sum(size > index for size in steps) for index in range(steps[0])]
        return out.transpose(0, 1) if batch_first else out, torch.tensor(lengths)

    return pad


@RECURRENT.replaces("torch:ctc_loss")
def ctc_loss(session: Session, original: Function) -> Function:
    """The host reads the lengths, and makes a tensor of them in C++."""

    def numbers(given: Any) -> Any:
        return session.values.tolist(given) if isinstance(given, torch.Tensor) else given

    @functools.wraps(original)
    def loss(
        scores: Any,
        targets: Any,
        input_lengths: Any,
        target_lengths: Any,
        blank: int = 0,
        reduction: int = _MEAN,
        zero_infinity: bool = False,
    ) -> Any:
        sizes = numbers(target_lengths)
        each = original(scores, targets, numbers(input_lengths), sizes, blank, 0, zero_infinity)
        if reduction == _MEAN:
            counts = torch.tensor(sizes, dtype=each.dtype).to(each.device)
            return (each / counts.clamp_min(1)).mean()
        return each.sum() if reduction else each

    return loss


_MEAN = 1  # PyTorch's number of this reduction; 0 is none, 2 the sum

# --- what depends on data -------------------------------------------------------------------------


@RECURRENT.replaces("torch.nn.modules._functions:SyncBatchNorm.forward")
def rows_everywhere(session: Session, original: Function) -> object:
    """It drops the statistics of ranks that have no rows: none has none."""

    def forward(*args: Any) -> Any:
        with session.values.assuming(lambda name, args: name == "ge" or None):
            return original(*args)

    return staticmethod(forward)


@RECURRENT.replaces("torch.optim:LBFGS.step", parameters=("self", "closure"))
def lbfgs(session: Session, original: Function) -> Function:
    """It asks after each iteration whether it may stop: it makes all, with one evaluation each."""

    @functools.wraps(original)
    def step(optimizer: torch.optim.LBFGS, closure: Callable[[], Any]) -> Any:
        session.warnings.setdefault(
            "LBFGS runs all of its iterations, with one evaluation each, because data decides when it stops"
        )
        evaluations = itertools.count(1)

        def falling() -> Any:
            loss = closure()
            if isinstance(loss, torch.Tensor):
                session.values.set_number(loss, 1.0 / next(evaluations))
            return loss

        with session.values.assuming(_descends):
            return original(optimizer, falling)

    return step


def _descends(name: str, args: Sequence[Any]) -> bool | None:
    """What a comparison finds while a search makes progress.

    Gradients and steps are not below their tolerance, curvature is positive, the direction goes
    down, and the first step of a line search fulfils Wolfe's conditions.
    """
    if name in ("le", "lt"):
        return isinstance(args[1], torch.Tensor)
    if name in ("gt", "ge"):
        return not isinstance(args[1], torch.Tensor) and args[1] > 0
    return None
