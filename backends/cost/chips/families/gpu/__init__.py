"""GPUs: one file per model, constants in the chip's cluster file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flint.backends.cost.chips.families.gpu.constants import Gpu
from flint.cluster.tables import Family

if TYPE_CHECKING:
    from flint.backends.cost.chips.model import ChipModel
    from flint.cluster.models import Chip

__all__ = ["FAMILY", "Gpu"]


def _model(chip: Chip) -> ChipModel:
    from flint.backends.cost.chips.families.gpu.model import GpuModel

    return GpuModel(chip)


FAMILY = Family(Gpu, _model)
