"""What stands in documents that commands print: dataclasses and typed dictionaries as JSON has them.

A dataclass is a part of a document as it stands. Its fields are those of the object, and what is said
behind or below each (`#: ...`, or a string) is said to readers of the schema (`flint.schemas.generate`).
Pydantic makes the schemas alone: to build its adapters takes longer than to write most documents.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    NamedTuple,
    TypeVar,
    cast,
    get_args,
    get_type_hints,
)

if TYPE_CHECKING:
    from pydantic_core import CoreSchema

T = TypeVar("T")


@dataclass(frozen=True)
class Digits:
    """How many digits behind the point a number has in documents."""

    count: int


class Presence(Enum):
    """Whether a field stands in documents."""

    NEVER = "never"  #: it is for Flint alone
    IF_ANY = "if any"  #: where it is not None
    LATER = "later"  #: always, but older documents do not have it

    def __get_pydantic_core_schema__(
        self, source: object, handler: Callable[[object], CoreSchema]
    ) -> CoreSchema:
        from pydantic_core.core_schema import any_schema

        return any_schema() if self is Presence.NEVER else handler(source)


#: A time in ns to a thousandth, a share or ratio to a millionth: what is below changes with the order
#: of additions.
Thousandths = Annotated[float, Digits(3)]
Millionths = Annotated[float, Digits(6)]
Unpublished = Annotated[T, Presence.NEVER]
IfAny = Annotated[T, Presence.IF_ANY]
Later = Annotated[T, Presence.LATER]


class Published(NamedTuple):
    """A field of a dataclass that stands in documents."""

    name: str
    presence: Presence | None
    digits: int | None


@cache
def published(kind: Hashable) -> tuple[Published, ...]:
    """The fields of a dataclass that stand in documents, in order."""
    cls = cast("Any", kind)
    hints = get_type_hints(cls, include_extras=True)
    found = [_published(f.name, hints[f.name]) for f in fields(cls)]
    return tuple(f for f in found if f.presence is not Presence.NEVER)


def _published(name: str, hint: object) -> Published:
    inside = (e for part in get_args(hint) for e in getattr(part, "__metadata__", ()))
    said = (*getattr(hint, "__metadata__", ()), *inside)
    presence = next((s for s in said if isinstance(s, Presence)), None)
    return Published(name, presence, next((s.count for s in said if isinstance(s, Digits)), None))


_AS_IT_IS = frozenset((str, int, float, bool, type(None)))


def as_object(document: object) -> dict[str, Any]:
    """`document` for JSON; a TypedDict whose parts are dataclasses, or a dataclass."""
    return cast("dict[str, Any]", as_json(document))


def as_json(value: object) -> object:
    """`value` for JSON: dataclasses and models are objects, tuples arrays, members of enums their values."""
    kind = type(value)
    if kind in _AS_IT_IS:
        return value
    if isinstance(value, Mapping):
        return {key: as_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(inner) for inner in value]
    if is_dataclass(kind):
        return dict(_fields(value))
    if model := getattr(value, "model_dump", None):
        return model(mode="json", exclude_none=True)
    return value.value if isinstance(value, Enum) else value


def _fields(value: object) -> Iterator[tuple[str, object]]:
    for name, presence, digits in published(cast("Hashable", type(value))):
        found = getattr(value, name)
        if presence is Presence.IF_ANY and found is None:
            continue
        yield name, as_json(found) if digits is None or found is None else round(found, digits)
