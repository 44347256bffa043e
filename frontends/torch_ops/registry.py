"""The table of PyTorch operators: from the name of an overload to a function on JAX arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from flint.ir.op_class import OpClass
from flint.passes.work.declared import CostFunction, Declaration, declare_kernel

F = TypeVar("F", bound=Callable[..., Any])

_TABLE: dict[str, Callable[..., Any]] = {}


def torch_op(
    *names: str, op_class: OpClass | None = None, flops: CostFunction | None = None
) -> Callable[[F], F]:
    """Register what operators compute: `@flint.torch_op("mylib::scale")`.

    `names` are those that PyTorch prints (`aten::add.Tensor`); without an overload, `default` is
    meant. The function gets the operator's arguments: tensors as JAX arrays, everything else
    (numbers, lists, `torch.dtype`, None) as PyTorch passes it, by position or keyword. It returns
    one array, or a tuple for operators of several results, of the shapes and types that PyTorch
    gives them. A later registration of a name replaces the earlier one.

    An exported program is counted from what the function does. A recorded one (`--world`) sees the
    operator alone: `op_class` and `flops` say what it costs there, as `flint.cost_of` does. A class
    that is element by element (one operation for each element), a copy or a reduction is enough.

    Raises FlintError FL709 for a class whose price needs more than sizes.
    """

    def register(function: F) -> F:
        for name in names:
            _TABLE[_full(name)] = function
            if op_class is not None or flops is not None:
                declaration = Declaration(op_class or OpClass.DECLARED, flops)
                declare_kernel(without_overload(name), declaration)
        return function

    return register


def register_all(functions: Mapping[str, Callable[..., Any]]) -> None:
    """Register functions of ATen's operators; a key lists names of overloads (`add.Tensor`)."""
    for names, function in functions.items():
        torch_op(*(f"aten::{name}" for name in names.split()))(function)


def find_op(name: str) -> Callable[..., Any] | None:
    """What is registered for `aten::add.Tensor`, or None."""
    return _TABLE.get(_full(name))


def known_ops() -> tuple[str, ...]:
    """Names of all registered overloads, sorted."""
    return tuple(sorted(_TABLE))


def without_overload(name: str) -> str:
    """`aten::add` for `aten::add.Tensor`."""
    space, separator, rest = name.rpartition("::")
    return f"{space}{separator}{rest.split('.')[0]}"


def _full(name: str) -> str:
    space, separator, rest = name.rpartition("::")
    return f"{space}{separator}{rest if '.' in rest else rest + '.default'}"
