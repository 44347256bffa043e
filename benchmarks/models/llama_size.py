"""The size of a Llama, of which the programs here have more fields for how they run it."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class LlamaSize:
    """Llama 3 8B if nothing else is said; steps are of `micro_batch` sequences of `seq` tokens."""

    hidden: int = 4096
    layers: int = 32
    heads: int = 32
    kv_heads: int = 8
    ffn: int = 14_336
    vocab: int = 128_256
    seq: int = 8192
    micro_batch: int = 1

    @property
    def head_dim(self) -> int:
        """Elements of a head."""
        return self.hidden // self.heads
