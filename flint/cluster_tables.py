"""Tables of numbers in a cluster file: which names each may have, and which values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from flint.cluster_error import unknown, wrong
from flint.cluster_file import chips_with_constants
from flint.cluster_names import ELEMENT_TYPES, GPU, NETWORK, SYSTOLIC, Limit, limit_of, names_of
from flint.errors import nearest
from flint.quantity import Positive, Quantity


def _named(known: Mapping[str, Limit]) -> BeforeValidator:
    """Refuse constants that the table `known` does not have."""

    def check(table: Any) -> Any:
        for name in table if isinstance(table, dict) else ():
            if limit_of(known, name) is None:
                raise unknown(name, names_of(known), table[name])
        return table

    return BeforeValidator(check)


def _limited(known: Mapping[str, Limit]) -> AfterValidator:
    """Refuse constants with values that the table `known` does not allow."""

    def check(table: dict[str, Quantity]) -> dict[str, Quantity]:
        for name, quantity in table.items():
            limit = limit_of(known, name)
            if limit is not None and not limit.allows(quantity.value):
                raise wrong(f"should be {limit}, it is {quantity.value:g}", name)
        return table

    return AfterValidator(check)


def _typed(table: Any) -> Any:
    """Refuse peaks of types that are none."""
    for name in table if isinstance(table, dict) else ():
        if name not in ELEMENT_TYPES:
            raise unknown(name, list(ELEMENT_TYPES), table[name])
    return table


def _has_constants(name: str) -> str:
    """Refuse a chip to be `like` that has no constants."""
    known = chips_with_constants() if name else {}
    if name and name not in known:
        said = f"is '{name}', which is no chip with constants{nearest(name, list(known))}"
        raise wrong(said, help=f"one of {', '.join(known)}")
    return name


GpuConstants = Annotated[dict[str, Quantity], _named(GPU), _limited(GPU)]
SystolicConstants = Annotated[dict[str, Quantity], _named(SYSTOLIC), _limited(SYSTOLIC)]
NetworkConstants = Annotated[dict[str, Quantity], _named(NETWORK), _limited(NETWORK)]
Peaks = Annotated[dict[str, Positive], BeforeValidator(_typed)]
Like = Annotated[str, AfterValidator(_has_constants)]
