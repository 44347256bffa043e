"""Kernels that a program names with scopes: written by hand, and run as they are."""

from __future__ import annotations

import numpy as np

from flint.ir.program import Int64s, Program

#: A scope whose name begins so is one kernel, such as `jax.named_scope("kernel.softmax")`.
PREFIX = "kernel."


def named_kernels(program: Program, honoured: bool = True) -> Int64s:
    """For each row, a number of the named kernel that it is part of; 0 for none.

    Rows of one phase and one scope up to `kernel.NAME` have one number. Not `honoured`: none has.
    """
    names = [_kernel(text) for text in program.strings]
    if not honoured or not any(names):
        return np.zeros(len(program), dtype=np.int64)
    table = {name: 1 + i for i, name in enumerate(dict.fromkeys(filter(None, names)))}
    number = np.array([table.get(name, 0) for name in names], dtype=np.int64)[program.scope]
    return np.where(number, number * 16 + program.phase, 0)


def _kernel(scope: str) -> str:
    parts = scope.split("/")
    for at, part in enumerate(parts):
        if part.startswith(PREFIX):
            return "/".join(parts[: at + 1])
    return ""
