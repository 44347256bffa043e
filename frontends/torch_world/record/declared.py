"""The work that a program declares for operators of its own, computed where they run.

`flint.cost_of` and `flint.torch_op` come first, whatever Flint knows of the operator itself; then
Flint's own rules; then formulas of `torch.utils.flop_counter.register_flop_formula`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch.utils.flop_counter import flop_registry

from flint.frontends.torch_declared import by_formula, with_defaults
from flint.frontends.torch_ops.table import load_table
from flint.frontends.torch_private import OpOverload, schema_of
from flint.frontends.torch_world.packages.kernels import KERNELS, Works
from flint.frontends.torch_world.program.work import is_known
from flint.frontends.torch_world.record.recording import TensorInfo
from flint.passes.tensors import dtype_name
from flint.passes.work.declared import ArrayType, KernelCall, declaration_of
from flint.passes.work.work import Work

#: Arguments, keyword arguments and result of a call to what is declared of it.
_Declares = Callable[[Sequence[Any], Mapping[str, Any], object], Works]


class DeclaredWork:
    """What is declared for the operators of one program, looked up once for each."""

    def __init__(self) -> None:
        self._found: dict[OpOverload, _Declares | None] = {}

    def declares(self, func: OpOverload) -> _Declares | None:
        """What tells the declaration of a call of `func`; None if nothing is declared for it."""
        if func not in self._found:
            self._found[func] = _find(func)
        return self._found[func]


def work_of_call(
    func: OpOverload,
    declaration: Works,
    inputs: Sequence[TensorInfo],
    outputs: Sequence[TensorInfo],
    attributes: Mapping[str, Any],
) -> Work:
    """The declared work of one call. Raises FlintError FL709 if that gives no numbers."""
    given = with_defaults(func, attributes)
    call = KernelCall(_types(inputs), _types(outputs), given)
    return declaration.work(schema_of(func).name, call)


def _find(func: OpOverload) -> _Declares | None:
    name, known = schema_of(func).name, is_known(str(func))
    if declaration_of(name) is None and not known:
        load_table()  # operators of Flint's own table say there what they cost
    declared = declaration_of(name)
    if declared is not None:
        return lambda *_: declared
    own = KERNELS.get(name)
    if own is not None:
        return lambda *_: own
    formula = flop_registry.get(func.overloadpacket)
    return None if formula is None or known else partial(by_formula, formula)


def _types(tensors: Sequence[TensorInfo]) -> tuple[ArrayType, ...]:
    return tuple(ArrayType(t.shape, dtype_name(t.dtype), t.num_bytes) for t in tensors)
