"""Collectives of tensor and sequence parallelism, as Transformer Engine makes them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

__all__ = ["all_reduce", "gather_rows", "reduce_scatter_rows", "size_of"]


def size_of(group: Any) -> int:
    """How many ranks a group has; one if there is none."""
    return dist.get_world_size(group) if group is not None else 1


def gather_rows(x: torch.Tensor, group: Any, *, asynchronous: bool = False) -> tuple[Any, Any]:
    """The rows of all ranks, and what to wait for."""
    out = x.new_empty((x.shape[0] * size_of(group), *x.shape[1:]))
    work = dist.all_gather_into_tensor(out, x.contiguous(), group=group, async_op=asynchronous)
    return out, work


def reduce_scatter_rows(
    x: torch.Tensor, group: Any, *, asynchronous: bool = False
) -> tuple[Any, Any]:
    """This rank's rows of the sum over ranks, and what to wait for."""
    out = x.new_empty((x.shape[0] // size_of(group), *x.shape[1:]))
    work = dist.reduce_scatter_tensor(out, x.contiguous(), group=group, async_op=asynchronous)
    return out, work


def all_reduce(x: torch.Tensor, group: Any, *, asynchronous: bool = False) -> tuple[Any, Any]:
    """The sum over ranks, in place, and what to wait for."""
    work = dist.all_reduce(x, group=group, async_op=asynchronous)
    return x, work
