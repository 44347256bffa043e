"""Conditions as users write them: `--flops 1e15`, `--bytes data=2GiB`, `--phases forward=0.33,...`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flint.errors import FlintError, nearest
from flint.ir.mesh import Mesh
from flint.ir.program import Phase
from flint.tools.explore.machine.quantities import EXAMPLES, Unit, amount_of
from flint.tools.share.axis_labels import BETWEEN
from flint.tools.share.synth.conditions import Conditions

_PHASES = {phase.name.lower(): phase for phase in Phase}


def conditions_from_text(
    *,
    mesh: str | None = None,
    flops: str | None = None,
    bytes_: str | None = None,
    layers: int | None = None,
    phases: str | None = None,
    memory: str | None = None,
    rows: int | None = None,
    base: Conditions | None = None,
) -> Conditions:
    """The conditions that options of the command line say; what they do not say is as in `base`.

    Raises FlintError FL101 (mesh), FL950 (a value that cannot be read), FL951 (an axis or a phase
    that there is not), FL952 (shares) or FL953 (what no program can have).
    """
    given: dict[str, Any] = {
        "flops": None if flops is None else flops_from_text(flops),
        "depth": layers,
        "phases": None if phases is None else phases_from_text(phases),
        "memory_bytes": None if memory is None else _bytes("--memory", memory),
        "rows": rows,
    }
    found = {name: value for name, value in given.items() if value is not None}
    start = base or Conditions()
    if mesh is not None:
        found |= {"mesh": Mesh.parse(mesh), "axis_bytes": {}}
    if bytes_ is not None:
        found["axis_bytes"] = bytes_from_text(bytes_)
    return replace(start, **found)


def flops_from_text(text: str) -> float:
    """FLOPs: a number (`1e15`), or one with a unit (`1.2PFLOP`). Raises FlintError FL950."""
    amount = amount_of(text, Unit.NONE, needs_unit=False)
    amount = amount or amount_of(f"{text.strip()}/s", Unit.FLOPS_PER_S, needs_unit=True)
    if amount is None or amount.is_factor:
        raise _unreadable("--flops", text, "1e15 or 1.2PFLOP")
    return amount.value


def bytes_from_text(text: str) -> Mapping[str, float]:
    """Bytes by label of axes: `data=2GiB,data+model=100MB`. Raises FlintError FL950."""
    pairs = _pairs("--bytes", text, "data=2GiB,model=300MB").items()
    return {key.replace(BETWEEN, ","): _bytes(f"--bytes {key}", value) for key, value in pairs}


def phases_from_text(text: str) -> Mapping[Phase, float]:
    """Shares of phases, made to add up to 1. Raises FlintError FL950, FL951 or FL952."""
    example = "forward=0.33,backward=0.67"
    found = {}
    for key, value in _pairs("--phases", text, example).items():
        if key not in _PHASES:
            raise FlintError(
                "FL951",
                f"there is no phase '{key}'{nearest(key, tuple(_PHASES))}",
                help=f"phases are {', '.join(_PHASES)}",
            )
        amount = amount_of(value, Unit.NONE, needs_unit=False)
        if amount is None or amount.is_factor:
            raise _unreadable("--phases", f"{key}={value}", example)
        found[_PHASES[key]] = amount.value
    Conditions(phases=found)  # refuses shares that are far from adding up
    whole = sum(found.values())
    return {phase: share / whole for phase, share in found.items()}


def _bytes(option: str, text: str) -> float:
    amount = amount_of(text, Unit.BYTES, needs_unit=False)
    if amount is None or amount.is_factor:
        raise _unreadable(option, text, EXAMPLES[Unit.BYTES])
    return amount.value


def _pairs(option: str, text: str, example: str) -> dict[str, str]:
    """`a=1,b=2` by key. Raises FlintError FL950 for parts without = and keys given twice."""
    found: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = (word.strip() for word in part.partition("="))
        if not (key and equals and value) or key in found:
            raise _unreadable(option, text, example)
        found[key] = value
    return found


def _unreadable(option: str, text: str, example: str) -> FlintError:
    return FlintError("FL950", f"{option} cannot be '{text}'", help=f"give it as {example}")
