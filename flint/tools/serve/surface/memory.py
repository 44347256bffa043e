"""How many tokens the cache of an engine holds: what weights and a pass leave of a device's memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from flint.backends.cost.memory.memory import MemoryKind, MemoryUse
from flint.errors import FlintError
from flint.ir.arrays import Float64s
from flint.text import format_bytes
from flint.tools.serve.surface.lines import OtherLayers
from flint.tools.serve.surface.sizes import FEW_LAYERS, PRODUCTS, PassSizes, fitted, products_of

#: What activations grow with: sequences, new tokens, and scores where a model writes them out.
_GROWS = [PRODUCTS.index(p) for p in ((1, 0, 0), (1, 1, 0), (1, 1, 1), (1, 2, 0))]
_ARGUMENTS = (MemoryKind.PARAMETERS, MemoryKind.STATE, MemoryKind.INPUTS)


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """Bytes of one device of an engine.

    `token_bytes` are those of a token in the cache, `pass_factors` how activations follow `_GROWS`.
    """

    capacity_bytes: int
    weight_bytes: int
    token_bytes: float
    pass_factors: tuple[float, ...]
    runtime_bytes: int

    def pass_bytes(self, sizes: PassSizes) -> int:
        """Activations of a pass."""
        values = products_of(np.array([sizes], dtype=np.float64))[0, _GROWS]
        return round(float(values @ np.array(self.pass_factors)))

    def cache_tokens(self, share: float, pass_bytes: int) -> int:
        """Tokens that fit beside weights and the largest pass into a share of the memory.

        Raises FlintError FL895 if not one does.
        """
        if not self.capacity_bytes:
            raise FlintError(
                "FL895", "the chip's memory is not known", help="give memory_bytes in its file"
            )
        taken = self.weight_bytes + pass_bytes + self.runtime_bytes
        left = self.capacity_bytes * share - taken
        if left < self.token_bytes:
            raise FlintError(
                "FL895",
                f"no cache fits: {share:.0%} of a device's {format_bytes(self.capacity_bytes)} are "
                f"{format_bytes(int(self.capacity_bytes * share))}; weights take "
                f"{format_bytes(self.weight_bytes)}, the largest pass {format_bytes(pass_bytes)}, the runtime "
                f"{format_bytes(self.runtime_bytes)}",
                help="give a larger mesh, narrower weights, or fewer tokens a pass",
            )
        return int(left / self.token_bytes)


def engine_memory(
    uses: Sequence[MemoryUse], sizes: Float64s, whole: Sequence[MemoryUse] = ()
) -> EngineMemory:
    """What memory at sizes (points, 3) says. Raises FlintError FL893 for a model without a cache.

    `whole` are of a model with all layers at the first and the last point, if `uses` are of few; OtherLayers if
    the other layers have other caches.

    A cache is arguments that grow with batch * context. Activations are the least sum of `_GROWS` that is no
    less than what any point has beside its arguments.
    """
    arguments = [_arguments(use) for use in uses]
    (factors,) = fitted(np.array([arguments], dtype=np.int64), sizes)[0].factors
    token_bytes = round(float(factors[PRODUCTS.index((1, 0, 1))]), 3)
    if token_bytes <= 0:
        raise FlintError(
            "FL893",
            "no argument of the model grows with batch * context: it has no cache",
            help="take the keys and values of earlier tokens as an argument, and return them",
        )
    weights = float(factors[PRODUCTS.index((0, 0, 0))])
    beside = [u.peak_bytes - a for u, a in zip(uses, arguments, strict=True)]
    if whole:
        ends = sizes[[0, -1]]
        more = [_arguments(w) - arguments[at] for w, at in zip(whole, (0, -1), strict=True)]
        held = np.column_stack([np.ones(2), ends[:, 0] * (ends[:, 1] + ends[:, 2])])
        in_weights, in_cache = np.linalg.solve(held, np.array(more, dtype=np.float64)).tolist()
        layers = in_cache / token_bytes * FEW_LAYERS
        if abs(layers - round(layers)) > 1e-3:
            raise OtherLayers
        weights, token_bytes = weights + in_weights, round(token_bytes + in_cache, 3)
        sizes = np.vstack([sizes, ends])
        beside += [w.peak_bytes - _arguments(w) for w in whole]
    return EngineMemory(
        uses[0].capacity_bytes,
        round(weights),
        token_bytes,
        _activations(np.maximum(np.array(beside, np.float64), 0), products_of(sizes)[:, _GROWS]),
        uses[0].runtime_bytes,
    )


def _arguments(use: MemoryUse) -> int:
    return sum(use.breakdown.get(kind, 0) for kind in _ARGUMENTS)


def _activations(beside: Float64s, products: Float64s) -> tuple[float, ...]:
    """Factors of no sign below zero with the least squares, raised until no point has more."""
    scaled = products / products.max(axis=0)
    best, least = np.zeros(len(_GROWS)), float(beside @ beside)
    for count in range(1, len(_GROWS) + 1):
        for chosen in combinations(range(len(_GROWS)), count):
            found, *_ = np.linalg.lstsq(scaled[:, chosen], beside, rcond=None)
            off = scaled[:, chosen] @ found - beside
            if (found >= 0).all() and off @ off < least:
                best, least = np.zeros(len(_GROWS)), float(off @ off)
                best[list(chosen)] = found
    reached = scaled @ best
    short = np.divide(beside, reached, out=np.ones_like(beside), where=reached > 0).max()
    return tuple((best / products.max(axis=0) * max(float(short), 1.0)).tolist())
