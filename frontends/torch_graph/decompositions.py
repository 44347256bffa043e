"""Which operators of PyTorch are taken apart before the table of operators is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from flint.frontends.torch_ops.registry import find_op
from flint.frontends.torch_ops.table import load_table
from flint.frontends.torch_private import OpOverload, core_decompositions

#: Whole in the steps of optimizers, which are made of them; taken apart in a model.
_WHOLE_IN_STEPS = frozenset({"aten::addcdiv", "aten::addcmul", "aten::lerp"})


def decompositions(of_step: bool = False) -> dict[Any, Callable[..., Any]]:
    """PyTorch's core decompositions of all operators that the table does not know.

    What is registered, by Flint or by the user, stays whole: so it is reached. `of_step` is for
    the step of an optimizer.
    """
    load_table()
    return {
        op: rule
        for op, rule in _core().items()
        if not (isinstance(op, OpOverload) and _stays_whole(op, of_step))
    }


@cache
def _core() -> Mapping[Any, Callable[..., Any]]:
    return dict(core_decompositions())


def _stays_whole(op: OpOverload, of_step: bool) -> bool:
    name = op.name()
    return find_op(name) is not None and (of_step or name.split(".")[0] not in _WHOLE_IN_STEPS)
