"""Whether functions in the parameters of equations are the same: rules of gradients, policies."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import Any

#: Closures in closures are followed this far.
_DEPTH = 8


def identity(value: Any, depth: int = _DEPTH) -> Hashable:
    """Something hashable that is equal for values that do the same, and only for these.

    JAX wraps the rules of custom gradients in new closures at each call; a function is therefore
    its code with what it closes over. Objects of the user are themselves alone; those of JAX that
    print an address (stores, traces) are told apart by their type.
    """
    if value is None or isinstance(value, str | bytes | bool | int | float | complex | type):
        return repr(value)
    if depth == 0:
        return id(value)
    if isinstance(value, list | tuple):
        return (type(value).__name__, *(identity(v, depth) for v in value))
    if isinstance(value, set | frozenset):
        return ("set", *sorted(repr(identity(v, depth)) for v in value))
    if isinstance(value, dict):
        return tuple((identity(k, depth), identity(v, depth)) for k, v in value.items())
    if isinstance(value, partial):
        return identity((value.func, value.args, value.keywords), depth - 1)
    if hasattr(value, "transforms") and hasattr(value, "f"):  # JAX's wrapped function
        return identity((value.f, tuple(value.transforms)), depth - 1)
    if hasattr(value, "__code__"):
        cells = tuple(c.cell_contents for c in value.__closure__ or ())
        return (id(value.__code__), identity((cells, value.__defaults__), depth - 1))
    if type(value).__name__ in ("Unhashable", "Hashable") and hasattr(value, "val"):
        return identity(value.val, depth - 1)
    return _of_object(value)


def _of_object(value: object) -> Hashable:
    if type(value) is object:
        return "sentinel"
    module = type(value).__module__
    if module.startswith(("jax", "numpy")) and not hasattr(value, "__array__"):
        text = str(value)
        return (type(value).__name__, "" if " at 0x" in text else text)
    return id(value)
