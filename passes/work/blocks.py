"""What a mask leaves of attention, counted in the blocks that a kernel runs."""

from __future__ import annotations

from typing import NamedTuple, Self

from flint.ir.program import CAUSAL

#: The attribute of a kernel's call that holds them, among those of frontends.
BLOCKS = "flint.blocks"


class MaskBlocks(NamedTuple):
    """`run` blocks `of` all those of all heads, each of so many queries and keys."""

    run: int
    of: int
    queries: int
    keys: int

    def __str__(self) -> str:
        return " ".join(map(str, self))

    @classmethod
    def parse(cls, text: object) -> Self | None:
        """What `str` wrote, None of anything else."""
        words = str(text or "").split()
        if len(words) != 4 or not all(word.isdecimal() for word in words):
            return None
        return cls(*map(int, words))

    def mask(self, queries: int, keys: int, masked: int) -> int:
        """The mask (`Program.mask`) of a kernel whose arrays say `masked`.

        Where fewer blocks run than a causal mask leaves, it is the window behind which as many
        scores lie as the blocks hold. Where more do, blocks are all taken to run.
        """
        share = self.run / max(self.of, 1)
        rows = -(-queries // max(self.queries, 1))
        columns = -(-keys // max(self.keys, 1))
        behind = keys - queries
        causal = sum(
            min(columns, -(-(min((row + 1) * self.queries, queries) + behind) // self.keys))
            for row in range(rows)
        )
        run = share * rows * columns
        if masked and round(run) == causal and causal < rows * columns:
            return CAUSAL
        if run >= causal:
            return masked if round(run) == causal else 0
        return _window(run * self.queries * self.keys, queries, keys)


def _window(scores: float, queries: int, keys: int) -> int:
    """The narrowest window behind which at least so many scores lie."""
    low, high = 1, keys
    while low < high:
        middle = (low + high) // 2
        if _scores(middle, queries, keys) >= scores:
            high = middle
        else:
            low = middle + 1
    return low


def _scores(window: int, queries: int, keys: int) -> int:
    """Scores behind a window, as `kernel_table.band_keys` counts them."""
    seeing = min(queries, keys)
    early = min(max(window - 1 - max(keys - queries, 0), 0), seeing)
    return seeing * window - early * (early + 1) // 2
