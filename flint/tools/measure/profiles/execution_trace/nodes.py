"""A node of an execution trace, whichever file it was read from."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from flint.errors import Malformed
from flint.tools.measure.profiles.kineto.fields import integer
from flint.tools.measure.profiles.profile import ProfiledComm, Signature

#: What a trace can hold of arguments: a list of tensors in a list of lists is none.
_MOST_ITEMS = 1 << 14
_ELEMENT = re.compile(r"Tensor\((.*?)\)")
_COMM = "collective_name"


#: An argument or result: type, value, shape, strides (None for what is missing). A tensor's value is
#: [tensor, storage, offset, elements, bytes of each, device].
Argument: TypeAlias = tuple[str, Any, Any, Any]


def object_of(found: object) -> dict[str, Any]:
    """An object of JSON. Raises Malformed for anything else."""
    if not isinstance(found, dict):
        raise Malformed("something is not an object")
    return found


def list_of(found: object) -> list[Any]:
    """A list of JSON. Raises Malformed for anything else."""
    if not isinstance(found, list):
        raise Malformed("something is not a list")
    return found


def arguments(found: object) -> list[Argument]:
    """Inputs or outputs of a node, from the lists of a file; none where they are no lists."""
    if not isinstance(found, Mapping):
        return []
    types = found.get("types")
    if not isinstance(types, list):
        return []
    others = [found.get(k) for k in ("values", "shapes", "strides")]
    lists = [x if isinstance(x, list) else [] for x in others]
    padded = [x if len(x) >= len(types) else x + [None] * (len(types) - len(x)) for x in lists]
    return list(zip(map(str, types[:_MOST_ITEMS]), *padded, strict=False))


@dataclass(frozen=True, slots=True)
class Node:
    """An operator of the host, or what ran on a device. Times in microseconds, None if there are none.

    `parent` is the node around it (-1), `deps` those that it waits for, of which `data_deps` say that they
    have its data, where the format tells them apart. `attributes` are by name,
    `tensors` the memory that it reads and writes.
    `comm` and `category` (an opcode of HLO) are there where the format has them.
    """

    number: int
    name: str
    parent: int = -1
    deps: tuple[int, ...] = ()
    signature: Signature | None = None
    tensors: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    start_us: float | None = None
    duration_us: float | None = None
    stream: int = 0
    on_device: bool = False
    comm: ProfiledComm | None = None
    category: str = ""
    data_deps: tuple[int, ...] = ()

    def waits(self) -> tuple[int, ...]:
        """All that it waits for."""
        return (*self.deps, self.parent)

    @property
    def end_us(self) -> float:
        """When it ends, of one that has times."""
        return (self.start_us or 0.0) + (self.duration_us or 0.0)

    def integer(self, name: str, default: int = -1) -> int:
        """An attribute as a whole number."""
        return integer(self.attributes.get(name), default)

    def text(self, name: str) -> str:
        """An attribute as text, "" where it is missing."""
        return str(self.attributes.get(name, "") or "")


def signature_of(inputs: Sequence[Argument], outputs: Sequence[Argument]) -> Signature | None:
    """Arguments and results as the profiler writes them, None for a node without any."""
    if not inputs and not outputs:
        return None
    shapes, types, strides, values, lists = (
        zip(*map(_argument, inputs), strict=True) if inputs else _NONE
    )
    results: list[tuple[_Sizes, str]] = []
    for shape, named, _, text, inside in map(_argument, outputs):
        if inside:
            element = named.removeprefix("TensorList[").removesuffix("]")
            results += [(each, element) for each in inside]
        elif named and not text:
            results.append((shape, named))
    return Signature(shapes, types, strides, values, lists, tuple(results))


_NONE: tuple[tuple[Any, ...], ...] = ((),) * 5
_Sizes = tuple[int, ...]


def _argument(argument: Argument) -> tuple[_Sizes, str, _Sizes, str, tuple[_Sizes, ...]]:
    """Shape, type, strides, text and shapes of a list, of one argument."""
    named, value, shape, strides = argument
    element = _ELEMENT.search(named)
    if element and named.startswith("Tensor"):
        return _sizes(shape), element[1], _sizes(strides), "", ()
    if element and isinstance(shape, list):
        return (), f"TensorList[{element[1]}]", (), "", tuple(_sizes(s) for s in shape)
    if named == "None" or value == "<None>":
        return (), "", (), "", ()
    return (), "ScalarList" if isinstance(value, list) else "Scalar", (), str(value)[:4096], ()


def _sizes(found: Any) -> _Sizes:
    numbers = found if isinstance(found, list) else []
    return tuple(n for n in numbers if isinstance(n, int) and abs(n) < 1 << 62)


def storages(found: Sequence[Argument]) -> tuple[int, ...]:
    """Numbers of the memory of all tensors: views of one share it, as their own numbers do not."""
    numbers: dict[int, None] = {}
    for named, value, _, _ in found:
        if "Tensor" not in named or not isinstance(value, list):
            continue
        for tensor in value if named.startswith("GenericList") else (value,):
            if isinstance(tensor, list) and len(tensor) > 1 and type(tensor[1]) is int:
                numbers.setdefault(tensor[1])
    return tuple(n for n in numbers if 0 <= n < 1 << 62)


class Interned:
    """Signatures, tensors and attributes of nodes: the same ones are kept once."""

    def __init__(self) -> None:
        self._kept: dict[Any, Any] = {}

    def one(self, value: Any) -> Any:
        """The value that is kept for all that are equal to it."""
        return self._kept.setdefault(value, value)

    def read(
        self, inputs: object, outputs: object
    ) -> tuple[Signature | None, tuple[tuple[int, ...], tuple[int, ...]]]:
        """Signature and tensors of a node's inputs and outputs."""
        into, out_of = arguments(inputs), arguments(outputs)
        signature = self.one(signature_of(into, out_of))
        return signature, self.one((storages(into), storages(out_of)))


def comm_of(node: Node, groups: Mapping[str, tuple[int, ...]]) -> ProfiledComm | None:
    """The collective or message that PyTorch says a node is."""
    if node.comm is not None:
        return node.comm
    name = node.text(_COMM)
    if not name:
        return None
    group, size = node.text("pg_name"), max(0, node.integer("pg_size", 0))
    start, stride = node.integer("global_rank_start"), node.integer("global_rank_stride")
    ranks = groups.get(group, ())
    if not ranks and start >= 0 and stride > 0 and 0 < size <= 1 << 20:
        ranks = tuple(range(start, start + size * stride, stride))
    return ProfiledComm(
        name=name,
        in_elements=node.integer("in_msg_nelems"),
        out_elements=node.integer("out_msg_nelems"),
        dtype=node.text("dtype"),
        group=group,
        group_size=size or len(ranks),
        ranks=ranks if not size or len(ranks) == size else (),
        peer=node.integer("dst_rank" if "send" in name else "src_rank"),
        in_splits=_splits(node.text("in_split_size")),
        out_splits=_splits(node.text("out_split_size")),
    )


def _splits(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d{1,18}", text)) if "..." not in text else ()
