"""Systolic arrays: one file per model, constants in the chip's cluster file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flint.backends.cost.chips.families.systolic.constants import Systolic, systolic_of
from flint.cluster.tables import Family

if TYPE_CHECKING:
    from flint.backends.cost.chips.model import ChipModel
    from flint.cluster.models import Chip

__all__ = ["FAMILY", "Systolic"]


def _model(chip: Chip) -> ChipModel:
    from flint.backends.cost.chips.families.systolic.model import ScaleSimModel, SystolicModel

    return ScaleSimModel(chip) if systolic_of(chip).mode == "scalesim" else SystolicModel(chip)


FAMILY = Family(Systolic, _model)
