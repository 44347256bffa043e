"""Chips that start each kernel in a constant time, and then reach their peak or their bandwidth."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from flint.cluster.tables import ChipFamily, Family, NotNegative, Quantity

if TYPE_CHECKING:
    from flint.backends.cost.chips.model import ChipModel
    from flint.cluster.models import Chip


class Dataflow(ChipFamily):
    """The table [chip.dataflow]."""

    table: ClassVar[str] = "dataflow"

    start_ns: NotNegative
    """Time from the start of a kernel to its first byte, in ns."""
    constants: dict[str, Quantity] = Field(default_factory=dict)
    """Fitted constants: this family has none."""


def _model(chip: Chip) -> ChipModel:
    from flint_plugin.prices import (
        DataflowModel,  # formulas load numpy, and readers of files do not
    )

    return DataflowModel(chip)


FAMILY = Family(Dataflow, _model)
