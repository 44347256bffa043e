"""Families of chips: what a cluster file's table [chip.NAME] says of a GPU, of systolic arrays ...

A family is one module, or one package, of `FAMILIES`, which holds its table (a `ChipFamily`) beside
its prices (a `ChipModel`). Nothing else names it: what is put there may stand in cluster files.
"""

from __future__ import annotations

import pkgutil
from abc import abstractmethod
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pydantic import create_model

from flint.cluster.quantity import Model

if TYPE_CHECKING:
    from flint.backends.cost.chips.model import ChipModel
    from flint.cluster.models import Chip

#: Where families are found. It is the one place in which a lower floor knows of a higher one: by
#: its name, so that a chip is one module and not two.
FAMILIES = "flint.backends.cost.chips.families"
M = TypeVar("M", bound=Model)


class ChipFamily(Model):
    """A table [chip.`table`] of a cluster file, with the keys that the family's prices read."""

    table: ClassVar[str]

    @abstractmethod
    def model(self, chip: Chip) -> ChipModel:
        """The prices of a chip with this table. It imports them: whoever reads a file needs none."""


def families() -> tuple[type[ChipFamily], ...]:
    """The tables that a chip may have, sorted by their names."""
    for module in pkgutil.iter_modules(import_module(FAMILIES).__path__):
        import_module(f"{FAMILIES}.{module.name}")
    found = ChipFamily.__subclasses__()
    for family in found:  # which grows: a family may be a change of another
        found += family.__subclasses__()
    return tuple(sorted(found, key=lambda family: family.table))


def with_families(chip: type[M]) -> type[M]:
    """The model of a chip with a key for each family, none of which has to be there."""
    keys: dict[str, Any] = {family.table: (family | None, None) for family in families()}
    return create_model(
        chip.__name__, __base__=chip, __module__=chip.__module__, __doc__=chip.__doc__, **keys
    )
