"""A node of an execution trace, whichever file it was read from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flint.frontends.profiles.kineto.fields import integer
from flint.frontends.profiles.profile import Comm, Signature

#: What a trace can hold of arguments: a list of tensors in a list of lists is none.
_MOST_ITEMS = 1 << 14
_ELEMENT = re.compile(r"Tensor\((.*?)\)")
_COMM = "collective_name"


@dataclass(frozen=True, slots=True)
class Values:
    """Inputs or outputs: a value, a shape and a type each, and strides where the schema has them.

    A tensor's value is [tensor, storage, offset, elements, bytes of each, device].
    """

    values: tuple[Any, ...] = ()
    shapes: tuple[Any, ...] = ()
    types: tuple[str, ...] = ()
    strides: tuple[Any, ...] = ()

    @staticmethod
    def read(found: object) -> Values:
        """From the lists of a file; empty where they are none."""
        if not isinstance(found, Mapping):
            return Values()
        lists = [found.get(k) for k in ("values", "shapes", "types", "strides")]
        values, shapes, types, strides = (
            x[:_MOST_ITEMS] if isinstance(x, list) else [] for x in lists
        )
        return Values(tuple(values), tuple(shapes), tuple(map(str, types)), tuple(strides))

    def at(self, place: int) -> tuple[Any, Any, Any]:
        """Value, shape and strides at a place, None for those that are missing."""
        return tuple(
            x[place] if place < len(x) else None for x in (self.values, self.shapes, self.strides)
        )  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Node:
    """An operator of the host, or what ran on a device. Times in microseconds, None if there are none.

    `parent` is the node around it (-1), `deps` those that it waits for. `attributes` are by name.
    `comm` and `category` (an opcode of HLO) are there where the format has them.
    """

    number: int
    name: str
    parent: int = -1
    deps: tuple[int, ...] = ()
    inputs: Values = field(default_factory=Values)
    outputs: Values = field(default_factory=Values)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    start_us: float | None = None
    duration_us: float | None = None
    stream: int = 0
    on_device: bool = False
    comm: Comm | None = None
    category: str = ""

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


def signature_of(node: Node) -> Signature | None:
    """Arguments and results as the profiler writes them, None for a node without any."""
    count = len(node.inputs.types)
    if not count and not node.outputs.types:
        return None
    read = [_argument(named, *node.inputs.at(i)) for i, named in enumerate(node.inputs.types)]
    outputs = []
    for i, named in enumerate(node.outputs.types):
        found = _argument(named, *node.outputs.at(i))
        outputs += [(s, found[1].removeprefix("TensorList[").rstrip("]")) for s in found[4]] or (
            [(found[0], found[1])] if not found[3] and found[1] else []
        )
    return Signature(
        shapes=tuple(r[0] for r in read),
        types=tuple(r[1] for r in read),
        strides=tuple(r[2] for r in read),
        values=tuple(r[3] for r in read),
        lists=tuple(r[4] for r in read),
        outputs=tuple(outputs),
    )


_Sizes = tuple[int, ...]


def _argument(
    named: str, value: Any, shape: Any, strides: Any
) -> tuple[_Sizes, str, _Sizes, str, tuple[_Sizes, ...]]:
    """Shape, type, strides, text and shapes of a list, of one argument."""
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


def storages(values: Values) -> tuple[int, ...]:
    """Numbers of the memory of all tensors: views of one share it, as their own numbers do not."""
    found: dict[int, None] = {}
    for named, value in zip(values.types, values.values, strict=False):
        if not isinstance(value, list):
            continue
        several = value if named.startswith("GenericList[Tensor") else [value]
        for tensor in several if "Tensor" in named else ():
            if isinstance(tensor, list) and len(tensor) > 1 and isinstance(tensor[1], int):
                found.setdefault(tensor[1])
    return tuple(found)


def comm_of(node: Node, groups: Mapping[str, tuple[int, ...]]) -> Comm | None:
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
    return Comm(
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
