"""What PyTorch programs say of their own operators, alike for recorded and exported ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flint.frontends.torch_private import OpOverload, schema_of
from flint.ir.op_class import OpClass
from flint.passes.work.declared import Declaration

#: Types of arguments that are no tensors and that any process can read.
PLAIN = (bool, int, float, str)
#: A formula of `torch.utils.flop_counter.register_flop_formula`.
FlopFormula = Callable[..., Any]


def plain_arguments(
    names: Iterable[str], args: Iterable[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Numbers and texts among the arguments of an operator, and lists of them, by name."""
    found: dict[str, Any] = {}
    for name, value in (*zip(names, args, strict=False), *kwargs.items()):
        if type(value) in PLAIN:
            found[name] = value
        elif isinstance(value, (list, tuple)) and value and all(type(v) in PLAIN for v in value):
            found[name] = list(value)
    return found


def with_defaults(func: OpOverload, given: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes of one call, and what an operator takes where its caller says nothing."""
    found = [a for a in schema_of(func).arguments if a.has_default_value()]
    return plain_arguments([a.name for a in found], [a.default_value for a in found], given)


def by_formula(
    formula: FlopFormula, args: Iterable[Any], kwargs: Mapping[str, Any], result: object
) -> Declaration:
    """A formula of PyTorch's on the arguments and results of one call, as its counter calls it."""
    return Declaration(OpClass.DECLARED, lambda _: formula(*args, **kwargs, out_val=result))
