"""Classes of tensors in fp8, for `isinstance`, and what distributed optimizers do with these.

A parameter in fp8 is a tensor of that type here: its storage, and what it weighs.
"""

from __future__ import annotations

from typing import Any

import torch

from flint.tools.stand_ins.transformer_engine.products import quantize

__all__ = [
    "Float8Tensor",
    "MXFP8Tensor",
    "QuantizedTensor",
    "cast_master_weights_to_fp8",
    "replace_raw_data",
]


class _OfFp8(type):
    def __instancecheck__(cls, tensor: Any) -> bool:
        return getattr(tensor, "dtype", None) is torch.float8_e4m3fn


class QuantizedTensor(metaclass=_OfFp8):
    """A tensor that is kept in fp8."""


class Float8Tensor(QuantizedTensor):
    """One with a scale for all elements."""


class MXFP8Tensor:
    """One with a scale for 32 elements."""


def replace_raw_data(tensor: Any, new_raw_data: Any) -> None:
    """Keep a parameter's numbers in a part of a buffer of bytes."""
    tensor.data = new_raw_data.view(tensor.dtype)


def cast_master_weights_to_fp8(
    model_weights: Any, master_weights: Any, start_offsets: Any, group: Any, *_: Any, **__: Any
) -> None:
    """Write this rank's part of each weight in fp8; the maxima of all are reduced at once."""
    amaxes = torch.empty(len(model_weights), dtype=torch.float32, device="cuda")
    torch.distributed.all_reduce(amaxes, op=torch.distributed.ReduceOp.MAX, group=group)
    for weight, master, start in zip(model_weights, master_weights, start_offsets, strict=True):
        if master is not None:
            part = weight.view(-1)[start : start + master.numel()]
            part.copy_(quantize(master.view(1, -1), weight.dtype, True, False, 0)[0].view(-1))
