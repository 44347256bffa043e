"""Equations of traced programs: where they come from, what is inside, and which no trace can hold."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from flint.errors import FlintError
from flint.io.user_places import is_users

if TYPE_CHECKING:
    from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

#: A closed-over array larger than this is refused: its values would be copied into the program.
MAX_CONSTANT_BYTES = 256 * 2**20


def place(equation: JaxprEqn) -> str | None:
    """`file.py:line` of the user's code that made an equation, or None."""
    traceback = getattr(equation.source_info, "traceback", None)
    for frame in traceback.frames if traceback is not None else ():
        if is_users(frame.file_name):
            return f"{os.path.basename(frame.file_name)}:{frame.line_num}"
    return None


def bodies(equation: JaxprEqn) -> list[Jaxpr]:
    """The jaxprs inside an equation, without their constants."""
    from jax.extend import core

    return [c.jaxpr if isinstance(c, core.ClosedJaxpr) else c for c in _inside(equation)]


def _inside(equation: JaxprEqn) -> list[ClosedJaxpr | Jaxpr]:
    from jax.extend import core

    values = equation.params.values()
    items = (v if isinstance(v, list | tuple) else (v,) for v in values)
    kinds = core.ClosedJaxpr, core.Jaxpr
    return [item for some in items for item in some if isinstance(item, kinds)]


def equations(program: ClosedJaxpr) -> Iterator[JaxprEqn]:
    """Every equation of a program and of all jaxprs inside it, each jaxpr once."""
    todo, seen = [program.jaxpr], set()
    while todo:
        current = todo.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        for equation in current.eqns:
            yield equation
            todo += bodies(equation)


def refuse_huge_constants(program: ClosedJaxpr, where: str | None) -> None:
    """Raise FlintError FL205 for closed-over arrays of more than MAX_CONSTANT_BYTES together."""
    inner = (item for equation in equations(program) for item in _inside(equation))
    held = (c for closed in (program, *inner) for c in getattr(closed, "consts", ()))
    total = 0
    for constant in {id(c): c for c in held}.values():
        size = int(getattr(constant, "nbytes", 0))
        total += size
        if total > MAX_CONSTANT_BYTES:
            raise FlintError(
                "FL205",
                f"the step closes over a concrete array {constant.dtype}{list(constant.shape)} of "
                f"{size / 1e9:.1f} GB",
                place=where,
                help="pass it as an argument (jax.ShapeDtypeStruct): values are not needed",
            )
