"""What modules with weights share: groups, parameters, and how a weight is split over ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from flint.tools.stand_ins.transformer_engine.fp8 import FP8GlobalStateManager
from flint.tools.stand_ins.transformer_engine.groups import size_of
from flint.tools.stand_ins.transformer_engine.products import packed
from flint.tools.stand_ins.transformer_engine.recipes import Recipe

__all__ = ["TransformerEngineBaseModule", "get_dummy_wgrad", "get_workspace"]


def get_workspace() -> torch.Tensor:
    """Memory for cuBLAS: none is needed."""
    return torch.empty(0, dtype=torch.uint8)


def get_dummy_wgrad(shape: list[int], dtype: torch.dtype, zero: bool = False) -> torch.Tensor:
    """What autograd gets for a weight whose gradient is elsewhere."""
    made = torch.zeros if zero else torch.empty
    return made(shape, dtype=dtype, device="cuda")


def device_of(device: Any) -> Any:
    """The device that a module was asked to make its parameters on."""
    return torch.device("cuda", device) if isinstance(device, int) else device


class TransformerEngineBaseModule(nn.Module):
    """A module with weights that tensor parallelism may split."""

    def __init__(self) -> None:
        super().__init__()
        self.fp8_meta: dict[str, Any] = {"fp8_checkpoint": False, "recipe": None}
        self.fp8 = self.fp8_calibration = self.fp8_initialized = False
        self.tp_group: Any = None
        self.tp_size = 1
        self.sequence_parallel = False
        self.save_original_input = False

    def _split(self, group: Any, size: int, sequence_parallel: bool, mode: str | None) -> None:
        """Remember how the module is split. A group that comes later has `size` ranks."""
        self.tp_group = group
        self.tp_size = size_of(group) if group is not None else size
        self.parallel_mode = mode
        self.sequence_parallel = self.tp_size > 1 and sequence_parallel

    def set_tensor_parallel_group(self, tp_group: Any) -> None:
        """The group, where it was made after the module."""
        self.tp_group = tp_group

    def init_fp8_metadata(self, num_gemms: int = 1) -> None:
        """Scales, which have no values here."""

    def recipe(self) -> Recipe | None:
        """How the module's products are quantized now; None for those in its own type."""
        if not FP8GlobalStateManager.is_fp8_enabled():
            return None
        return FP8GlobalStateManager.get_fp8_recipe()

    def get_extra_state(self) -> torch.Tensor:
        """What a checkpoint keeps of fp8: nothing."""
        return torch.empty(0, dtype=torch.uint8)

    def set_extra_state(self, state: Any) -> None:
        """As above."""

    def _weight(self, name: str, shape: tuple[int, ...], given: Any, split: int | None) -> None:
        """Make a parameter. `given` are its type, its device and what fills it.

        `split` is the dimension that ranks share, for Megatron, which asks parameters for it.
        """
        dtype, device, fill = given
        narrow = FP8GlobalStateManager.type_of_parameters()
        if narrow is not None and len(shape) > 1:
            dtype, fill, shape = narrow, None, (*shape[:-1], shape[-1] // packed(narrow))
        made = nn.Parameter(torch.empty(shape, dtype=dtype, device=device_of(device)))
        if narrow is not None and len(shape) > 1:  # to a program it is a tensor of bf16
            vars(made)["type"] = lambda: "torch.cuda.BFloat16Tensor"
        if fill is not None and made.device.type != "meta":
            with torch.no_grad():
                fill(made)
        if split is not None:
            vars(made).update(tensor_model_parallel=True, partition_dim=split, partition_stride=1)
        self.register_parameter(name, made)
