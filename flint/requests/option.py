"""Option: what a field of a request says of itself, for every place where users write it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Self


class Form(StrEnum):
    """How users write a value."""

    TEXT = "text"
    TEXTS = "texts"  #: several, each by itself
    PAIRS = "pairs"  #: NAME=VALUE, several; a table in flint.toml
    NUMBER = "number"
    PATH = "path"
    SWITCH = "switch"


class OnlyFor(StrEnum):
    """What an option of a capture is for; with another kind of model it is refused."""

    ANYTHING = ""
    MODELS = "models"  #: files with an entry
    SCRIPTS = "scripts"


@dataclass(frozen=True, slots=True)
class Option:
    """A field of a request.

    `flags` are as on the command line, none for an argument; `key` is that of flint.toml. `words` are
    all that there are, `names` the table of which a shell offers names ("clusters"). `reads`: a value
    may name a file. `word` is what a switch has behind its flag. `swept`: points of an exploration may
    differ in it.
    """

    flags: tuple[str, ...]
    help: str
    default: Any = None
    form: Form = Form.TEXT
    metavar: str = ""
    key: str = ""
    words: tuple[str, ...] = ()
    names: str = ""
    reads: bool = False
    role: Any = None  #: what else becomes of the file, as `flint.cli.options` says it
    word: str = ""
    least: int | None = None
    swept: bool = False
    only_for: OnlyFor = OnlyFor.ANYTHING
    name: str = ""  #: of the field

    @property
    def is_required(self) -> bool:
        """Whether there is no default."""
        return self.default is MISSING

    @property
    def flag(self) -> str:
        """The flag, as sentences name it."""
        return self.flags[0]

    @property
    def typed(self) -> str:
        """The flag as a name: what sweeps and conditions call the option."""
        return self.flag.lstrip("-").replace("-", "_")

    def is_given(self, value: object) -> bool:
        """Whether somebody asked for `value`: without the option it would be another."""
        return value != self.default and value not in (None, "", (), [])


def option(*flags: str, help: str, default: Any = None, **more: Any) -> Any:
    """A field of a request, as `dataclasses.field` makes one; the rest is as in `Option`."""
    of_form = {Form.TEXTS: (), Form.PAIRS: (), Form.SWITCH: False}
    usual = of_form.get(more.get("form", Form.TEXT)) if default is None else default
    is_required = more.pop("required", False)
    found = Option(flags, help, MISSING if is_required else usual, **more)
    if flags and not found.key:
        found = replace(found, key=found.typed)
    return field(default=found.default, metadata={"option": found})


@dataclass(frozen=True)
class Request:
    """What a user asks for. Its fields are options."""

    @classmethod
    def options(cls) -> dict[str, Option]:
        """The options by the names of their fields."""
        return {f.name: replace(f.metadata["option"], name=f.name) for f in fields(cls)}

    @classmethod
    def of(cls, written: Mapping[str, Any]) -> Self:
        """The request for values by field, as commands get them or Python gives them: None is the usual one."""
        found: dict[str, Any] = {}
        for name, one in cls.options().items():
            value = written.get(name)
            if one.form in (Form.TEXTS, Form.PAIRS):
                if isinstance(value, Mapping):
                    value = [f"{key}={each}" for key, each in value.items()]
                found[name] = (value,) if isinstance(value, str) else tuple(map(str, value or ()))
            elif one.form is Form.SWITCH:
                found[name] = bool(value)
            elif one.is_required and value is None:
                found[name] = ""
            elif value is not None:
                found[name] = str(value) if one.form is Form.TEXT else value
        return cls(**found)

    def given(self) -> dict[str, Any]:
        """The values that somebody asked for, by field."""
        return {
            name: value
            for name, one in self.options().items()
            if one.is_given(value := getattr(self, name))
        }

    def words(self) -> list[str]:
        """The options that were given, as they are typed; without arguments."""
        found: list[str] = []
        for name, value in self.given().items():
            one = self.options()[name]
            if not one.flags:  # an argument, whose place is the command's affair
                continue
            if one.form is Form.SWITCH:
                found += [one.flag, *filter(None, (one.word,))]
                continue
            for each in value if isinstance(value, tuple | list) else (value,):
                found += [one.flag, as_text(each)]
        return found

    def but(self, **changes: Any) -> Self:
        """The request with other values of some fields."""
        return replace(self, **changes)


def as_text(value: object) -> str:
    """A value as users type it: mappings as AXIS=TIER,..., clusters, stacks and workloads by their names."""
    if isinstance(value, Mapping):
        return ",".join(f"{name}={each}" for name, each in value.items())
    if isinstance(value, str | Path | int):
        return str(value)
    named = getattr(value, "metadata", None) or {"name": getattr(value, "name", value)}
    return str(named.get("name") or "of a workload")
