"""Options in one word of a command line, `vllm:max_num_seqs=128`, as the fields of a dataclass."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, TypeVar

from pydantic import BeforeValidator, Field

from flint.errors import FlintError, nearest, readable
from flint.io.records import record_of

T = TypeVar("T")
Natural = Annotated[int, Field(ge=0, lt=1 << 53)]
AtLeast1 = Annotated[int, Field(ge=1, lt=1 << 53)]
Above0 = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotBelow0 = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_PER = {"": 1.0, "s": 1.0, "sec": 1.0, "min": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Spec:
    """`name:first,key=value,...` in parts."""

    text: str
    name: str
    first: str
    options: dict[str, str]


def parse_spec(text: str, code: str) -> Spec:
    """The parts of `name:first,key=value,...`. Raises FlintError `code` for a part without a key."""
    name, _, rest = text.partition(":")
    first, options = "", dict[str, str]()
    for at, part in enumerate(_parts(rest)):
        key, equals, value = (p.strip() for p in part.partition("="))
        if not at and not equals:
            first = key
        elif not equals or key in options:
            why = "stands twice" if equals else "is not written key=value"
            raise FlintError(code, f"'{key}' {why} in '{text}'")
        else:
            options[key] = value
    return Spec(text, name.strip(), first, options)


def fill(kind: type[T], spec: Spec, code: str, without: Sequence[str] = (), **given: str) -> T:
    """A dataclass from the options of `spec`, none of those `without`, and what is `given` beside them.

    Raises FlintError `code` for a key that `kind` lacks (with the nearest), and for a value that its field
    does not take.
    """
    names = (f.name for f in fields(kind))  # type: ignore[arg-type]
    known = [name for name in names if name not in given and name not in without]
    for key in spec.options:
        if key not in known:
            near = nearest(key, known)
            text = f"'{spec.name}' has no option '{key}'{near}"
            raise FlintError(code, text, help=f"it takes {', '.join(known)}")
    with readable(code, f"'{spec.text}'"):
        return record_of(kind, {**spec.options, **given})


def _parts(text: str) -> Iterator[str]:
    """What commas separate, outside of parentheses."""
    depth, start = 0, 0
    for at, mark in enumerate(text):
        depth += (mark == "(") - (mark == ")")
        if mark == "," and not depth:
            yield text[start:at]
            start = at + 1
    if text[start:].strip():
        yield text[start:]


def _rate(text: object) -> float:
    count, _, unit = str(text).partition("/")
    try:
        found = float(count) / _PER[unit.strip()]
    except (ValueError, KeyError):
        found = math.nan
    if not found > 0:
        raise ValueError("should be a rate such as 10/s, 600/min or inf")
    return found


#: Events a second: `10/s`, `600/min`, `inf`, or a bare number.
Rate = Annotated[float, BeforeValidator(_rate)]
