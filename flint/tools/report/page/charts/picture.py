"""What every chart is: a picture with a name for those who do not see it."""

from __future__ import annotations

import math

from flint.tools.report.page.markup import Markup, tag

# Scales of charts: where round numbers lie between two values.


def round_steps(most: float, count: int = 5, base: float = 10.0) -> list[float]:
    """Multiples of a round number from 0 to `most`, about `count` of them.

    Round are 1, 2 and 5 times a power of ten; with `base` 2, powers of two.
    """
    if most <= 0 or not math.isfinite(most):
        return [0.0]
    raw = most / count
    if base == 2.0:
        step = 2.0 ** math.ceil(math.log2(raw))
    else:
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * (1 - 1e-9))
    return [n * step for n in range(int(most / step * (1 + 1e-9)) + 1)]


def decades(low: float, high: float) -> list[int]:
    """Exponents of the powers of ten from at most `low` to at least `high`."""
    return list(range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1))


def picture(label: str, height: object, *inside: object, cls: str = "chart") -> Markup:
    """A picture as wide as its place, `height` pixels high; `label` says what it shows."""
    return tag(
        "svg",
        tag("title", label),
        *inside,
        cls=cls,
        role="img",
        aria_label=label,
        width="100%",
        height=height,
    )
