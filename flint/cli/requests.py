"""Commands whose parameters are requests: the fields of a request become options of the command."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from flint.cli.options import READS
from flint.requests.option import Form, Option, Request


@dataclass(frozen=True)
class Without:
    """Fields of a request that a command does not take, beside the request in its annotation."""

    fields: tuple[str, ...]


@dataclass(frozen=True)
class Said:
    """The help of fields that have a meaning of their own in a command, beside the request."""

    help: Mapping[str, str]


def takes_requests(command: Callable[..., None]) -> Callable[..., None]:
    """The command with each parameter that is a request replaced by options.

    `Annotated[EstimateRequest, Without(("profile",))]` leaves fields at their defaults.
    """
    hints = typing.get_type_hints(command, include_extras=True)
    requests: dict[str, tuple[type[Request], dict[str, Option]]] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        found = _request_in(hints[name])
        if found is None:
            parameters.append(parameter.replace(annotation=hints[name]))
        else:
            requests[name] = found
            parameters += map(_parameter, found[1].values())

    def called(**given: Any) -> None:
        made = {
            name: request.of({field: given.pop(field) for field in options})
            for name, (request, options) in requests.items()
        }
        command(**given, **made)

    functools.update_wrapper(called, command)
    ordered = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    called.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined]
    called.__annotations__ = {p.name: p.annotation for p in ordered}
    return called


def _request_in(hint: Any) -> tuple[type[Request], dict[str, Option]] | None:
    request, *more = typing.get_args(hint) if typing.get_origin(hint) is Annotated else (hint,)
    if not (isinstance(request, type) and issubclass(request, Request)):
        return None
    without = [name for m in more if isinstance(m, Without) for name in m.fields]
    said = {name: text for m in more if isinstance(m, Said) for name, text in m.help.items()}
    options = request.options().items()
    return request, {
        n: replace(o, help=said.get(n, o.help)) for n, o in options if n not in without
    }


def _parameter(option: Option) -> inspect.Parameter:
    kind, default = _type_of(option)
    parts = [
        kind,
        _typer_of(option),
        *([READS] if option.reads else []),
        *filter(None, [option.role]),
    ]
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[tuple(parts)],
    )


def _type_of(option: Option) -> tuple[Any, Any]:
    if option.form in (Form.TEXTS, Form.PAIRS):
        return list[str] | None, None
    if option.form in (Form.NUMBER, Form.PATH):
        plain = int if option.form is Form.NUMBER else Path
        return (plain | None if option.default is None else plain), option.default
    if option.form is Form.SWITCH:
        return (_words(option, (option.word,)) | None, None) if option.word else (bool, False)
    default = inspect.Parameter.empty if option.is_required else option.default or None
    kind: Any = _words(option, option.words) if option.words else str
    if default is inspect.Parameter.empty:
        return kind, default
    return (kind, kind(default)) if default is not None else (kind | None, None)


def _words(option: Option, words: tuple[str, ...]) -> Any:
    return StrEnum(option.name.title(), {w.upper().replace("-", "_"): w for w in words if w})


def _typer_of(option: Option) -> Any:
    more: dict[str, Any] = {"metavar": option.metavar or None, "help": option.help}
    if not option.flags:
        return typer.Argument(**more)
    if option.names:
        more["autocompletion"] = offered(option.names)
    if option.form is Form.NUMBER and option.least is not None:
        more["min"] = option.least
    return typer.Option(*option.flags, **more)


def refuse(request: Request, fields: Iterable[str], reason: str, help_: str = "omit it") -> None:
    """Raise FlintError FL218 for a field that is given and has no place in a command.

    `reason` is what stands behind "is not for".
    """
    from flint.errors import FlintError

    given = request.given()
    for name in fields:
        if name in given:
            flag = request.options()[name].flag
            raise FlintError("FL218", f"{flag} does not apply to {reason}", help=help_)


# Names that help texts list and shells offer. What they are of is loaded when they are asked for.


def _profiles() -> Iterable[str]:
    from flint.passes.profiles import PROFILES

    return PROFILES


def _policies() -> Iterable[str]:
    from flint.backends.cost.simulate.timeline import POLICIES

    return (*POLICIES, "astra-sim")


def _schedules() -> Iterable[str]:
    from flint.passes.pipeline.schedule.schedules import SCHEDULES

    return SCHEDULES


def _clusters() -> Iterable[str]:
    from flint.cluster.load import preset_names

    return preset_names()


def _stacks() -> Iterable[str]:
    from flint.cluster.stack import Stack

    return Stack.names()


#: What a help text may have in braces, "{profiles}", and an option as its names.
TABLES: dict[str, Callable[[], Iterable[str]]] = {
    "profiles": _profiles,
    "policies": _policies,
    "schedules": _schedules,
    "clusters": _clusters,
    "stacks": _stacks,
}


def offered(table: str) -> Callable[[], list[str]]:
    """What a shell offers for an option; it offers files itself."""
    return lambda: list(TABLES[table]())
