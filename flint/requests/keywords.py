"""Methods that take a request as keywords, each of them once in the request."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from flint.errors import FlintError, nearest
from flint.requests.option import Request

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


def keywords_of(
    request: Callable[P, R],
) -> Callable[[Callable[[S, R], T]], Callable[Concatenate[S, P], T]]:
    """Let a method, whose parameter is a request, take the request's fields.

    Type checkers and `help()` see the fields; their help stands below the method's docstring.
    """

    def decorate(method: Callable[[S, R], T]) -> Callable[Concatenate[S, P], T]:
        def called(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
            refuse_unknown(method.__qualname__, inspect.signature(request).parameters, kwargs)
            return method(self, request(*args, **kwargs))

        functools.update_wrapper(called, method)
        own, fields = inspect.signature(method), inspect.signature(request)
        parameters = [*list(own.parameters.values())[:1], *fields.parameters.values()]
        called.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        called.__doc__ = f"{inspect.cleandoc(method.__doc__ or '')}\n\n{_described(cast('type[Request]', request))}"
        return called

    return decorate


def takes_fields(request: type[Request], names: Sequence[str]) -> Callable[[F], F]:
    """Say in the signature and docstring of a function that its `**keywords` take fields of a request."""

    def decorate(function: F) -> F:
        own, fields = inspect.signature(function), inspect.signature(request).parameters
        *others, keywords = own.parameters.values()
        taken = [fields[n].replace(kind=inspect.Parameter.KEYWORD_ONLY) for n in names]
        parameters = [*others, *taken, keywords]
        function.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        about = inspect.cleandoc(function.__doc__ or "")
        function.__doc__ = f"{about}\n\n{_described(request, names)}"
        return function

    return decorate


def taken_fields(names: Sequence[str], keywords: dict[str, Any]) -> dict[str, Any]:
    """Fields of a request among the keywords of a function, which lose them."""
    return {name: keywords.pop(name) for name in names if name in keywords}


def check_keywords(
    step: object, taken: Mapping[str, Any], left: Iterable[str], *, known: Sequence[str]
) -> None:
    """Check keywords of `flint.trace`: `taken` are its own, `left` are for the step.

    Raises FlintError FL219 for an own one that is an array or another argument of the step, TypeError
    for one that neither takes.
    """
    for name, value in taken.items():
        if value is not None and not isinstance(value, str | Mapping):
            raise FlintError(
                "FL219",
                f"{name} is an option of flint.trace and cannot be {type(value).__name__}",
                help="give an argument of the step that has this name by position",
            )
    parameters = _parameters(step)
    if parameters is not None:
        refuse_unknown("trace", [*known, *parameters], left)


def _parameters(step: object) -> list[str] | None:
    """Names of the parameters of a function; None where any name is one, or nobody says."""
    if not callable(step) or not hasattr(step, "__wrapped__") and not inspect.isfunction(step):
        return None
    found = inspect.signature(step).parameters
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in found.values())
    return None if takes_any else list(found)


def refuse_unknown(function: str, known: Collection[str], given: Iterable[str]) -> None:
    """Raise TypeError for a keyword that a function does not take, as Python does, with the nearest."""
    for name in given:
        if name not in known:
            raise TypeError(
                f"{function}() got an unexpected keyword argument '{name}'{nearest(name, [*known])}"
            )


def _described(request: type[Request], names: Sequence[str] = ()) -> str:
    return "\n".join(
        f"`{name}` ({one.flag if one.flags else one.metavar}): {one.help.replace('{', '').replace('}', '')}"
        for name, one in request.options().items()
        if name in names or not names
    )
