"""How far prices were from measurements that they were not fitted on: `residuals.toml` beside this file.

`python -m benchmarks.residuals` makes it. Deviations are of ln(estimate / measured), of its middle 80 %:
`each` of one kernel against others of its kind, `common` of a whole kind on a chip, which no number of
different kernels averages out.
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
    CONVOLUTIONS = "convolutions"
    ATTENTION = "attention"
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


class Trust(StrEnum):
    """Whose measurements constants rest on."""

    OWN = "own"  #: of the chip, network or machine itself
    BORROWED = "borrowed"  #: of another one, or assumed


class Residual(Model):
    """Standard deviations of ln(estimate / measured), from how many rows, and which."""

    each: float = Field(ge=0, le=4)
    common: float = Field(ge=0, le=4)
    rows: int = Field(ge=0)
    source: str = Field(min_length=1)


class _File(Model):
    residuals: Mapping[Part, Mapping[Trust, Residual]]
    verified: Mapping[str, tuple[str, ...]]


@cache
def _file() -> _File:
    return _File.model_validate(read_toml(FILE)[0])


def residual(part: Part, trust: Trust) -> Residual:
    """What is known of the errors of a part."""
    return _file().residuals[part][trust]


def verified_stacks() -> Mapping[str, tuple[str, ...]]:
    """By chip, the stacks of which measured steps are on the accuracy page."""
    return _file().verified
