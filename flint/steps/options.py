"""What the command line says of a step: `--set NAME=VALUE`, and the options of a pipeline."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flint.errors import FlintError, nearest
from flint.steps.choices import option_choices, require_choice
from flint.steps.entry import AnyStep
from flint.steps.pipeline import Pipeline
from flint.steps.step import TorchStep

_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True} | {
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}


def parse_settings(pairs: Sequence[str], option: str = "--set") -> dict[str, str]:
    """Split `NAME=VALUE` texts. Raises FlintError FL216 for anything else and for repeats."""
    settings: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        name = name.strip()
        if not equals or not name:
            raise FlintError("FL216", f"{option} {pair} is not NAME=VALUE")
        if name in settings:
            raise FlintError("FL216", f"{option} {name} is given twice")
        settings[name] = value
    return settings


def parse_trip_counts(pairs: Sequence[str] | Mapping[str, int] | None) -> dict[str, int]:
    """Split `NAME=N` texts of `--trip-count`; a mapping is as it is. Raises FlintError FL216."""
    if pairs is None or isinstance(pairs, Mapping):
        return dict(pairs or {})
    counts: dict[str, int] = {}
    for name, value in parse_settings(pairs, "--trip-count").items():
        if not value.isascii() or not value.isdigit():
            raise FlintError("FL216", f"--trip-count {name}={value}: '{value}' is not a number")
        counts[name] = int(value)
    return counts


def parse_hints(pairs: Sequence[str]) -> dict[str, Any]:
    """Split `WHERE=VALUE` texts of `--hint`; values are Python literals. Raises FlintError FL216."""
    return {n: _literal(v) for n, v in parse_settings(pairs, "--hint").items()}


def options_of(
    function: Callable[..., Any], settings: Mapping[str, str], *, place: str, skip: int = 1
) -> dict[str, Any]:
    """Convert `settings` to keyword arguments of `function`, whose first `skip` are not options.

    A value is one of the choices that the option's annotation lists (`Literal`, `Enum`), else gets
    the type of its default, else of its annotation, else is the Python literal that it spells, else
    it stays text. Raises FlintError FL216 (with the nearest name) for an option that is not there,
    one that is missing, and a value that does not convert or is not a choice.
    """
    parameters = list(inspect.signature(function).parameters.values())
    options = {p.name: p for p in parameters[skip:] if p.kind not in (p.VAR_POSITIONAL,)}
    anything = next((n for n, p in options.items() if p.kind is p.VAR_KEYWORD), None)
    options.pop(anything or "", None)
    unknown = [n for n in settings if n not in options and anything is None]
    if unknown:
        raise FlintError(
            "FL216",
            f"{place} has no option '{unknown[0]}'{nearest(unknown[0], list(options))}",
            help=f"its options are {', '.join(options)}" if options else "it has no options",
        )
    missing = [n for n, p in options.items() if p.default is p.empty and n not in settings]
    if missing:
        raise FlintError(
            "FL216",
            f"{place} needs a value for '{missing[0]}'",
            help=f"give --set {missing[0]}=VALUE",
        )
    closed = {n: c for n, c in option_choices(function).items() if c.is_closed} if settings else {}
    return {
        n: require_choice(n, text, closed[n]) if n in closed else _convert(n, text, options.get(n))
        for n, text in settings.items()
    }


def _convert(name: str, text: str, parameter: inspect.Parameter | None) -> Any:
    wanted = _type_of(parameter)
    try:
        if wanted is bool:
            return _BOOLEANS[text.strip().lower()]
        if wanted is int:
            return int(text.replace("_", "").replace(",", ""))
        if wanted is float:
            return float(text)
        if wanted is str:
            return text
        value = _literal(text)
        if wanted in (tuple, list):
            return wanted(value if isinstance(value, tuple | list) else (value,))
        return value
    except (ValueError, KeyError):
        raise FlintError(
            "FL216", f"--set {name}={text}: '{text}' is not {_ARTICLES[wanted]}"
        ) from None


_ARTICLES: dict[type | None, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
}


def _type_of(parameter: inspect.Parameter | None) -> type | None:
    if parameter is None:
        return None
    if parameter.default is not parameter.empty and parameter.default is not None:
        return type(parameter.default)
    names = {"bool": bool, "int": int, "float": float, "str": str}
    annotation = parameter.annotation
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return names.get(text.removesuffix("| None").strip())


def _literal(text: str) -> Any:
    lowered = text.strip().lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError):
        return text


@dataclass(frozen=True)
class PipelineOptions:
    """`--cut`, `--schedule`, `--microbatches` and `--chunks`; None where one was not given."""

    cut: str | None = None
    schedule: str | None = None
    microbatches: int | None = None
    chunks: int | None = None

    def given(self) -> dict[str, str | int]:
        """Those that were given, by the name of the field of `Pipeline`."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def offered(self) -> Mapping[str, str]:
        """The same as text, for entries that have options of these names."""
        return {name: str(value) for name, value in self.given().items()}

    def applied_to(self, step: AnyStep) -> AnyStep:
        """The step with these options; a `TorchStep` becomes a pipeline of its stages.

        Raises FlintError FL240 for a step that has no stages and cannot be cut.
        """
        given = self.given()
        if not given:
            return step
        if isinstance(step, TorchStep):
            step = Pipeline(model=step, cut="")
        if not isinstance(step, Pipeline):
            names = ", ".join(f"--{name}" for name in given)
            raise FlintError(
                "FL240",
                f"{names} needs a pipeline, but the entry returned a flint.{type(step).__name__}",
                help="return flint.Pipeline(model=loss_fn, params=..., inputs=...): Flint "
                "differentiates each stage itself",
            )
        return replace(step, **given)  # type: ignore[arg-type]  # names and types are its fields'
