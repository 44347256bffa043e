"""The table of PyTorch operators: from the name of an overload to a function on JAX arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_TABLE: dict[str, Callable[..., Any]] = {}


def torch_op(*names: str) -> Callable[[F], F]:
    """Register what operators compute: `@flint.torch_op("mylib::scale")`.

    `names` are those that PyTorch prints (`aten::add.Tensor`); without an overload, `default` is
    meant. The function gets the operator's arguments: tensors as JAX arrays, everything else
    (numbers, lists, `torch.dtype`, None) as PyTorch passes it, by position or keyword. It returns
    one array, or a tuple for operators of several results, of the shapes and types that PyTorch
    gives them. A later registration of a name replaces the earlier one.
    """

    def register(function: F) -> F:
        for name in names:
            _TABLE[_full(name)] = function
        return function

    return register


def find_op(name: str) -> Callable[..., Any] | None:
    """What is registered for `aten::add.Tensor`, or None."""
    return _TABLE.get(_full(name))


def known_ops() -> tuple[str, ...]:
    """Names of all registered overloads, sorted."""
    return tuple(sorted(_TABLE))


def _full(name: str) -> str:
    space, separator, rest = name.rpartition("::")
    return f"{space}{separator}{rest if '.' in rest else rest + '.default'}"
