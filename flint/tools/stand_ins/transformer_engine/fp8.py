"""Whether products are those of fp8 now, and by which recipe."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from flint.tools.stand_ins.transformer_engine.recipes import DelayedScaling, Recipe

__all__ = [
    "FP8GlobalStateManager",
    "check_fp8_support",
    "check_mxfp8_support",
    "fp8_autocast",
    "fp8_model_init",
    "get_default_fp8_recipe",
    "is_fp8_available",
]


class FP8GlobalStateManager:
    """The recipe in force."""

    _recipes: list[Recipe | None] = []  # noqa: RUF012
    _weights: list[torch.dtype | None] = []  # noqa: RUF012

    @classmethod
    def is_fp8_enabled(cls) -> bool:
        """Whether products are those of fp8."""
        return bool(cls._recipes) and cls._recipes[-1] is not None

    @classmethod
    def get_fp8_recipe(cls) -> Recipe:
        """The recipe in force."""
        found = cls._recipes[-1] if cls._recipes else None
        return found or get_default_fp8_recipe()

    @classmethod
    def is_fp8_calibration(cls) -> bool:
        """Whether scales are only collected: never here."""
        return False

    @classmethod
    def with_fp8_parameters(cls) -> bool:
        """Whether parameters that are made now are kept in fp8 or fp4."""
        return cls.type_of_parameters() is not None

    @classmethod
    def type_of_parameters(cls) -> torch.dtype | None:
        """What weights that are made now are kept in, if not in their own type."""
        return cls._weights[-1] if cls._weights else None

    @classmethod
    def reset(cls) -> None:
        """Forget the recipe."""
        cls._recipes.clear()

    @classmethod
    def set_skip_fp8_weight_update_tensor(cls, skip: bool) -> None:
        """CUDA graphs say so; weights are quantized where the first microbatch is."""

    @classmethod
    def is_fp8_available(cls) -> tuple[bool, str]:
        """Whether the chip can: it is not known here."""
        return True, ""


def get_default_fp8_recipe() -> Recipe:
    """Delayed scaling."""
    return DelayedScaling()


def is_fp8_available(return_reason: bool = False) -> Any:
    """Whether the chip can."""
    return (True, "") if return_reason else True


def check_fp8_support() -> tuple[bool, str]:
    """Whether the chip can, and why not."""
    return True, ""


def check_mxfp8_support() -> tuple[bool, str]:
    """Whether the chip can, and why not."""
    return True, ""


@contextmanager
def fp8_autocast(
    enabled: bool = True,
    calibrating: bool = False,
    fp8_recipe: Recipe | None = None,
    fp8_group: Any = None,
    _graph: bool = False,
) -> Iterator[None]:
    """Inside, products of Transformer Engine's modules are those of fp8, if `enabled`."""
    state = FP8GlobalStateManager._recipes
    state.append((fp8_recipe or get_default_fp8_recipe()) if enabled else None)
    try:
        yield
    finally:
        if state:
            state.pop()


@contextmanager
def fp8_model_init(
    enabled: bool = True,
    recipe: Recipe | None = None,
    preserve_high_precision_init_val: bool = False,
) -> Iterator[None]:
    """Weights of products that are made inside are kept in the recipe's type alone."""
    dtype = (recipe or get_default_fp8_recipe()).fp8_format.value.fwd
    FP8GlobalStateManager._weights.append(dtype if enabled else None)
    try:
        yield
    finally:
        FP8GlobalStateManager._weights.pop()
