"""Context parallelism of `DotProductAttention`: keys and values go round a ring of ranks.

Of a causal sequence each rank has a piece from the start and its mirror image from the end, so that
all ranks calculate the same: its own square, then with keys of ranks before it all queries and the
first half of the keys, with those of ranks behind it the second half of the queries and all keys.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from flint.frontends.torch_world.packages.attention import Square, kernels_of
from flint.frontends.torch_world.packages.kernels import calculation, kernel

__all__ = ["attend_in_ring"]


@kernel(
    "te::lse_correction",
    "(Tensor(a!) lse, Tensor step) -> ()",
    lambda call: calculation(
        3 * call.operands[1].num_elements, functions=2 * call.operands[1].num_elements
    ),
)
def _lse_correction(lse: Any, step: Any) -> None:
    """The logarithm of the sum over all keys so far."""


@kernel(
    "te::out_correction",
    "(Tensor(a!) out, Tensor step, Tensor lse, Tensor lse_step) -> ()",
    lambda call: calculation(
        2 * call.operands[1].num_elements, functions=call.operands[3].num_elements
    ),
)
def _out_correction(out: Any, step: Any, lse: Any, lse_step: Any) -> None:
    """A step's result by its share of the sum, added."""


class _Ring:
    """This rank's place in a ring, and what it calculates in each step."""

    def __init__(self, group: Any, square: Square, length: int) -> None:
        self.group, self.size, self.rank = group, dist.get_world_size(group), dist.get_rank(group)
        self._square, self._length = square, length
        self._causal = square.mask != 0
        around = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        self._next, self._last = (dist.get_global_rank(group, at) for at in around)

    def part(self, source: int) -> tuple[bool, bool, Square]:
        """Whether the second half of the queries or the first of the keys alone take part."""
        square, half = self._square, self._length // 2
        if not self._causal or source == self.rank:
            return False, False, square
        if source < self.rank:
            return False, True, replace(square, keys=half, mask=0)
        return True, False, replace(square, queries=half, mask=0)

    def exchange(self, sent: Any, found: Any, *, back: bool = False) -> list[Any]:
        """Send to the next rank what the last one fills `found` with; what to wait for.

        The backward pass goes the other way.
        """
        to, source = (self._last, self._next) if back else (self._next, self._last)
        ops = [
            dist.P2POp(dist.isend, sent, to, self.group),
            dist.P2POp(dist.irecv, found, source, self.group),
        ]
        return list(dist.batch_isend_irecv(ops))


def _half(tensor: Any, along: int, second: bool) -> Any:
    length = tensor.shape[along] // 2
    return tensor.narrow(along, length if second else 0, length)


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, square: Square, along: int, group: Any) -> Any:
        ring = _Ring(group, square, q.shape[along])
        pair = torch.stack([k, v])
        steps = []
        for turn in range(ring.size):
            found, works = pair, list[Any]()
            if turn + 1 < ring.size:
                found = torch.empty_like(pair)
                works = ring.exchange(pair, found)
            later, earlier, part = ring.part((ring.rank - turn) % ring.size)
            queries = _half(q, along, True) if later else q
            keys, values = (_half(t, along, False) if earlier else t for t in pair)
            steps.append((later, *kernels_of("te")[0](queries, keys, values, None, *_sizes(part))))
            if turn:
                _lse_correction(steps[0][2], steps[-1][2])
            for work in works:
                work.wait()
            pair = found
        out, lse = torch.zeros_like(q), steps[0][2]
        for later, result, own in steps:
            _out_correction(_half(out, along, True) if later else out, result, lse, own)
        ctx.save_for_backward(q, pair, out, lse)  # where the ring ends, the way back begins
        ctx.ring, ctx.along = ring, along
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        q, pair, out, lse = ctx.saved_tensors
        ring, along, grad = ctx.ring, ctx.along, gradients[0].contiguous()
        of_q = torch.zeros_like(q)
        held = torch.empty((2, *pair.shape), dtype=pair.dtype, device=pair.device)
        held[0].copy_(pair)
        for turn in range(ring.size):
            # keys and values with their gradients so far: not these at first, not those at last
            first, last = turn == 0, turn + 1 == ring.size
            found = torch.empty_like(held)
            moved = slice(0, 1) if first else slice(1, 2) if last else slice(0, 2)
            works = ring.exchange(held[moved], found[moved], back=True)
            later, earlier, part = ring.part((ring.rank + 1 + turn) % ring.size)
            queries, of_out, result = (
                _half(t, along, True) if later else t for t in (q, grad, out)
            )
            keys, values = (_half(t, along, False) if earlier else t for t in held[0])
            of = kernels_of("te")[1](
                *(of_out, queries, keys, values, None, result, lse, *_sizes(part))
            )
            (_half(of_q, along, True) if later else of_q).add_(of[0])
            for work in works:
                work.wait()
            if first:
                found[1].zero_()
            for at in (0, 1):
                into = found[1][at]
                (_half(into, along, False) if earlier else into).add_(of[1 + at])
            held = found
        return of_q, held[1][0], held[1][1], None, None, None


def _sizes(square: Square) -> tuple[int, int, int, int, int]:
    return square.heads, square.queries, square.keys, square.mask, square.scores


def attend_in_ring(q: Any, k: Any, v: Any, square: Square, along: int, group: Any) -> Any:
    """Attention of a sequence that the ranks of a group share along dimension `along`."""
    return _RingAttention.apply(q, k, v, square, along, group)
