"""Speculative decoding: passes that check several tokens of a draft, as times of a token.

With the rate `a` at which a token of the draft is accepted if the one before was, a pass that checks k of
them gives (1 - a^(k+1)) / (1 - a) tokens (Leviathan et al., arXiv 2211.17192, equation 1). The engine goes
on counting a token a pass, and a pass takes its part of the one that checks: means are those of the
real passes, times between tokens are evened out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flint.tools.serve.engine.rules import EngineRules
from flint.tools.serve.step_times import EngineTimes, PromptChunk


def speculating(times: EngineTimes, rules: EngineRules) -> tuple[EngineTimes, EngineRules]:
    """What an engine that drafts takes for a token; the host's time of a pass is for all that it gives."""
    if not rules.draft_tokens:
        return times, rules
    host_ns = rules.host_ns / rules.tokens_of_pass
    drafted = SpeculativeTimes(times, rules, times.cache_tokens, times.longest)
    return drafted, replace(rules, host_ns=host_ns)


@dataclass(frozen=True)
class SpeculativeTimes:
    """Times of a token of an engine that checks drafts."""

    times: EngineTimes
    rules: EngineRules
    cache_tokens: int
    longest: int | None

    def transfer_ns(self, tokens: int) -> float:
        """See `EngineTimes`."""
        return self.times.transfer_ns(tokens)

    def step_ns(
        self, decodes: int, decode_context: int, chunks: Sequence[PromptChunk] = ()
    ) -> float:
        """A token of all that decode, and what chunks of prompts add to their pass."""
        rules = self.rules
        if not decodes:
            alone = rules.host_ns * (1 - 1 / rules.tokens_of_pass)
            return self.times.step_ns(0, 0, chunks) + alone
        plain = self.times.step_ns(decodes, decode_context)
        new = 1 + rules.draft_tokens
        check = [PromptChunk(new, decode_context // decodes, new)] * decodes
        drafts = rules.draft_tokens * rules.draft_share * plain
        token = (self.times.step_ns(0, 0, check) + drafts) / rules.tokens_of_pass
        if not chunks:
            return token
        return token + max(self.times.step_ns(decodes, decode_context, chunks) - plain, 0.0)
