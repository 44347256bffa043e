"""Numbers of files with their ranges, and records of them: what readers believe, and no more.

A record is a dataclass, TypedDict or model whose fields have these types. `record` and `record_of`
check a whole document at once, so that code behind them never asks what a field is.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from typing import Annotated, Any, TypeVar, cast

from pydantic import Field, StrictInt, StrictStr, TypeAdapter, ValidationError

from flint.errors import Malformed

T = TypeVar("T")

#: The largest number that a column of int64 holds.
MOST_INT64 = (1 << 63) - 1
#: Most nanoseconds of one step: 292 years.
MOST_NS = float(1 << 63)

Count = Annotated[StrictInt, Field(ge=0, le=MOST_INT64)]
Positive = Annotated[StrictInt, Field(ge=1, le=MOST_INT64)]
OrNone = Annotated[StrictInt, Field(ge=-1, le=MOST_INT64)]  # -1 stands for none
Whole = Annotated[StrictInt, Field(ge=-MOST_INT64, le=MOST_INT64)]
Bytes = Count
NonNegative = Annotated[float, Field(ge=0, strict=True, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1, strict=True, allow_inf_nan=False)]
#: FLOPs over the peak of the type that most are in: others may be faster.
Utilisation = Annotated[float, Field(ge=0, le=2, strict=True, allow_inf_nan=False)]
Nanoseconds = Annotated[float, Field(ge=0, le=MOST_NS, strict=True, allow_inf_nan=False)]
#: A mean of counts over devices: whole wherever all devices do the same.
MeanCount = Count | NonNegative
Texts = tuple[StrictStr, ...]
Counts = tuple[Count, ...]


def record(kind: type[T], data: str | bytes) -> T:
    """The record in a JSON document. Raises Malformed, with the field and what is wrong there."""
    try:
        found: T = _adapter(cast("Hashable", kind)).validate_json(data)
    except ValidationError as error:
        raise Malformed(first_error(error)) from error
    return found


def record_of(kind: type[T], document: object) -> T:
    """The record in a parsed document. Raises Malformed, with the field and what is wrong there."""
    try:
        found: T = _adapter(cast("Hashable", kind)).validate_python(document)
    except ValidationError as error:
        raise Malformed(first_error(error)) from error
    return found


@cache
def _adapter(kind: Hashable) -> TypeAdapter[Any]:
    return TypeAdapter(cast("Any", kind))


def first_error(error: ValidationError) -> str:
    """`programs[0].shapes[3][1]: should be greater than or equal to 0, it is -4`."""
    found = error.errors(include_url=False)[0]
    place = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in found["loc"])
    reason = found["msg"].removeprefix("Value error, ").removeprefix("Input ")
    value = found["input"]
    shown = f", it is {repr(value)[:40]}" if isinstance(value, str | int | float) else ""
    where = place.removeprefix(".")[:200]
    return f"{where}: {reason}{shown}" if where else f"{reason}{shown}"
