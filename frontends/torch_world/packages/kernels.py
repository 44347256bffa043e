"""Kernels of packages that are not installed: operators with shapes and work, and nothing more.

An operator is defined once for a process, under the name that reports show (`te::gemm`). Its fake
kernel gives shapes and types of results; its cost is exact, from these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from flint.ir.dims import DeclaredDims
from flint.ir.op_class import OpClass
from flint.passes.tensors import dtype_name
from flint.passes.work.declared import KernelCall
from flint.passes.work.work import Work

Cost = Callable[[KernelCall], Work]
_LIBRARIES: dict[str, torch.library.Library] = {}


class Works(Protocol):
    """What tells the work of one call of an operator."""

    def work(self, name: str, call: KernelCall) -> Work:
        """The work of a call of the operator `name`."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """What is known of a stand-in's operator."""

    cost: Cost

    def work(self, name: str, call: KernelCall) -> Work:
        """The work of one call."""
        return self.cost(call)


#: Kernels by the name of their operator.
KERNELS: dict[str, Kernel] = {}


def kernel(name: str, signature: str, cost: Cost) -> Callable[[Callable[..., Any]], Any]:
    """Define the operator `name` (`te::gemm`) of a signature; decorates its fake kernel.

    One that does not read what it writes to has the overload `out` (`amp_C::scale.out`).
    """

    def define(fake: Callable[..., Any]) -> Any:
        namespace, _, base = name.partition("::")
        if namespace not in _LIBRARIES:
            _LIBRARIES[namespace] = torch.library.Library(namespace, "FRAGMENT")
        library = _LIBRARIES[namespace]
        library.define(base + signature)
        torch.library.register_fake(name, fake, lib=library)
        plain, _, overload = base.partition(".")
        KERNELS[f"{namespace}::{plain}"] = Kernel(cost)
        found = getattr(getattr(torch.ops, namespace), plain)
        return getattr(found, overload) if overload else found

    return define


def calculation(flops: int, *, functions: int = 0, moved_bytes: int | None = None) -> Work:
    """A kernel of FLOPs, transcendental functions and bytes: all operands and results once.

    `moved_bytes` are the bytes that it reads, where these are not all of its operands.
    """
    dims = DeclaredDims(max(functions, 1)).row
    return Work(op=OpClass.DECLARED, flops=flops, dims=dims, operand_bytes=moved_bytes)


def per_element(flops: int, functions: int = 0, *, of_result: bool = True) -> Cost:
    """The cost of a kernel that takes so many operations for each element of its first array."""

    def cost(call: KernelCall) -> Work:
        arrays = call.results if of_result and call.results else call.operands
        elements = arrays[0].num_elements if arrays else 0
        return calculation(flops * elements, functions=functions * elements)

    return cost


def copies(call: KernelCall) -> Work:
    """The cost of a kernel that only moves: each result is read once where it comes from."""
    written = sum(r.num_bytes for r in call.results)
    read = sum(o.num_bytes for o in call.operands)
    return calculation(0, moved_bytes=min(read, written) if written else read)


def rows_of(tensor: torch.Tensor) -> torch.Tensor:
    """A view of a tensor as rows of its last dimension."""
    return tensor.reshape(-1, tensor.shape[-1])


def type_of(tensor: torch.Tensor) -> str:
    """numpy's name of a tensor's type."""
    return dtype_name(str(tensor.dtype).removeprefix("torch."))


def product_of(sizes: Sequence[int]) -> int:
    """The elements of a shape."""
    return math.prod(sizes)
