"""Numbers with units as users write them for a machine: `100GB/s`, `2.5us`, `96GiB`, `2x`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple


class KeyUnit(StrEnum):
    """The unit of a number, as the names of its keys end."""

    BYTES_PER_S = "bytes_per_s"
    FLOPS_PER_S = "flops_per_s"
    BYTES = "bytes"
    NS = "ns"
    HZ = "hz"
    W = "w"
    NONE = ""


_DECIMAL = {"": 1e0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_BYTES = {f"{p}B": f for p, f in (_DECIMAL | _BINARY).items()}
#: What a number of each unit may be followed by, and how many of the unit that is.
SUFFIXES: Mapping[KeyUnit, Mapping[str, float]] = {
    KeyUnit.BYTES: _BYTES,
    KeyUnit.BYTES_PER_S: {
        **{f"{name}/s": factor for name, factor in _BYTES.items()},
        **{f"{p}{bit}": f / 8 for p, f in _DECIMAL.items() for bit in ("b/s", "bit/s", "bps")},
    },
    KeyUnit.FLOPS_PER_S: {
        f"{p}{of}/s": f for p, f in _DECIMAL.items() for of in ("FLOP", "OP") if p != "k"
    },
    KeyUnit.NS: {"ns": 1.0, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9},
    KeyUnit.HZ: {f"{p}Hz": f for p, f in _DECIMAL.items()},
    KeyUnit.W: {"W": 1.0, "kW": 1e3},
    KeyUnit.NONE: {},
}
#: What a message shows of each.
EXAMPLES: Mapping[KeyUnit, str] = {
    KeyUnit.BYTES: "96GiB or 80GB",
    KeyUnit.BYTES_PER_S: "100GB/s or 400Gb/s (B is a byte, b a bit)",
    KeyUnit.FLOPS_PER_S: "989TFLOP/s",
    KeyUnit.NS: "2.5us",
    KeyUnit.HZ: "1.7GHz",
    KeyUnit.W: "700W",
    KeyUnit.NONE: "0.9",
}
_NUMBER = re.compile(r"(\d+(?:\.\d*)?|\.\d+)([eE][+-]?\d+)?\s*(\D*)")


class AmountOrFactor(NamedTuple):
    """A number in its unit, or, where it `is_factor`, times what was there."""

    value: float
    is_factor: bool = False


def unit_of(key: str) -> KeyUnit:
    """The unit that the name of a key ends in."""
    return next((u for u in KeyUnit if u and key.endswith(f"_{u}")), KeyUnit.NONE)


def amount_of(text: str, unit: KeyUnit, *, needs_unit: bool) -> AmountOrFactor | None:
    """What `text` says in `unit`; None if it is no such number.

    Without a suffix it is in the unit itself, unless it `needs_unit`.
    """
    found = _NUMBER.fullmatch(text.strip())
    if not found:
        return None
    number, suffix = float(found[1] + (found[2] or "")), found[3].strip()
    if suffix == "x":
        return AmountOrFactor(number, is_factor=True)
    if not suffix:
        return None if needs_unit and unit else AmountOrFactor(number)
    factor = SUFFIXES[unit].get(suffix)
    return None if factor is None else AmountOrFactor(number * factor)
