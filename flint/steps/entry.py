"""`entry`: marks the function of a model file that makes a step, of whatever kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from flint.io.fields import BOOLEAN, TEXTS, Allowed, check_value
from flint.ir.axis_types import AxisType, axis_types_from
from flint.steps.pipeline import Pipeline
from flint.steps.pools import Disaggregated
from flint.steps.step import Step, TorchStep, WorldStep

F = TypeVar("F", bound=Callable[..., Any])
_MARK = "__flint_entry__"
_FIELD = "FL219"
#: Whatever an entry may return.
AnyStep = Step | TorchStep | WorldStep | Pipeline | Disaggregated


@dataclass(frozen=True)
class EntryMark:
    """What `entry` leaves on a function: the names of the mesh axes that it expects.

    `default` marks the entry that is used if a file has several and none is named; `axis_types` has
    one entry for each of `axes`, or none.
    """

    axes: tuple[str, ...]
    default: bool = False
    axis_types: tuple[AxisType, ...] = ()


@overload
def entry(function: F, /) -> F: ...


@overload
def entry(
    *, axes: Sequence[str] = (), default: bool = False, axis_types: object = ()
) -> Callable[[F], F]: ...


def entry(
    function: Callable[..., Any] | None = None,
    /,
    *,
    axes: Sequence[str] = (),
    default: bool = False,
    axis_types: object = (),
) -> object:
    """Mark a function of a mesh that returns a step, so that `flint capture FILE` finds it.

    Use it with or without parentheses: `@flint.entry` is `@flint.entry()`.

    The function receives a `jax.sharding.AbstractMesh` (its axes named `axes`) and the options
    given with `--set NAME=VALUE` as keyword arguments. An option annotated with `Literal[...]` or
    an `Enum` takes only those values; `flint explore` explores these, and those of `Annotated[int,
    range(1, 9)]` and `Annotated[T, (a, b)]`. The function returns a `Step`, `TorchStep`,
    `WorldStep`, `Pipeline` or `Disaggregated`. If a file has several entries and none is named, the
    one marked `default` is used. `axis_types` are the types of the axes, in their order, as JAX's
    `AxisType` or by name: "auto" (the default) or "explicit"; a single one applies to all.

    Raises FlintError FL101 for other types, or another number of them, FL219 for other arguments.
    """
    names = Allowed(TEXTS.words, TEXTS.holds, 'axes=("data", "model")')
    check_value(axes, names, _FIELD, "axes of flint.entry")
    check_value(default, BOOLEAN, _FIELD, "default of flint.entry")
    types = axis_types_from(axis_types, tuple(axes))

    def mark(function: F) -> F:
        setattr(function, _MARK, EntryMark(tuple(axes), default, types))
        return function

    if function is None:
        return mark
    check_value(
        function, Allowed("a function", callable, "axes=..."), _FIELD, "what flint.entry marks"
    )
    return mark(function)


def entry_mark(function: object) -> EntryMark | None:
    """The mark that `entry` left on `function`, or None."""
    found = getattr(function, _MARK, None)
    return found if isinstance(found, EntryMark) else None
