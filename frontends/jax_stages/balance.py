"""Layers over stages: how many each stage gets, by number or by estimated FLOPs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from flint.errors import FlintError


def split_layers(
    count: int,
    stages: int,
    split: str | Sequence[int],
    name: str,
    around: tuple[int, int, int] = (0, 1, 0),
) -> list[int]:
    """How many of `count` layers each of `stages` stages gets; at least one.

    `around` are the FLOPs before, of one and after the layers, for the split "balanced". Raises
    FlintError: FL242 (a stage without layers), FL240 (a split that is none).
    """
    if stages > count:
        raise FlintError(
            "FL242",
            f"{stages} stages for {count} layers of '{name}': {stages - count} would be empty",
            help=f"take at most {count} stages: a smaller pipeline axis or fewer chunks",
        )
    if split == "uniform":
        return [count // stages + (i < count % stages) for i in range(stages)]
    if split == "balanced":
        return balanced(count, stages, *around)
    if isinstance(split, str):
        raise FlintError(
            "FL240",
            f"there is no split '{split}' of layers",
            help='choose "uniform", "balanced" or a list of numbers of layers',
        )
    return _by_list(count, stages, list(split), name)


def _by_list(count: int, stages: int, numbers: list[int], name: str) -> list[int]:
    if len(numbers) != stages or sum(numbers) != count:
        raise FlintError(
            "FL240",
            f"the split {numbers} of '{name}' has {len(numbers)} numbers that add up to "
            f"{sum(numbers)}, for {stages} stages and {count} layers",
            help="give one number of layers per stage, in all as many as there are layers",
        )
    for stage, number in enumerate(numbers):
        if number < 1:
            raise FlintError(
                "FL242",
                f"the split {numbers} of '{name}' leaves stage {stage} without layers",
                help="give each stage at least one layer",
            )
    return numbers


def balanced(count: int, stages: int, before: int, each: int, after: int) -> list[int]:
    """The split with the smallest largest stage, in FLOPs; each stage has at least one layer.

    Layers are given one by one to the stage that is then the smallest, the later one of equals:
    earlier stages hold more activations. With equal layers that is the best possible.
    """
    loads = [each] * stages
    loads[0] += before
    loads[-1] += after
    numbers = [1] * stages
    for _ in range(count - stages):
        least = min(reversed(range(stages)), key=lambda s: (loads[s], numbers[s]))
        numbers[least] += 1
        loads[least] += each
    return numbers


def jaxpr_flops(jaxpr: Any) -> int:
    """FLOPs of the matrix products and convolutions in a jaxpr: two per multiply and add.

    A scan counts as often as it runs, of a `cond` the largest branch, a `while` once.
    """
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    return sum(map(_equation_flops, jaxpr.eqns))


def _equation_flops(equation: Any) -> int:
    kind = equation.primitive.name
    if kind == "dot_general":
        return _dot_flops(equation)
    if kind == "conv_general_dilated":
        return _convolution_flops(equation)
    inside = [jaxpr_flops(j) for j in _inner(equation)]
    if kind == "cond":
        return max(inside, default=0)
    return sum(inside) * int(equation.params.get("length", 1) if kind == "scan" else 1)


def _inner(equation: Any) -> list[Any]:
    from jax.extend import core

    found = []
    for value in equation.params.values():
        items = value if isinstance(value, list | tuple) else (value,)
        found += [v for v in items if isinstance(v, core.Jaxpr | core.ClosedJaxpr)]
    return found


def _dot_flops(equation: Any) -> int:
    (contracted, _), _ = equation.params["dimension_numbers"]
    left = equation.invars[0].aval.shape
    shared = math.prod(int(left[d]) for d in contracted)
    return 2 * math.prod(map(int, equation.outvars[0].aval.shape)) * shared


def _convolution_flops(equation: Any) -> int:
    kernel, numbers = equation.invars[1].aval.shape, equation.params["dimension_numbers"]
    outputs = math.prod(map(int, equation.outvars[0].aval.shape))
    return 2 * outputs * math.prod(map(int, kernel)) // int(kernel[numbers.rhs_spec[0]])
