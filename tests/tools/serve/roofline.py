"""A chip and a model of 8B parameters as a roofline: what a replay asks of a step surface."""

from collections.abc import Sequence
from dataclasses import dataclass

from flint.tools.serve.step_times import PromptChunk

LAYERS, WIDTH = 32, 4096


@dataclass
class Roofline:
    """16 GB of weights, caches of 128 KiB a token, a chip of 1.5 TB/s and 250 TFLOP/s."""

    cache_tokens: int = 400_000
    longest: int | None = 131_072
    weight_bytes: float = 16e9
    cache_bytes: int = 131_072
    bytes_per_s: float = 1.5e12
    flops_per_s: float = 250e12
    passes: int = 0

    def step_ns(
        self, decodes: int, decode_context: int, chunks: Sequence[PromptChunk] = ()
    ) -> float:
        self.passes += 1
        tokens = decodes + sum(c.new for c in chunks)
        attended = sum(c.new * (c.context + c.new / 2) for c in chunks)
        read = self.weight_bytes + self.cache_bytes * (
            decode_context + sum(c.context for c in chunks)
        )
        flops = self.weight_bytes * tokens + 4 * LAYERS * WIDTH * attended
        return 1e9 * max(read / self.bytes_per_s, flops / self.flops_per_s)

    def transfer_ns(self, tokens: int) -> float:
        return tokens * self.cache_bytes / 50e9 * 1e9
