"""Passes by name, as people write them: `reassociate,fuse-chains{blocks=shared again=false}`.

Every class of `flint.passes.rewrites` and `flint.passes.fusion` that has a name can be written. Its
options are the fields of the dataclass, with `-` for `_`: numbers, `true` and `false`, words,
members of enumerations, and several of them with commas between.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import typing
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from enum import Enum
from functools import cache
from types import MappingProxyType
from typing import Any

from flint.errors import FlintError, nearest
from flint.ir.text.values import spelled_word
from flint.passes.base import Pass

#: Where passes are found.
_FOLDERS = ("flint.passes.rewrites", "flint.passes.fusion")
_VALUE = r'(?:"[^"]*"|[^\s"{},]+)'
_OPTION = re.compile(rf"\s*([A-Za-z][\w-]*)=({_VALUE}(?:,{_VALUE})*)(?=\s|$)")
_PASS = re.compile(r'\s*([\w+-]+)\s*(?:\{((?:[^{}"]|"[^"]*")*)\})?\s*(,|$)')
#: How values of each type are read.
_WORDS = {"true": True, "false": False}


@cache
def known_passes() -> typing.Mapping[str, type[Pass]]:
    """Every pass that can be written, by name."""
    for folder in _FOLDERS:
        package = importlib.import_module(folder)
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{folder}.{module.name}")
    classes = (c for c in Pass.__subclasses__() if c.__module__.startswith(_FOLDERS))
    found = sorted((c.name, c) for c in classes if all(map(_is_written, _types(c).values())))
    return MappingProxyType(dict(found))


def parse_passes(text: str) -> tuple[Pass, ...]:
    """The passes that `text` says, in order.

    Raises FlintError FL408 for a pass that is not there, FL409 for its options.
    """
    return tuple(_made(name, options) for name, options in _split(text))


def spelled_pass(one: Pass) -> str:
    """A pass with the options that are not its defaults: what `parse_passes` takes."""
    given = [
        f"{_dashed(field.name)}={_spelled(getattr(one, field.name))}"
        for field in fields(one)
        if getattr(one, field.name) != field.default
    ]
    return one.name + (f"{{{' '.join(given)}}}" if given else "")


def described(one: type[Pass]) -> tuple[str, str]:
    """A pass with all options as its class has them, and the first sentence of its docstring."""
    options = " ".join(_default(field, _types(one)[field.name]) for field in fields(one))
    summary = " ".join((one.__doc__ or "").split("\n\n")[0].split())
    return one.name + (f"{{{options}}}" if options else ""), summary


def _default(field: Field[Any], kind: Any) -> str:
    if field.default is MISSING:
        return f"{_dashed(field.name)}={kind.__name__.upper()}"
    return f"{_dashed(field.name)}={_spelled(field.default)}"


def _split(text: str) -> Iterator[tuple[str, str]]:
    """Names and what stands in their braces."""
    at = 0
    while at < len(text) or text[at - 1 :] == ",":
        found = _PASS.match(text, at)
        if found is None:
            raise FlintError(
                "FL408",
                f"{text[at:][:40]!r} is not the name of a pass",
                help="write reassociate,fuse-chains{blocks=shared}",
            )
        yield found[1], found[2] or ""
        at = found.end()


def _made(name: str, options: str) -> Pass:
    passes = known_passes()
    if name not in passes:
        raise FlintError(
            "FL408",
            f"there is no pass '{name}'{nearest(name, list(passes))}",
            help="the passes are " + ", ".join(passes),
        )
    kinds = _types(passes[name])
    given = dict(_options(name, options, kinds))
    for field in fields(passes[name]):
        if field.default is MISSING and field.name not in given:
            what = f"{name}{{{_dashed(field.name)}=...}}"
            raise FlintError(
                "FL409", f"pass {name} needs its option {_dashed(field.name)}", help=what
            )
    return passes[name](**given)


def _options(name: str, text: str, kinds: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    at = 0
    while text[at:].strip():
        found = _OPTION.match(text, at)
        if found is None:
            raise FlintError(
                "FL409",
                f"{text[at:].strip()[:40]!r} is no option of {name}",
                help="options are name=value, with blanks between",
            )
        option, at = found[1].replace("-", "_"), found.end()
        if option not in kinds:
            known = [_dashed(k) for k in kinds]
            raise FlintError(
                "FL409",
                f"pass {name} has no option '{found[1]}'{nearest(found[1], known)}",
                help=f"its options are {', '.join(known)}" if known else "it has none",
            )
        yield option, _value(f"{name}{{{found[1]}}}", found[2], kinds[option])


def _value(where: str, text: str, kind: Any) -> Any:
    if typing.get_origin(kind) is tuple:
        inner = typing.get_args(kind)[0]
        values = re.findall(_VALUE, text)
        return tuple(_value(where, v, inner) for v in values if v != '""')
    word = text.strip('"')
    try:
        if kind is bool:
            return _WORDS[word]
        return _member(kind, word) if issubclass(kind, Enum) else kind(word)
    except (KeyError, ValueError):
        names = [m.name.lower() for m in kind] if issubclass(kind, Enum) else ["true", "false"]
        help = f"one of {', '.join(names)}" if kind not in (int, float, str) else None
        raise FlintError("FL409", f"{where}: {text} is no {kind.__name__}", help=help) from None


def _member(kind: type[Enum], word: str) -> Enum:
    return {m.name.lower(): m for m in kind}[word]


def _spelled(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_spelled, value)) or '""'
    if isinstance(value, bool | Enum):
        return (value.name if isinstance(value, Enum) else str(value)).lower()
    return spelled_word(value) if isinstance(value, str) else str(value)


def _dashed(name: str) -> str:
    return name.replace("_", "-")


@cache
def _types(one: type[Pass]) -> dict[str, Any]:
    """The type of each option."""
    hints = typing.get_type_hints(one)
    return {field.name: hints[field.name] for field in fields(one)}


def _is_written(kind: Any) -> bool:
    """Whether a value of this type can be written in a line."""
    if typing.get_origin(kind) is tuple:
        kind, more = typing.get_args(kind)
        return more is Ellipsis and _is_written(kind)
    return isinstance(kind, type) and issubclass(kind, bool | int | float | str | Enum)
