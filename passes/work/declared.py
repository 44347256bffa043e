"""Work that a program declares for its own kernels, which nothing can count from outside.

`@flint.cost_of` says what a kernel costs, wherever it is called: a PyTorch operator by its name
(`mylib::scan`), in recorded as in exported programs; a custom call of JAX (`jax.ffi.ffi_call`) by
its target. Beside it count what the frameworks have for this: `pl.CostEstimate` of Pallas kernels
and `torch.utils.flop_counter.register_flop_formula`.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from flint.errors import FlintError
from flint.ir.dims import DeclaredDims
from flint.ir.op_class import DATA_MOVEMENT, ELEMENTWISE, GENERATED, LAYOUT, REDUCTION, OpClass
from flint.passes.work import formulas
from flint.passes.work.work import Work

#: Classes that a kernel may be declared to be of: those whose price needs no more than sizes.
DECLARABLE = ELEMENTWISE | LAYOUT | DATA_MOVEMENT | GENERATED | REDUCTION | {OpClass.DECLARED}


@dataclass(frozen=True, slots=True)
class ArrayType:
    """An operand or a result on one device. `dtype` is numpy's name (`bfloat16`)."""

    shape: tuple[int, ...]
    dtype: str
    num_bytes: int

    @property
    def num_elements(self) -> int:
        """The product of the shape."""
        return math.prod(self.shape)

    @property
    def is_float(self) -> bool:
        """Whether the elements are floating-point numbers."""
        return self.dtype.startswith(("f", "bf"))


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One call of a kernel: its arrays, and what else it is given, by name (numbers, texts)."""

    operands: tuple[ArrayType, ...]
    results: tuple[ArrayType, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)


class CostEstimate(NamedTuple):
    """What one call of a kernel costs, in the fields of `jax.experimental.pallas.CostEstimate`.

    `flops` counts a multiply-add as 2; `bytes_accessed` is what is read and written, 0 for all
    operands and results once.
    """

    flops: int
    transcendentals: int = 0
    bytes_accessed: int = 0


#: Gives an estimate (Pallas' own will do), or the FLOPs alone.
CostFunction = Callable[[KernelCall], Any]
C = TypeVar("C", bound=CostFunction)
#: The frontend attribute of a call that has as JSON what the call was given by name, and in it Mosaic's name.
SAID, KERNEL_NAME = "flint.said", "kernel_name"


@dataclass(frozen=True, slots=True)
class Declaration:
    """What is declared of a kernel. Without `cost` its class tells the work."""

    op: OpClass
    cost: CostFunction | None = None

    def work(self, name: str, call: KernelCall) -> Work:
        """The work of one call. Raises FlintError FL709 if the function gives no numbers."""
        if self.cost is None:
            return _work_of_class(self.op, call)
        numbers = self._numbers(name, call)
        found = work_of_numbers(numbers, call.results)
        if self.op is OpClass.DECLARED or found.unpriced:
            return found
        known = _work_of_class(self.op, call)
        return replace(known, flops=found.flops, operand_bytes=found.operand_bytes)

    def _numbers(self, name: str, call: KernelCall) -> dict[str, int]:
        assert self.cost is not None
        try:
            given = self.cost(call)
        except Exception as error:
            raise FlintError(
                "FL709",
                f"the cost function declared for {name} raised {type(error).__name__}: {error}",
                help=f"it was called with {call}",
            ) from error
        numbers = numbers_of({"flops": given} if _is_number(given) else given)
        if numbers is None:
            raise FlintError(
                "FL709",
                f"the cost function declared for {name} returned {reprlib.repr(given)}",
                help="return FLOPs as a number, or flint.CostEstimate(flops=..., ...)",
            )
        return numbers


_DECLARED: dict[str, Declaration] = {}


def cost_of(*names: str, op_class: OpClass = OpClass.DECLARED) -> Callable[[C], C]:
    """Declare what kernels cost: `@flint.cost_of("mylib::scan", "my_ffi_target")`.

    `names` are PyTorch operators without an overload, or targets of custom calls. The function
    gets a `flint.KernelCall` and returns a `flint.CostEstimate`, or the FLOPs alone. `op_class`
    says what the kernel does, if it is element by element, a copy or a reduction: then it is
    priced, and fused, as such. A later declaration of a name replaces the earlier one.

    Raises FlintError FL709 for a class whose price needs more than sizes.
    """

    def declare(function: C) -> C:
        for name in names:
            declare_kernel(name, Declaration(op_class, function))
        return function

    return declare


def declare_kernel(name: str, declaration: Declaration) -> None:
    """Declare a kernel. Raises FlintError FL709 for a class that needs more than sizes."""
    if declaration.op not in DECLARABLE:
        raise FlintError(
            "FL709",
            f"{name} is declared as class {declaration.op.name}, whose price needs more than "
            "the sizes of its arrays",
            help="omit op_class and give the FLOPs, or use a class that is element-wise, a copy or a reduction",
        )
    _DECLARED[name] = declaration


def declaration_of(name: str) -> Declaration | None:
    """What is declared for a PyTorch operator (`mylib::scan`) or the target of a custom call."""
    return _DECLARED.get(name)


def declared_names() -> list[str]:
    """All kernels that are declared in this process, by name."""
    return sorted(_DECLARED)


def work_of_numbers(numbers: Mapping[str, int], results: Sequence[ArrayType]) -> Work:
    """The work of an estimate; unpriced for a kernel that talks to other devices.

    Its time is the network's.
    """
    if numbers.get(_REMOTE):
        return Work(unpriced=True)
    moved = numbers.get("bytes_accessed", 0)
    written = sum(r.num_bytes for r in results)
    return Work(
        op=OpClass.DECLARED,
        flops=numbers["flops"],
        dims=DeclaredDims(max(numbers.get("transcendentals", 0), 1)).row,
        operand_bytes=max(moved - written, 0) if moved else None,
    )


def declared_in(config: Mapping[str, Any]) -> tuple[object, Mapping[str, Any]]:
    """The estimate that a custom call carries in its configuration, and its attributes there."""
    inner, attributes = config.get("custom_call_config", config), config.get("attributes")
    estimate = inner.get("cost_estimate") if isinstance(inner, Mapping) else None
    return estimate, attributes if isinstance(attributes, Mapping) else {}


def numbers_of(estimate: object) -> dict[str, int] | None:
    """The fields of an estimate as whole numbers of zero or more; None if they say no flops.

    Negative flops say nothing; other negative numbers are omitted.
    """
    if not isinstance(estimate, Mapping):
        fields = {f: getattr(estimate, f, None) for f in _FIELDS}
        estimate = {f: value for f, value in fields.items() if value is not None}
    try:
        numbers = {key: int(value) for key, value in estimate.items()}
    except (TypeError, ValueError, OverflowError):
        return None
    known = {key: value for key, value in numbers.items() if value >= 0}
    return known if "flops" in known else None


#: A field of Pallas' estimates: bytes that the kernel itself moves between devices.
_REMOTE = "remote_bytes_transferred"
_FIELDS = ("flops", "transcendentals", "bytes_accessed", _REMOTE)


def _is_number(value: object) -> bool:
    return not hasattr(value, "flops") and hasattr(value, "__int__")


def _work_of_class(op: OpClass, call: KernelCall) -> Work:
    first = call.results[0].num_elements if call.results else 0
    if op in REDUCTION:
        read = call.operands[0].num_elements if call.operands else first
        return replace(formulas.reduction(read, first), op=op)
    found = formulas.by_class(op, first)
    return Work(op=op, unpriced=True) if found is None else replace(found, op=op)
