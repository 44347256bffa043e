"""How many tokens prompts and answers have, drawn from distributions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from flint.tools.serve.requests.table import Ints


class Length(Protocol):
    """A distribution of numbers of tokens."""

    def draw(self, random: np.random.Generator, n: int) -> Ints:
        """`n` numbers of at least 1."""
        ...


@dataclass(frozen=True)
class Fixed:
    """The same number each time."""

    tokens: int

    def draw(self, random: np.random.Generator, n: int) -> Ints:
        """`n` times the number."""
        return np.full(n, self.tokens, np.int64)


@dataclass(frozen=True)
class Uniform:
    """Whole numbers from `least` to `most`, equally often."""

    least: int
    most: int

    def draw(self, random: np.random.Generator, n: int) -> Ints:
        """`n` independent numbers."""
        return random.integers(self.least, self.most, n, dtype=np.int64, endpoint=True)


@dataclass(frozen=True)
class Lognormal:
    """Numbers whose logarithms are normal: mean of the numbers, deviation of the logarithms.

    Numbers are rounded up, and cut off at `most`, which lowers the mean a little.
    """

    mean: float
    sigma: float
    most: int = 1 << 20

    def draw(self, random: np.random.Generator, n: int) -> Ints:
        """`n` independent numbers."""
        mu = math.log(self.mean) - self.sigma**2 / 2
        drawn = np.ceil(random.lognormal(mu, self.sigma, n))
        return np.clip(drawn, 1, self.most).astype(np.int64)


#: Conversations of ShareGPT, prompt and answer. The means are those of Kwon et al., "Efficient Memory
#: Management for Large Language Model Serving with PagedAttention" (SOSP 2023), figure 11; that both
#: are lognormal, with these deviations and cut off at 2,048 tokens, is an assumption.
SHAREGPT = (Lognormal(161.31, 1.2, 2048), Lognormal(337.99, 1.0, 2048))


def length(text: str) -> Length:
    """Reads `128`, `uniform(64,256)` or `lognormal(161,1.2)`; raises ValueError for anything else."""
    name, _, rest = text.removesuffix(")").partition("(")
    try:
        numbers = [float(part) for part in rest.split(",")] if rest else [float(name)]
    except ValueError:
        numbers = []
    made = _made(name if rest else "", numbers)
    if made is None or not all(math.isfinite(n) and 0 <= n < 2**31 for n in numbers):
        raise ValueError("tokens: 128, uniform(64,256) or lognormal(mean,sigma)")
    return made


def _made(name: str, numbers: list[float]) -> Length | None:
    match name, numbers:
        case "", [n] if n >= 1 and n.is_integer():
            return Fixed(int(n))
        case "uniform", [low, high] if 1 <= low <= high and (low + high).is_integer():
            return Uniform(int(low), int(high))
        case "lognormal", [mean, sigma] if mean >= 1:
            return Lognormal(mean, sigma)
        case "lognormal", [mean, sigma, most] if mean >= 1 and most >= 1:
            return Lognormal(mean, sigma, int(most))
    return None
