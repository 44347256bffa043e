"""Parameters and buffers that get their shape when a module first runs (`nn.LazyLinear`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from flint.frontends.torch_private import FakeTensor, mark_as_buffer, mark_as_parameter
from flint.frontends.torch_world.record.session import Session
from flint.frontends.torch_world.runtime.patching import Function, Patches

LAZY = Patches()
#: What says that a tensor is a parameter or a buffer.
_MARKS = ("_is_param", "_is_buffer", "persistent")
_MOVES = ("half", "float", "double", "char", "short", "int", "long", "cuda", "cpu", "to")
#: What may be asked of them, by name: what takes the place of PyTorch's methods has the same names.
_ALLOWED = frozenset(
    ("__hash__", "size", "copy_", "is_complex", "is_floating_point", "get_device")
    + ("_has_compatible_shallow_copy_type", *_MOVES)
)


class _Allowing:
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name not in _ALLOWED and func.__class__.__name__ != "method-wrapper":
            raise ValueError(
                f"Attempted to use an uninitialized parameter in {name}. Call the module with a "
                "batch first, which gives its parameters their shapes"
            )
        with _as_fake_tensors([arg for arg in args if isinstance(arg, _Allowing)]):
            made = func(*args, **(kwargs or {}))
            if name in _MOVES and all(made is not arg for arg in args):
                vars(made).update({k: v for k, v in vars(args[0]).items() if k in _MARKS})
                made.__class__ = cls
        return made


@contextmanager
def _as_fake_tensors(lazy: list[Any]) -> Iterator[None]:
    """Inside they are what fake mode knows: tensors without elements."""
    kinds = [type(tensor) for tensor in lazy]
    for tensor in lazy:
        tensor.__class__ = FakeTensor
    try:
        yield
    finally:
        for tensor, kind in zip(lazy, kinds, strict=True):
            tensor.__class__ = kind


class LazyParameter(_Allowing, UninitializedParameter, FakeTensor):
    """A fake tensor that is a parameter without a shape."""

    cls_to_become = FakeTensor


class LazyBuffer(_Allowing, UninitializedBuffer, FakeTensor):
    """A fake tensor that is a buffer without a shape."""

    cls_to_become = FakeTensor


@LAZY.replaces("torch.nn.parameter:UninitializedParameter.__new__")
def parameter(session: Session, original: object) -> object:
    """An object of PyTorch's class cannot be made of a fake tensor; one of its class can be changed."""

    def new(cls: type, requires_grad: bool = True, device: Any = None, dtype: Any = None) -> Any:
        made: Any = torch.empty(0, device=device, dtype=dtype).requires_grad_(requires_grad)
        mark_as_parameter(made)
        made.__class__ = LazyParameter
        return made

    return staticmethod(new)


@LAZY.replaces("torch.nn.parameter:UninitializedBuffer.__new__")
def buffer(session: Session, original: object) -> Function:
    """As above."""

    def new(
        cls: type,
        requires_grad: bool = False,
        device: Any = None,
        dtype: Any = None,
        persistent: bool = True,
    ) -> Any:
        made: Any = torch.empty(0, device=device, dtype=dtype).requires_grad_(requires_grad)
        mark_as_buffer(made, persistent=persistent)
        made.__class__ = LazyBuffer
        return made

    return staticmethod(new)
