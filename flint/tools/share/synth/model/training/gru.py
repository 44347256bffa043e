"""A GRU over a piece, with its gradients written out.

PyTorch's own multiplies for the gradient of the weights once a step, which for few programs at a
time takes most of the time; here that is one product over all steps.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

Tensor: TypeAlias = Any


class Gru(torch.autograd.Function):
    """Outputs (L, B, H) of `given` (L, B, 3H), the products of the inputs, from `hidden` (B, H).

    `weights` (3H, H) and `bias` (3H,) are of the output before; gates: reset, update, new.
    """

    @staticmethod
    def forward(ctx: Any, given: Tensor, hidden: Tensor, weights: Tensor, bias: Tensor) -> Tensor:
        steps, (batch, width) = len(given), hidden.shape
        gates = torch.empty(steps, batch, 3 * width)
        kept = torch.empty(steps, batch, 3 * width)
        outputs = torch.empty(steps + 1, batch, width)
        outputs[0] = hidden
        turned, cuts = weights.T.contiguous(), (2 * width, width)
        views = [outputs[:-1].unbind(), outputs[1:].unbind(), kept.unbind()]
        for whole in (given, kept, gates):
            views += [part.unbind() for part in whole.split(cuts, -1)]
        resets, updates = (g.unbind() for g in gates[:, :, : 2 * width].chunk(2, -1))
        for before, out, old, mine, my_new, olds, old_new, both, new, reset, update in zip(
            *views, resets, updates, strict=True
        ):
            torch.addmm(bias, before, turned, out=old)
            torch.add(mine, olds, out=both).sigmoid_()
            torch.addcmul(my_new, reset, old_new, out=new)
            torch.lerp(new.tanh_(), before, update, out=out)
        ctx.save_for_backward(outputs, gates, kept[:, :, 2 * width :].clone(), weights)
        return outputs[1:]

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        outputs, gates, kept, weights = ctx.saved_tensors
        reset, update, new = gates.chunk(3, -1)
        to_new = (1 - update) * (1 - new * new)
        to_update = (outputs[:-1] - new) * update * (1 - update)
        to_reset = kept * reset * (1 - reset)
        back = torch.empty_like(gates)  # of what the output before gives to each gate
        of_new = torch.empty_like(new)
        width, carried = new.shape[-1], torch.zeros_like(outputs[0])
        columns = [to_new, to_reset, to_update, reset, update, slopes[0], of_new, back]
        views = [c.unbind() for c in (*columns, *back.split(width, -1))]
        for new_, reset_, update_, r, u, given, mine, whole, a, b, c in zip(
            *(reversed(v) for v in views), strict=True
        ):
            slope = given + carried
            torch.mul(slope, new_, out=mine)
            torch.mul(mine, reset_, out=a)
            torch.mul(slope, update_, out=b)
            torch.mul(mine, r, out=c)
            carried = torch.addmm(slope.mul_(u), whole, weights)
        flat = back.reshape(-1, 3 * width)
        of_weights = flat.T @ outputs[:-1].reshape(-1, width)
        of_given = torch.cat([back[:, :, : 2 * width], of_new], -1)
        return of_given, carried, of_weights, flat.sum(0)
