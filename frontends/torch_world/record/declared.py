"""The work that a program declares for operators of its own, computed where they run.

`flint.cost_of` and `flint.torch_op` come first, whatever Flint knows of the operator itself; then
Flint's own rules; then formulas of `torch.utils.flop_counter.register_flop_formula`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.utils.flop_counter import flop_registry

from flint.frontends.torch_ops.table import load_table
from flint.frontends.torch_private import OpOverload, schema_of
from flint.frontends.torch_world.program.work import is_known
from flint.frontends.torch_world.record.recording import TensorInfo
from flint.passes.extract.tensors import dtype_name
from flint.passes.work.declared import (
    ArrayType,
    Declaration,
    KernelCall,
    declaration_of,
    work_of_numbers,
)
from flint.passes.work.work import Work


class DeclaredWork:
    """What is declared for the operators of one program, looked up once for each."""

    def __init__(self) -> None:
        self._declarations: dict[OpOverload, Declaration | None] = {}

    def of(
        self,
        func: OpOverload,
        inputs: Sequence[TensorInfo],
        outputs: Sequence[TensorInfo],
        attributes: Mapping[str, Any],
        call: Callable[[Callable[..., Any]], Any],
    ) -> Work | None:
        """The declared work of one call, or None.

        `call` gives a formula of PyTorch's the arguments and results as they are.
        Raises FlintError FL709 if what is declared gives no numbers.
        """
        if func not in self._declarations:
            self._declarations[func] = _declaration(func)
        declaration = self._declarations[func]
        if declaration is not None:
            kernel = KernelCall(_types(inputs), _types(outputs), attributes)
            return declaration.work(schema_of(func).name, kernel)
        formula = flop_registry.get(func.overloadpacket)
        if formula is None or is_known(str(func)):
            return None
        return work_of_numbers({"flops": int(call(formula))}, ())


def _declaration(func: OpOverload) -> Declaration | None:
    name = schema_of(func).name
    if declaration_of(name) is None and not is_known(str(func)):
        load_table()  # operators of Flint's own table say there what they cost
    return declaration_of(name)


def _types(tensors: Sequence[TensorInfo]) -> tuple[ArrayType, ...]:
    return tuple(ArrayType(t.shape, dtype_name(t.dtype), t.num_bytes) for t in tensors)
