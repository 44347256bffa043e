"""Sizes of models, drawn independently of each other, odd ones among them."""

from __future__ import annotations

from random import Random
from typing import Any

#: What a family draws for a model: names and plain values.
Options = dict[str, Any]

LAYERS = (2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 28, 32, 36, 40, 48, 60, 64, 80, 96)
LENGTHS = (
    128,
    256,
    384,
    512,
    768,
    1024,
    1536,
    2048,
    2048,
    3072,
    4096,
    4096,
    6144,
    8192,
    16_384,
    32_768,
)
VOCABS = (8000, 30_522, 32_000, 32_003, 32_128, 49_152, 50_257, 50_304, 51_200, 65_536, 100_352, 128_256, 151_936, 250_112, 256_000)  # fmt: skip
HEADS = (4, 8, 8, 12, 12, 16, 16, 20, 24, 32, 32, 40, 48, 64, 96, 128)
HEAD_DIMS = (64, 64, 80, 96, 128, 128, 128, 160, 256)
WIDTHS = (
    256,
    384,
    512,
    640,
    768,
    1024,
    1152,
    1280,
    1408,
    1536,
    2048,
    2560,
    3072,
    4096,
    5120,
    6144,
    8192,
)


def drawn_width(rng: Random, most: int = 16_384) -> Options:
    """Heads, their size, and the width that they make; now and then they are less than the width."""
    while True:
        heads, head_dim = rng.choice(HEADS), rng.choice(HEAD_DIMS)
        dim = heads * head_dim if rng.random() < 0.85 else rng.choice(WIDTHS)
        if 256 <= dim <= most:
            return {"dim": dim, "heads": heads, "head_dim": head_dim}


def drawn_ffn(rng: Random, dim: int) -> int:
    """Four times the width, or another factor, rounded to another multiple; or a size of its own."""
    factor = rng.choice((4, 4, 4, 8 / 3, 3.5, 2, 3, 5.3))
    multiple = rng.choice((64, 128, 256, 256, 512))
    return (
        rng.choice((11_008, 6912, 13_824))
        if rng.random() < 0.08
        else int(-(-dim * factor // multiple) * multiple)
    )


def drawn_transformer(rng: Random, most: int = 16_384) -> Options:
    """Width, depth, heads and the inner width of a stack of layers."""
    found = drawn_width(rng, most)
    return {**found, "layers": rng.choice(LAYERS), "ffn": drawn_ffn(rng, found["dim"])}


def divisor_at_most(number: int, most: int) -> int:
    """The largest divisor that is no more than `most`."""
    return next(d for d in range(min(number, most), 0, -1) if number % d == 0)
