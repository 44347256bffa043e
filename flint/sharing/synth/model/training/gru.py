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
        turned = weights.T.contiguous()
        for before, out, mine, old, now in zip(
            outputs, outputs[1:], given, kept, gates, strict=False
        ):
            torch.addmm(bias, before, turned, out=old)
            both, new = now[:, : 2 * width], now[:, 2 * width :]
            torch.add(mine[:, : 2 * width], old[:, : 2 * width], out=both).sigmoid_()
            torch.addcmul(mine[:, 2 * width :], both[:, :width], old[:, 2 * width :], out=new)
            torch.lerp(new.tanh_(), before, both[:, width:], out=out)
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
        for step in range(len(new) - 1, -1, -1):
            slope = slopes[0][step] + carried
            mine = torch.mul(slope, to_new[step], out=of_new[step])
            torch.mul(mine, to_reset[step], out=back[step, :, :width])
            torch.mul(slope, to_update[step], out=back[step, :, width : 2 * width])
            torch.mul(mine, reset[step], out=back[step, :, 2 * width :])
            carried = torch.addmm(slope.mul_(update[step]), back[step], weights)
        flat = back.reshape(-1, 3 * width)
        of_weights = flat.T @ outputs[:-1].reshape(-1, width)
        of_given = torch.cat([back[:, :, : 2 * width], of_new], -1)
        return of_given, carried, of_weights, flat.sum(0)
