"""Methods that take a request as keywords, each of them once in the request."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")
R = TypeVar("R")


def keywords_of(
    request: Callable[P, R],
) -> Callable[[Callable[[S, R], T]], Callable[Concatenate[S, P], T]]:
    """Let a method, whose parameter is a request, take the request's fields.

    Type checkers and `help()` see the fields; their help stands below the method's docstring.
    """

    def decorate(method: Callable[[S, R], T]) -> Callable[Concatenate[S, P], T]:
        def called(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
            return method(self, request(*args, **kwargs))

        functools.update_wrapper(called, method)
        own, fields = inspect.signature(method), inspect.signature(request)
        parameters = [*list(own.parameters.values())[:1], *fields.parameters.values()]
        called.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        called.__doc__ = f"{inspect.cleandoc(method.__doc__ or '')}\n\n{_described(request)}"
        return called

    return decorate


def _described(request: Any) -> str:
    return "\n".join(
        f"`{name}` ({one.flag}): {one.help.replace('{', '').replace('}', '')}"
        for name, one in request.options().items()
    )
