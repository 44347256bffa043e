"""One call of an operator as it is read, and what is found of it: tensors in, tensors out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from flint.frontends.torch_world.record.recording import GAPS
from flint.passes.work.work import Work
from flint.tools.measure.profiles.operators.arguments import GivenTensor, SignatureArguments
from flint.tools.measure.profiles.operators.types import item_bytes


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """An operator's name without namespace, overload, `_foreach_` and last underscore, and its
    arguments. `in_place` says whether the name ended in an underscore."""

    base: str
    given: SignatureArguments
    in_place: bool = False


@dataclass(frozen=True, slots=True)
class CallEffects:
    """What a call reads and makes. `writes` are positions in `inputs` that it changes in place.

    `attributes` are those of a recorded event; `work` is said where PyTorch's rules do not know it.
    """

    inputs: tuple[GivenTensor, ...]
    outputs: tuple[GivenTensor, ...] = ()
    writes: tuple[int, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    work: Work | None = None


#: Reads a call; None where the arguments are not those that the operator takes. What a call lacks may
#: also raise LookupError, ValueError or ArithmeticError: `events.read` then knows nothing of it.
Form: TypeAlias = Callable[[OperatorCall], CallEffects | None]


def tensor(shape: Sequence[int], dtype: str) -> GivenTensor:
    """A result."""
    made = GivenTensor(tuple(shape), dtype, 0)
    return GivenTensor(made.shape, dtype, made.num_bytes)


def like(other: GivenTensor, dtype: str = "") -> GivenTensor:
    """A result of the shape of another tensor, and its type unless one is given."""
    return tensor(other.shape, dtype or other.dtype)


def lies_as(made: GivenTensor, read: Sequence[GivenTensor]) -> GivenTensor:
    """A result as PyTorch lays it out: like the first operand of its shape that has no gaps."""
    alike = (t.order for t in read if t.shape == made.shape and t.order != GAPS)
    return replace(made, order=next(alike, ()))


def broadcast(tensors: Sequence[GivenTensor]) -> tuple[int, ...]:
    """The shape of tensors that are combined element by element."""
    rank = max((len(t.shape) for t in tensors), default=0)
    sizes = [1] * rank
    for t in tensors:
        for i, size in enumerate(t.shape, start=rank - len(t.shape)):
            sizes[i] = size if size != 1 else sizes[i]
    return tuple(sizes)


def item(t: GivenTensor) -> int:
    """Bytes of one element."""
    return item_bytes(t.dtype)
