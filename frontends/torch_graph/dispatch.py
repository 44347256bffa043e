"""A fault of PyTorch's tracing on meta tensors, worked around while a graph is traced.

Composite operators that also have a Python kernel for meta tensors (`nll_loss`, `where.Scalar`,
`prelu`, ...) take that kernel under the Python dispatcher, which autograd knows nothing about:
their gradients vanish. Made for torch 2.13, where `OpOverload.py_kernels` holds those kernels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

import torch

from flint.frontends.torch_private import (
    DispatchKey,
    cached_kernels,
    has_kernel,
    meta_kernels,
    names_of_operators,
)

if TYPE_CHECKING:
    from flint.frontends.torch_private import OpOverload


@contextmanager
def composites_decompose() -> Iterator[None]:
    """Hide the meta kernels of composite operators, so that their own decomposition is traced."""
    meta = DispatchKey.Meta
    hidden = {op: op.py_kernels.pop(meta) for op in _shadowed() if meta in op.py_kernels}
    _forget(hidden)
    try:
        yield
    finally:
        for op, kernel in hidden.items():
            op.py_kernels[meta] = kernel
        _forget(hidden)


def _forget(ops: Iterable[OpOverload]) -> None:
    for op in ops:
        cached_kernels(op).clear()


@cache
def _shadowed() -> tuple[OpOverload, ...]:
    """Composite operators whose decomposition is shadowed by a Python meta kernel."""
    meta_kernels()

    found = []
    for name in names_of_operators():
        if not name.startswith("aten::") or not has_kernel(name, "CompositeImplicitAutograd"):
            continue
        base, _, overload = name.removeprefix("aten::").partition(".")
        op = getattr(getattr(torch.ops.aten, base, None), overload or "default", None)
        if DispatchKey.Meta in getattr(op, "py_kernels", {}):
            found.append(op)
    return tuple(found)
