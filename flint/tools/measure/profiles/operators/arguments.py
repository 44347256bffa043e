"""Arguments: what a call was given, by position, with the text of its scalars read."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from flint.frontends.torch_world.record.recording import TensorInfo, order_of
from flint.tools.measure.profiles.operators.types import element_type, item_bytes
from flint.tools.measure.profiles.profile import Signature

_INTEGER = re.compile(r"-?\d+")
#: Digits of a number in a signature: longer text is not a size.
_MOST_DIGITS = 19


@dataclass(frozen=True, slots=True)
class GivenTensor:
    """A tensor that was given: its shape, StableHLO's type, and bytes of the memory that it covers.

    `covered_bytes` counts an element once that strides of 0 repeat (an expanded tensor). `order` is
    how its elements lie, see `order_of`.
    """

    shape: tuple[int, ...]
    dtype: str
    covered_bytes: int
    order: tuple[int, ...] = ()

    @property
    def num_bytes(self) -> int:
        """Bytes of all elements."""
        return math.prod(self.shape) * item_bytes(self.dtype)

    def info(self, storage: int) -> TensorInfo:
        """The same in memory number `storage`."""
        return TensorInfo(storage, self.shape, self.dtype, self.num_bytes, self.order)


class SignatureArguments:
    """Arguments of one signature. `tensors` are all tensors in order, lists flattened.

    `in_lists` is the type of tensors in lists where the format does not say it.
    """

    def __init__(self, signature: Signature, in_lists: str = "f32") -> None:
        self._signature = signature
        self._at: list[tuple[GivenTensor, ...]] = [
            _tensors_at(signature, i, in_lists) for i in range(len(signature.shapes))
        ]
        self.tensors: tuple[GivenTensor, ...] = tuple(t for some in self._at for t in some)

    def __len__(self) -> int:
        return len(self._at)

    def tensor(self, at: int) -> GivenTensor | None:
        """The tensor at a position, if one is there."""
        found = self._at[at] if 0 <= at < len(self._at) else ()
        return found[0] if found else None

    def needed(self, at: int) -> GivenTensor:
        """The same. Raises LookupError where there is none: nothing is known of such a call."""
        return self._at[at][0]

    def list_at(self, at: int) -> tuple[GivenTensor, ...]:
        """The tensors of the list at a position."""
        return self._at[at] if 0 <= at < len(self._at) else ()

    def text(self, at: int) -> str:
        """A scalar as the profiler wrote it, "" if there is none."""
        values = self._signature.values
        return values[at].strip() if 0 <= at < len(values) else ""

    def integer(self, at: int, otherwise: int | None = None) -> int | None:
        """A whole number, `otherwise` where there is none."""
        text = self.text(at)
        whole = _INTEGER.fullmatch(text) and len(text) <= _MOST_DIGITS
        return int(text) if whole else otherwise

    def integers(self, at: int) -> tuple[int, ...] | None:
        """A list of whole numbers, or one number as a list; None where there is none."""
        text = self.text(at)
        if not text or not (text[0] == "[" or _INTEGER.fullmatch(text)):
            return None
        found = _INTEGER.findall(text)
        return tuple(int(n) for n in found if len(n) <= _MOST_DIGITS)

    def sizes(self, at: int) -> tuple[int, ...]:
        """The same. Raises LookupError where there is none."""
        found = self.integers(at)
        if found is None:
            raise LookupError(at)
        return found

    def truth(self, at: int) -> bool | None:
        """True or False, None where neither is said."""
        return {"True": True, "true": True, "False": False, "false": False}.get(self.text(at))

    def truths(self, at: int) -> list[bool] | None:
        """A list such as an output mask."""
        found = re.findall(r"True|False|true|false", self.text(at))
        return [t.lower() == "true" for t in found] or None


def _tensors_at(signature: Signature, at: int, in_lists: str) -> tuple[GivenTensor, ...]:
    lists = signature.lists[at] if at < len(signature.lists) else ()
    named = signature.types[at] if at < len(signature.types) else ""
    if lists:
        return tuple(_tensor(shape, (), _type_in_list(named, in_lists)) for shape in lists)
    found = element_type(named)
    if found is None or (signature.values and at < len(signature.values) and signature.values[at]):
        return ()
    strides = signature.strides[at] if at < len(signature.strides) else ()
    return (_tensor(signature.shapes[at], strides, found[0]),)


def _type_in_list(named: str, otherwise: str) -> str:
    """Execution traces name the types in a list, the profiler says only that it is one."""
    inner = re.search(r"\[(.*?)[,\]]", named)
    found = element_type(inner[1].strip()) if inner else element_type(named)
    return found[0] if found else otherwise


def _tensor(shape: tuple[int, ...], strides: tuple[int, ...], dtype: str) -> GivenTensor:
    covered = math.prod(
        s for i, s in enumerate(shape) if len(strides) != len(shape) or strides[i] != 0
    )
    if 0 in shape:
        covered = 0
    return GivenTensor(shape, dtype, covered * item_bytes(dtype), order_of(shape, strides))
