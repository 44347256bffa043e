"""The arguments of one microbatch of a PyTorch step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from flint.errors import FlintError
from flint.frontends.stages.pipeline import microbatch_size
from flint.frontends.torch_graph.export import definition
from flint.frontends.torch_private import pytree
from flint.steps.step import TorchStep


def one_microbatch(step: TorchStep, count: int) -> TorchStep:
    """The step for one of `count` microbatches: its module on a part of the batch.

    The batch is dimension 0 of the first argument that is a tensor; every tensor among arguments
    and arguments of the loss whose dimension 0 has that size is divided, all others stay whole.
    Raises FlintError FL243: there is no batch, or `count` does not divide it.
    """
    batch = batch_size(step)
    place = definition(step.module)
    if batch is None and count > 1:
        raise FlintError(
            "FL243",
            f"no argument has a batch dimension for {count} microbatches",
            place=place,
            help="give the module a tensor whose dimension 0 is the batch",
        )
    size = microbatch_size(batch, count, "the first argument", place) if batch is not None else 0

    def divided(leaf: object) -> object:
        if batch is None or not isinstance(leaf, torch.Tensor) or leaf.shape[:1] != (batch,):
            return leaf
        return leaf.detach().narrow(0, 0, size)

    args, kwargs, loss_args = pytree.tree_map(
        divided, (tuple(step.args), dict(step.kwargs), tuple(step.loss_args))
    )
    return replace(step, args=args, kwargs=kwargs, loss_args=loss_args)


def batch_size(step: TorchStep) -> int | None:
    """Dimension 0 of the first argument that is a tensor with dimensions, or None."""
    return next((int(t.shape[0]) for t in _tensors(step) if t.dim()), None)


def _tensors(step: TorchStep) -> Iterator[torch.Tensor]:
    for leaf in pytree.tree_leaves((tuple(step.args), dict(step.kwargs))):
        if isinstance(leaf, torch.Tensor):
            yield leaf
