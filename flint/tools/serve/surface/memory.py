"""How many tokens the cache of an engine holds: what weights and a pass leave of a device's memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flint.backends.cost.memory.memory import MemoryKind, MemoryUse
from flint.errors import FlintError
from flint.ir.arrays import Float64s
from flint.text import format_bytes
from flint.tools.serve.surface.sizes import PRODUCTS, fitted

_ARGUMENTS = (MemoryKind.PARAMETERS, MemoryKind.STATE, MemoryKind.INPUTS)


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """Bytes of one device of an engine.

    `pass_bytes` are activations of a pass for each new token, `token_bytes` a token in the cache.
    """

    capacity_bytes: int
    weight_bytes: int
    token_bytes: float
    pass_bytes: float
    runtime_bytes: int

    def cache_tokens(self, share: float, most_new: int) -> int:
        """Tokens that fit beside weights and passes of `most_new` tokens into a share of the memory.

        Raises FlintError FL895 if not one does.
        """
        if not self.capacity_bytes:
            raise FlintError(
                "FL895", "the chip's memory is not known", help="give memory_bytes in its file"
            )
        taken = self.weight_bytes + self.pass_bytes * most_new + self.runtime_bytes
        left = self.capacity_bytes * share - taken
        if left < self.token_bytes:
            raise FlintError(
                "FL895",
                f"no cache fits: {share:.0%} of a device's {format_bytes(self.capacity_bytes)} are "
                f"{format_bytes(int(self.capacity_bytes * share))}; weights take "
                f"{format_bytes(self.weight_bytes)}, a pass of {most_new:,} tokens "
                f"{format_bytes(int(self.pass_bytes * most_new))}, the runtime "
                f"{format_bytes(self.runtime_bytes)}",
                help="give a larger mesh, narrower weights, or fewer tokens a pass",
            )
        return int(left / self.token_bytes)


def engine_memory(uses: Sequence[MemoryUse], sizes: Float64s) -> EngineMemory:
    """What memory at sizes (points, 3) says. Raises FlintError FL893 for a model without a cache.

    A cache is arguments that grow with batch * context. Activations are the largest of what points
    have beside their arguments, for each new token.
    """
    arguments = [sum(use.breakdown.get(kind, 0) for kind in _ARGUMENTS) for use in uses]
    (factors,) = fitted(np.array([arguments], dtype=np.int64), sizes)[0].factors
    token_bytes = float(factors[PRODUCTS.index((1, 0, 1))])
    if token_bytes <= 0:
        raise FlintError(
            "FL893",
            "no argument of the model grows with batch * context: it has no cache",
            help="take the keys and values of earlier tokens as an argument, and return them",
        )
    tokens = sizes[:, 0] * sizes[:, 1]
    beside = [u.peak_bytes - a for u, a in zip(uses, arguments, strict=True)]
    return EngineMemory(
        uses[0].capacity_bytes,
        round(factors[PRODUCTS.index((0, 0, 0))]),
        token_bytes,
        max(float((np.array(beside) / tokens).max()), 0.0),
        uses[0].runtime_bytes,
    )
