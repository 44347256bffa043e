"""Arguments of operators: each different one is read once."""

from __future__ import annotations

import marshal
from typing import Any

from flint.errors import Malformed
from flint.tools.measure.profiles.builder import ProfileBuilder
from flint.tools.measure.profiles.kineto.fields import without_paths
from flint.tools.measure.profiles.profile import Signature

_MOST_VALUE = 200
_Shape = tuple[int, ...]


class Signatures:
    """Numbers of signatures, by the arguments as the file has them."""

    def __init__(self, builder: ProfileBuilder) -> None:
        self._builder = builder
        self._known: dict[bytes, int] = {}

    def number(self, args: dict[str, Any]) -> int:
        """Number of an operator's signature, -1 if its shapes were not recorded."""
        dims = args.get("Input Dims")
        if dims is None:
            dims = args.get("Input dims")
        types = args.get("Input type")
        if dims is None or types is None:
            return -1
        parts = (dims, types, args.get("Input Strides"), args.get("Concrete Inputs"))
        key = marshal.dumps(parts, 2)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._read(*parts)
        return found

    def _read(self, dims: Any, types: Any, strides: Any, values: Any) -> int:
        try:
            found = Signature(
                shapes=tuple(() if _is_list(d) else _shape(d) for d in _listed(dims)),
                types=tuple(_type(t) for t in _listed(types)),
                strides=tuple(() if _is_list(s) else _shape(s) for s in _listed(strides or [])),
                values=tuple(_value(v) for v in _listed(values or [])),
                lists=_lists(dims),
            )
        except Malformed:
            return -1
        return self._builder.signature(found)


def _listed(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise Malformed("it is not a list")
    return value


def _is_list(dims: Any) -> bool:
    return isinstance(dims, list) and bool(dims) and isinstance(dims[0], list)


def _shape(dims: Any) -> _Shape:
    found = tuple(_listed(dims))
    if any(type(d) is not int or not -(1 << 62) < d < 1 << 62 for d in found):
        raise Malformed("a dimension is not a number")
    return found


def _type(value: Any) -> str:
    if isinstance(value, list):  # of a list of tensors
        value = value[0] if value else ""
    if not isinstance(value, str):
        raise Malformed("a type is not a text")
    return value


def _value(value: Any) -> str:
    text = "" if value is None else value if isinstance(value, str) else str(value)
    return without_paths(text[:_MOST_VALUE])


def _lists(dims: Any) -> tuple[tuple[_Shape, ...], ...]:
    if not any(_is_list(d) for d in dims):
        return ()
    return tuple(tuple(_shape(s) for s in d) if _is_list(d) else () for d in dims)
