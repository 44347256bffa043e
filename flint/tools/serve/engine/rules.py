"""How an engine schedules: what differs between vLLM, SGLang and TensorRT-LLM, as data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class QueueOrder(StrEnum):
    """Who waits in front."""

    FCFS = "fcfs"  #: who came first
    PRIORITY = "priority"  #: the lowest number of priority, then who came first


class Reserve(StrEnum):
    """What must be free in the cache before a request starts."""

    CHUNK = "chunk"  #: its first chunk
    PROMPT = "prompt"  #: its prompt
    EXPECTED = "expected"  #: prompt and answer, and a share of what those who run have left
    WHOLE = "whole"  #: prompt and answer, which stay reserved: no request is ever preempted


class Victim(StrEnum):
    """Who is preempted when the cache is full; it computes its prompt and answer again."""

    #: Who started last, or the lowest priority; it goes back to its place in the queue.
    LAST = "last"
    #: The shortest answer so far, of these the longest prompt; to the queue's end.
    SHORTEST = "shortest"


@dataclass(frozen=True)
class Expected:
    """SGLang's share of the answers that it expects to come: falls with each decode pass.

    From `first` to `least` in `passes` decode passes; after a preemption the share that is generated,
    counting `ahead` more tokens of each request.
    """

    first: float = 0.7
    least: float = 0.7 * 0.14
    passes: int = 600
    ahead: int = 20


@dataclass(frozen=True)
class EngineRules:
    """The rules of one engine.

    In a pass every sequence that decodes computes one token. The rest of `max_tokens` goes to the prompt
    that is under way, then to those that wait.
    """

    max_sequences: int
    max_tokens: int  #: of one pass
    block_tokens: int
    reserve: Reserve
    host_ns: float  #: of each pass, in which the chip waits
    prefix_caching: bool
    chunked: bool = True  #: prompts are cut where the pass is full
    prefill_first: bool = False  #: prompts come before decodes
    mixed: bool = True  #: prompts and decodes share passes
    victim: Victim = Victim.LAST
    order: QueueOrder = QueueOrder.FCFS
    watermark: float = 0.0  #: share of the cache that starting requests leave free
    expected: Expected = Expected()
    sequence_ns: float = 0.0  #: of each sequence of a pass, on the chip
    draft_tokens: int = 0  #: of a draft that each pass checks; 0: no speculative decoding
    acceptance: float = 0.0  #: how often a token of the draft is right if the one before was
    draft_share: float = 0.0  #: of a pass that decodes: what drafting a token takes

    @property
    def tokens_of_pass(self) -> float:
        """Tokens of a sequence that a pass gives on average: `engine.speculative`."""
        return sum(self.acceptance**n for n in range(self.draft_tokens + 1))
