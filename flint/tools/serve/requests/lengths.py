"""How many tokens prompts and answers have, drawn from distributions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated

import numpy as np
from pydantic import BeforeValidator

from flint.tools.serve.requests.table import Ints

#: Numbers of tokens, each at least 1: as many as it is asked for.
Draw = Callable[[np.random.Generator, int], Ints]


def fixed(tokens: int) -> Draw:
    """The same number each time."""
    return lambda random, n: np.full(n, tokens, np.int64)


def uniform(least: int, most: int) -> Draw:
    """Whole numbers from `least` to `most`, equally often."""
    return lambda random, n: random.integers(least, most, n, np.int64, endpoint=True)


def lognormal(mean: float, sigma: float, most: int = 1 << 20) -> Draw:
    """Numbers whose logarithms are normal: mean of the numbers, deviation of the logarithms.

    Numbers are rounded up, and cut off at `most`, which lowers the mean a little.
    """
    mu = math.log(mean) - sigma**2 / 2
    return lambda random, n: np.clip(np.ceil(random.lognormal(mu, sigma, n)), 1, most).astype(
        np.int64
    )


#: Conversations of ShareGPT, prompt and answer. The means are those of Kwon et al., "Efficient Memory
#: Management for Large Language Model Serving with PagedAttention" (SOSP 2023), figure 11; that both
#: are lognormal, with these deviations and cut off at 2,048 tokens, is an assumption.
SHAREGPT = (lognormal(161.31, 1.2, 2048), lognormal(337.99, 1.0, 2048))


def _length(text: object) -> Draw | None:
    if text is None:
        return None
    name, _, rest = str(text).removesuffix(")").partition("(")
    try:
        numbers = [float(part) for part in rest.split(",")] if rest else [float(name)]
    except ValueError:
        numbers = []
    made = _made(name if rest else "", numbers) if all(0 <= n < 2**31 for n in numbers) else None
    if made is None:
        raise ValueError("should be tokens: 128, uniform(64,256) or lognormal(mean,sigma)")
    return made


def _made(name: str, numbers: list[float]) -> Draw | None:
    match name, numbers:
        case "", [n] if n >= 1 and n.is_integer():
            return fixed(int(n))
        case "uniform", [low, high] if 1 <= low <= high and low.is_integer() and high.is_integer():
            return uniform(int(low), int(high))
        case "lognormal", [mean, sigma] if mean >= 1:
            return lognormal(mean, sigma)
        case "lognormal", [mean, sigma, most] if mean >= 1 and most >= 1:
            return lognormal(mean, sigma, int(most))
    return None


#: A distribution in words: `128`, `uniform(64,256)`, `lognormal(161,1.2)`.
Length = Annotated[Draw | None, BeforeValidator(_length)]
