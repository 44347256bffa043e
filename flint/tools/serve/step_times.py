"""What the replay asks of a model on a chip: how long a pass of an engine takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class PromptChunk(NamedTuple):
    """New tokens of one prompt in one pass, the tokens of the same sequence that the cache holds before, and of
    how many of the new ones the model says what comes next."""

    new: int
    context: int
    logits: int = 1


class EngineTimes(Protocol):
    """What an engine's passes take: one engine (all its chips), one pass."""

    @property
    def cache_tokens(self) -> int:
        """Places of the paged key-value cache of one engine, in tokens."""
        ...

    @property
    def longest(self) -> int | None:
        """The longest sequence (prompt and output, in tokens) that the model takes; None: unknown."""
        ...

    def step_ns(
        self, decodes: int, decode_context: int, chunks: Sequence[PromptChunk] = ()
    ) -> float:
        """Nanoseconds of one pass.

        `decodes` sequences compute one token each; their caches hold `decode_context` tokens
        together. `chunks` are prompts' tokens in the same pass. It may be slow for values that it
        has not seen: the replay calls it once a pass.
        """
        ...

    def transfer_ns(self, tokens: int) -> float:
        """Nanoseconds to send the cache of so many tokens from a prefill to a decode engine."""
        ...
