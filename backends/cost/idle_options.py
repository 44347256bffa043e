"""Options of an estimate that change nothing of it: found by leaving each one out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

#: The options of `estimate`, as the command line calls them.
_FLAGS = {
    "mapping": "--map",
    "stack": "--stack",
    "profile": "--profile",
    "policy": "--overlap",
    "unpriced_is_zero": "--unpriced zero",
    "timing": "--timing",
    "scale": "--scale",
    "replaced": "--replace",
    "measured": "--measured",
    "routing": "--routing",
}


def idle_option_notes(
    options: Mapping[str, Any], changes_nothing: Callable[[Mapping[str, Any]], bool]
) -> tuple[str, ...]:
    """A sentence for each given option that `changes_nothing`, asked with the other options, is true of.

    Of an option that is given several times each one is left out by itself.
    """
    return tuple(
        f"{said} changes nothing of this estimate"
        for said, others in _each_left_out(options)
        if changes_nothing(others)
    )


def _each_left_out(options: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each given option as a user writes it, and all others."""
    for name, value in options.items():
        if not value:
            continue
        if isinstance(value, list | tuple):
            for at, one in enumerate(value):
                left = [*value[:at], *value[at + 1 :]]
                yield _said(name, one), {**options, name: left}
        else:
            yield _said(name, value), {k: v for k, v in options.items() if k != name}


def _said(name: str, value: Any) -> str:
    if value is True:
        return _FLAGS[name]
    if isinstance(value, Mapping):
        shown = ",".join(f"{axis}={tier}" for axis, tier in value.items())
    else:
        shown = _name_of(value)
    return f"{_FLAGS[name]} {shown}"


def _name_of(value: Any) -> str:
    named = getattr(value, "metadata", None) or {"name": getattr(value, "name", value)}
    return str(named.get("name") or "of a workload")
