"""Options of an estimate that change nothing of it: found by leaving each one out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from flint.errors import FlintError

if TYPE_CHECKING:
    from flint.backends.cost.estimate import Estimate

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
    found: Estimate, options: Mapping[str, Any], estimate: Callable[[Mapping[str, Any]], Estimate]
) -> tuple[str, ...]:
    """A sentence for each given option without which `estimate` says the same as it `found`.

    Of an option that is given several times each one is left out by itself.
    """
    return tuple(
        f"{said} changes nothing of this estimate"
        for said, others in _each_left_out(options)
        if _says_the_same(found, others, estimate)
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


def _says_the_same(
    found: Estimate, others: Mapping[str, Any], estimate: Callable[[Mapping[str, Any]], Estimate]
) -> bool:
    try:
        other = estimate(others)
    except FlintError:
        return False  # without the option there is no estimate
    return _numbers(other) == _numbers(found) and other.interval == found.interval


def _numbers(e: Estimate) -> tuple[Any, ...]:
    """What an estimate says of time, memory and work."""
    classes = [
        (c.end_ns, c.shares, c.memory.peak_bytes, c.memory.breakdown, c.memory.runtime)
        for c in e.classes
    ]
    work = (e.model_flops, e.executed_flops, e.peak_flops_per_s, e.dtype, dict(e.unpriced))
    return (e.step_time_ns, classes, *work, e.kernel_times is None)
