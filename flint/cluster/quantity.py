"""Quantity: a number with where it is from, and the kinds of them in a cluster file."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

#: Beyond these nothing is a quantity of hardware, and times overflow.
LEAST, MOST = 1e-30, 1e30


class SourceKind(StrEnum):
    """Where a number comes from."""

    DATASHEET = "datasheet"
    MEASURED = "measured"
    FITTED = "fitted"
    ASSUMED = "assumed"


class Model(BaseModel):
    """What a table of a cluster file is read as: no other keys, and nothing changes later."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _of_a_machine(value: float) -> float:
    if value and not LEAST <= abs(value) <= MOST:
        raise ValueError(f"should be 0 or between {LEAST:g} and {MOST:g}, it is {value:g}")
    return value


class Quantity(Model):
    """A number, how it is known, and from where.

    Its unit is in the name of its key. It is 0 or between LEAST and MOST, whatever its sign.
    """

    value: Annotated[float, AfterValidator(_of_a_machine)] = Field(strict=True, allow_inf_nan=False)
    kind: SourceKind
    source: str = Field(min_length=1)


def _positive(quantity: Quantity) -> Quantity:
    if quantity.value <= 0:
        raise ValueError(f"should be greater than 0, it is {quantity.value:g}")
    return quantity


def _not_negative(quantity: Quantity) -> Quantity:
    if quantity.value < 0:
        raise ValueError(f"should not be negative, it is {quantity.value:g}")
    return quantity


def _whole(quantity: Quantity) -> Quantity:
    if quantity.value < 1 or quantity.value != int(quantity.value):
        raise ValueError(f"should be a whole number of at least 1, it is {quantity.value:g}")
    return quantity


def _share(quantity: Quantity) -> Quantity:
    if not 0 < quantity.value <= 1:
        raise ValueError(f"should be greater than 0 and at most 1, it is {quantity.value:g}")
    return quantity


Positive = Annotated[Quantity, AfterValidator(_positive)]
NotNegative = Annotated[Quantity, AfterValidator(_not_negative)]
Count = Annotated[Quantity, AfterValidator(_whole)]
Share = Annotated[Quantity, AfterValidator(_share)]
