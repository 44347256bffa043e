"""Flint's own operators, that stand in traced graphs for what PyTorch would take apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class WholeOperator:
    """An operator `flint::NAME` of PyTorch; what it computes stands in the table, in JAX."""

    name: str
    #: Arguments and results, as PyTorch's schemas have them.
    schema: str
    #: Makes results without values.
    fake: Callable[..., Any]
    #: What autograd calls, and what keeps for it.
    gradients: Callable[..., Any] | None = None
    save: Callable[..., None] | None = None


def define(*operators: WholeOperator) -> None:
    """Define operators, once in a process even if a module is loaded again."""
    for op in operators:
        if hasattr(torch.ops.flint, op.name):
            continue
        name = f"flint::{op.name}"
        torch.library.define(name, op.schema)
        torch.library.register_fake(name, op.fake)
        if op.gradients is not None:
            torch.library.register_autograd(name, op.gradients, setup_context=op.save)
