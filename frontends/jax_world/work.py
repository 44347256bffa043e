"""How heavy a traced function is, to tell a training step from what prepares it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, order=True)
class Weight:
    """FLOPs of products and convolutions of one call, over all devices, and all equations run.

    `writes` are equations that write a part of an array, as of a cache.
    Loops of known length count as often as they run, other loops once. It ranks functions; what is
    printed of a captured step is counted after partitioning.
    """

    flops: int = 0
    equations: int = 0
    writes: int = 0

    def __add__(self, other: Weight) -> Weight:
        sums = (self.flops + other.flops, self.equations + other.equations)
        return Weight(*sums, self.writes + other.writes)

    def __mul__(self, times: int) -> Weight:
        return Weight(self.flops * times, self.equations * times, self.writes * times)


class Weights:
    """Weights of jaxprs, each counted once."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[Any, Weight]] = {}

    def of(self, program: Any) -> Weight:
        """The weight of a (closed) jaxpr."""
        jaxpr = getattr(program, "jaxpr", program)
        kept = self._found.get(id(jaxpr))
        if kept is None:
            total = sum((self._of(e) for e in jaxpr.eqns), Weight())
            kept = self._found[id(jaxpr)] = (jaxpr, total)
        return kept[1]

    def _of(self, equation: Any) -> Weight:
        name, params = equation.primitive.name, equation.params
        inner = [self.of(p) for p in _programs(params)]
        if name == "cond":
            return Weight(0, 1) + max(inner, default=Weight())
        flops = _FLOPS[name](equation) if name in _FLOPS else 0
        times = int(params["length"]) if name == "scan" else 1
        if name == "shard_map":
            times = math.prod(params["mesh"].shape.values())
        return Weight(flops, 1, int(name in _WRITES)) + sum(inner, Weight()) * times


def _programs(params: Any) -> list[Any]:
    found = []
    for value in params.values():
        for item in value if isinstance(value, list | tuple) else (value,):
            if hasattr(getattr(item, "jaxpr", item), "eqns"):
                found.append(item)
    return found


def _dot(equation: Any) -> int:
    (left, _), _ = equation.params["dimension_numbers"]
    contracted = math.prod(int(equation.invars[0].aval.shape[i]) for i in left)
    return 2 * contracted * _size(equation.outvars[0])


def _convolution(equation: Any) -> int:
    kernel = equation.invars[1].aval.shape
    features = int(kernel[equation.params["dimension_numbers"].rhs_spec[0]])
    return 2 * _size(equation.outvars[0]) * _size(equation.invars[1]) // max(features, 1)


def _size(value: Any) -> int:
    return math.prod(map(int, value.aval.shape))


_WRITES = ("dynamic_update_slice", "scatter")
_FLOPS = {"dot_general": _dot, "conv_general_dilated": _convolution}
