"""Which function of the program a jaxpr was traced from."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

_SOURCE = re.compile(r" at (.*):(\d+)$")
#: What `jax.pmap` jits is a function of its own around the program's: file, and its name there.
_PMAP = ("/jax/_src/pmap.py", "_fun")


@dataclass(frozen=True)
class Source:
    """A function's name, and `file.py:line` of its definition ("" where nothing says)."""

    name: str
    place: str


def source_of(jaxpr: Any, name: str) -> Source | None:
    """The function that a jaxpr was traced from, called `name`; None for functions of JAX's own."""
    match = _SOURCE.search(str(getattr(jaxpr.debug_info, "func_src_info", "")))
    if match is None:
        return Source(name, "")
    if _is_jax(match[1]):
        return _pmapped(jaxpr) if match[1].replace(os.sep, "/").endswith(_PMAP[0]) else None
    return Source(name, f"{os.path.basename(match[1])}:{match[2]}")


@cache
def _is_jax(file: str) -> bool:
    import jax

    return os.path.realpath(file).startswith(
        os.path.dirname(os.path.realpath(jax.__file__)) + os.sep
    )


def _pmapped(jaxpr: Any) -> Source | None:
    """The function inside of `jax.pmap`, by the frames in which its operations were traced."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "shard_map":
            inner = equation.params["jaxpr"]
            for operation in getattr(inner, "jaxpr", inner).eqns:
                traceback = operation.source_info.traceback
                found = _called_by_pmap(traceback.frames if traceback is not None else ())
                if found is not None:
                    return found
    return None


def _called_by_pmap(frames: Sequence[Any]) -> Source | None:
    """The outermost function of the program that pmap's own calls; `frames` begin innermost."""
    found = None
    for frame in frames:
        name = frame.function_name.rpartition(".")[2]
        if name == _PMAP[1] and frame.file_name.replace(os.sep, "/").endswith(_PMAP[0]):
            return found
        if not _is_jax(frame.file_name):
            line = frame.function_start_line
            found = Source(name, f"{os.path.basename(frame.file_name)}:{line}")
    return None
