"""What a parameter of an entry may be, as its annotation says: choices, and their texts.

remat: Literal["none", "full"]          one of these, no other
kind: Kind                              an Enum: one of its members
chunks: Annotated[int, range(1, 9)]     any number; 1, 2, 4 and 8 are worth a look
batch: Annotated[int, (256, 512)]       any number; these are worth a look
"""

from __future__ import annotations

import inspect
import logging
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from flint.errors import FlintError, nearest

#: More choices of one option than this are a typing error.
MOST_CHOICES = 10_000
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ParameterChoices:
    """Values of a parameter, in the order of its annotation."""

    values: tuple[Any, ...]
    is_closed: bool  #: whether nothing else is allowed

    @property
    def texts(self) -> tuple[str, ...]:
        """The values as `--set` takes them."""
        return tuple(map(spelled, self.values))

    def pick(self, text: str) -> Any:
        """The value that `text` spells. Raises KeyError if it spells none."""
        for known, value in zip(self.texts, self.values, strict=True):
            if text.strip() == known:
                return value
        lowered = text.strip().lower()
        for value in self.values:
            if isinstance(value, bool) and lowered in _WORDS[value]:
                return value
            if isinstance(value, Enum) and lowered == value.name.lower():
                return value
        raise KeyError(text)


_NONE = ParameterChoices((None,), is_closed=True)
_WORDS = {True: ("true", "yes", "on", "1"), False: ("false", "no", "off", "0")}


def spelled(value: object) -> str:
    """A value of an option as text: what `--set` takes for it."""
    if isinstance(value, Enum):
        return value.value if isinstance(value.value, str) else value.name
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def choices_of(annotation: object) -> ParameterChoices | None:
    """The choices that an annotation (no text) lists, None if it lists none.

    `Literal[...] | None` has None among them. Raises FlintError FL216 for too many.
    """
    origin = get_origin(annotation)
    if origin is Annotated:
        return _annotated(annotation)
    if origin is Literal:
        return ParameterChoices(_unique(get_args(annotation)), is_closed=True)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return ParameterChoices(tuple(annotation), is_closed=True)
    if origin in (Union, types.UnionType):
        return _union(get_args(annotation))
    return None


def annotations_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Annotations of a function's parameters, `Annotated` whole; those that are text are evaluated.

    One that cannot be read (a name that is imported only for type checkers) is omitted, and the log
    says so: calling the function does not need it.
    """
    found: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.annotation is parameter.empty:
            continue
        try:
            holder = types.SimpleNamespace(__annotations__={name: parameter.annotation})
            found.update(get_type_hints(holder, _globals_of(function), include_extras=True))
        except Exception as error:  # noqa: BLE001  evaluating text may raise anything
            _log.info("annotation %r of %s cannot be read: %s", parameter.annotation, name, error)
    return found


def option_choices(function: Callable[..., Any]) -> Mapping[str, ParameterChoices]:
    """Choices by the name of the parameter, for those that have some.

    Raises FlintError FL216 as `choices_of` does.
    """
    found = {name: choices_of(a) for name, a in annotations_of(function).items()}
    return {name: choices for name, choices in found.items() if choices and choices.values}


def require_choice(name: str, text: str, choices: ParameterChoices) -> Any:
    """The value that `text` spells. Raises FlintError FL216 with the choices if it spells none."""
    try:
        return choices.pick(text)
    except KeyError:
        raise FlintError(
            "FL216",
            f"{name}={text}: '{text}' is not a choice of {name}{nearest(text, choices.texts)}",
            help="it is one of " + ", ".join(t or '""' for t in choices.texts),
        ) from None


def _annotated(annotation: object) -> ParameterChoices | None:
    inner, *extras = get_args(annotation)
    for extra in extras:
        if isinstance(extra, range):
            return ParameterChoices(_worth_a_look(extra), is_closed=False)
        if isinstance(extra, tuple | list) and extra:
            return ParameterChoices(_unique(tuple(extra)), is_closed=False)
    return choices_of(inner)


def _worth_a_look(numbers: range) -> tuple[int, ...]:
    """Doubling from the start; a range with a step, or one that begins below 1, stays as it is."""
    if numbers.step == 1 and numbers.start >= 1:
        doubled, value = [], numbers.start
        while value < numbers.stop:
            doubled.append(value)
            value *= 2
        return tuple(doubled)
    if len(numbers) > MOST_CHOICES:
        raise FlintError(
            "FL216",
            f"an option is annotated with {numbers}, which has {len(numbers):,} numbers",
            help="give the range a step, or list only the numbers of interest",
        )
    return tuple(numbers)


def _union(members: tuple[Any, ...]) -> ParameterChoices | None:
    """`Literal[...] | None`, or several Literals: choices only if every member lists its values."""
    lists = [_NONE if m is type(None) else choices_of(m) for m in members]
    found = [choices for choices in lists if choices is not None]
    if len(found) < len(lists) or found == [_NONE]:
        return None
    values = tuple(v for choices in found for v in choices.values)
    return ParameterChoices(_unique(values), is_closed=all(c.is_closed for c in found))


def _unique(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Without those whose text repeats an earlier one."""
    found: dict[str, Any] = {}
    for value in values:
        found.setdefault(spelled(value), value)
    return tuple(found.values())


def _globals_of(function: Callable[..., Any]) -> dict[str, Any]:
    inner = inspect.unwrap(getattr(function, "func", function))
    module = sys.modules.get(getattr(inner, "__module__", None) or "")
    found: dict[str, Any] = getattr(inner, "__globals__", vars(module) if module else {})
    return found
