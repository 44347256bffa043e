"""How far prices were from measurements that they were not fitted on: `residuals.toml` beside this file.

`python -m benchmarks.residuals` makes it. Deviations are of ln(estimate / measured), of its middle 80 %:
`each` of one kernel against others of its kind, `common` of a whole kind on a chip, which no number of
different kernels averages out. A constant that is used beyond the rows that it was fitted on came there by
steps of falling back (`Fallback`), each of which adds its own measured deviation.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from pathlib import Path

from pydantic import Field

from flint.cluster.load import read_toml
from flint.cluster.tables import Model

FILE = Path(__file__).resolve().parent / "residuals.toml"


class Part(StrEnum):
    """What a step's time is made of, as far as it was measured apart."""

    PRODUCTS = "products"
    NARROW = "narrow products"  #: of 8 and 4 bits
    GROUPED = "grouped products"
    NARROW_GROUPED = "narrow grouped products"
    CONVOLUTIONS = "convolutions"
    ATTENTION = "attention"
    DECODING = "decoding"  #: attention of one query
    BACKWARD = "attention backward"
    SOFTMAX = "softmax"
    NORMS = "norms"
    ELEMENTWISE = "element-wise"
    COPIES = "copies"
    REDUCTIONS = "reductions"
    LOOK_UPS = "look-ups"
    OTHERS = "others"
    INSIDE = "network inside"  #: of the innermost tier
    OUTSIDE = "network outside"  #: of all tiers around it
    MESSAGES = "messages"
    HOST = "host"
    MEASURED = "measured"  #: taken from a profile as it is
    STEP = "step"  #: the whole: what no part says (overlap, order, software of another version)


class Fallback(StrEnum):
    """Where a constant comes from that a chip and a library have no rows for.

    Lenders are looked for in this order, and a constant can take several steps. How much each adds to
    the deviation is measured: rows are priced as if they were not there.
    """

    SISTER = "sister chip"  #: the same library on a chip whose units do as much in a cycle
    LIBRARY = "sister library"  #: another library's kernels of the same kind
    CLASS = "other class"  #: a chip or a network of another class
    PHYSICS = "physics"  #: nobody's rows: publications and reasons, and what chips have in common
    ROOFLINE = "roofline"  #: no model of such chips at all


class Residual(Model):
    """Standard deviations of ln(estimate / measured), from how many rows, and which."""

    each: float = Field(ge=0, le=4)
    common: float = Field(ge=0, le=4)
    rows: int = Field(ge=0)
    source: str = Field(min_length=1)


class _File(Model):
    own: Mapping[Part, Residual]
    on: Mapping[str, Mapping[Part, Residual]]  #: by chip, and by chip and library
    steps: Mapping[Fallback, Mapping[Part, Residual]]
    verified: Mapping[str, tuple[str, ...]]


@cache
def _file() -> _File:
    return _File.model_validate(read_toml(FILE)[0])


def residual(part: Part, chip: str = "", library: str = "") -> Residual:
    """The errors of a part with constants of its own: of a library on this chip, of the chip, or of all.

    Which of them depends on where enough rows are kept back.
    """
    known = _file()
    for name in (on_chip(chip, library), chip):
        if part in known.on.get(name, {}):
            return known.on[name][part]
    return known.own[part]


def on_chip(chip: str, library: str) -> str:
    """What a table calls a library's kernels on a chip; without a library, the chip's own."""
    return f"{chip}, {library}" if library else chip


def widening(part: Part, step: Fallback) -> Residual:
    """What constants that took a step add to the errors of a part."""
    return _file().steps[step][part]


def verified_stacks() -> Mapping[str, tuple[str, ...]]:
    """By chip, the stacks of which measured steps are on the accuracy page."""
    return _file().verified
