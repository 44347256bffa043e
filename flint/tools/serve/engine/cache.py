"""The paged key-value cache of one engine: blocks of sequences, and blocks of prompts that are kept.

Blocks without a hash are only counted. Blocks with one are held in units (as many tokens as a hash of
the requests stands for): by sequences, or idle until their place is needed, the longest unused first.
"""

from __future__ import annotations

import itertools


class PagedCache:
    """Blocks of `block_tokens`; `unit_tokens` are what one hash stands for, 0 without hashes."""

    def __init__(self, tokens: int, block_tokens: int, unit_tokens: int) -> None:
        self.block_tokens = block_tokens
        self.blocks = tokens // block_tokens
        self.used = 0
        self.unit_tokens = unit_tokens
        self.unit_blocks = -(-unit_tokens // block_tokens)
        self._held: dict[int, int] = {}
        self._idle: dict[int, None] = {}

    @property
    def available(self) -> int:
        """Blocks that can be taken; idle ones give way."""
        return self.blocks - self.used

    def blocks_of(self, tokens: int) -> int:
        """Blocks that so many tokens of a sequence take."""
        return -(-tokens // self.block_tokens)

    def take(self, blocks: int) -> None:
        """Use blocks; the caller saw that they are available."""
        self.used += blocks
        self._make_way()

    def give(self, blocks: int) -> None:
        """Free blocks without a hash."""
        self.used -= blocks

    def hits(self, hashes: list[int]) -> int:
        """How many of the first units are there."""
        there = (one in self._held or one in self._idle for one in hashes)
        return sum(1 for _ in itertools.takewhile(bool, there))

    def idle_blocks(self, hashes: list[int]) -> int:
        """Blocks of those units that no sequence holds."""
        return self.unit_blocks * sum(one in self._idle for one in hashes)

    def hold(self, hashes: list[int]) -> None:
        """Hold units that are there."""
        for one in hashes:
            if one in self._idle:
                del self._idle[one]
                self.used += self.unit_blocks
            self._held[one] = self._held.get(one, 0) + 1

    def publish(self, one: int) -> bool:
        """Give used blocks a hash; False if the hash is there already, and they stay without."""
        if one in self._held or one in self._idle:
            return False
        self._held[one] = 1
        return True

    def release(self, hashes: list[int]) -> None:
        """Let go of units, the last first: what is longest stays least."""
        for one in reversed(hashes):
            self._held[one] -= 1
            if not self._held[one]:
                del self._held[one]
                self._idle[one] = None
                self.used -= self.unit_blocks

    def _make_way(self) -> None:
        assert 0 <= self.used <= self.blocks, "no more blocks are used than there are"
        while self._idle and self.used + self.unit_blocks * len(self._idle) > self.blocks:
            del self._idle[next(iter(self._idle))]
