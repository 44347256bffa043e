"""One engine: which sequences compute which tokens in the next pass, and what follows from it.

All sequences that decode advance together, so they are counted and not visited: one counter of decode
passes (`tick`), a heap of ticks at which sequences end, and how many need a block at each
remainder of the tick.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from flint.tools.serve.engine.cache import PagedCache
from flint.tools.serve.engine.record import Held, Passes, RequestTimes
from flint.tools.serve.engine.rules import EngineRules, QueueOrder, Reserve, Victim
from flint.tools.serve.step_times import EngineTimes, PromptChunk

#: SGLang's limit on what it expects of one answer (SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION).
_MOST_EXPECTED = 4096
#: More than the number of any arrival.
_AFTER_ARRIVALS = 1 << 60


@dataclass(slots=True, eq=False)
class Sequence:
    """A request in an engine.

    While it decodes, its cache holds `offset` + tick tokens, where the tick counts the engine's decode
    passes: all that decode advance together, and nothing of them is touched in a pass.
    """

    request: int
    input: int
    output: int  #: tokens that this engine generates
    arrived: tuple[float, int]  #: nanoseconds, and the number of the arrival
    priority: int = 0
    generated: int = 0
    computed: int = 0  #: tokens of `prompt` that are in the cache
    blocks: int = 0  #: without a hash, until it decodes
    hashes: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    offset: int = 0
    joined: int = -1  #: the tick when it began to decode
    end_tick: int = -1
    last_ns: float = 0.0  #: when its last token came; of those that decode the engine knows

    @property
    def prompt(self) -> int:
        """Tokens to compute before it decodes: after a preemption the answer so far as well."""
        return self.input + self.generated


_Chunks = list[tuple[Sequence, int]]


class Engine:
    """The state of one engine. `prefills` engines hand sequences on after their first token."""

    def __init__(
        self,
        times: EngineTimes,
        rules: EngineRules,
        log: RequestTimes,
        unit_tokens: int,
        *,
        prefills: bool,
    ) -> None:
        self.rules = rules
        self.cache = PagedCache(times.cache_tokens, rules.block_tokens, unit_tokens)
        self.clock = 0.0
        self.passes = Passes()
        self.ended: list[Sequence] = []  #: in the last pass
        self._step_ns: Callable[..., float] = times.step_ns
        self._log = log
        self._prefills = prefills
        self._waiting: list[tuple[int, tuple[float, int], Sequence]] = []
        self._partial: Sequence | None = None
        self._decoding: dict[Sequence, None] = {}
        self._fresh: list[Sequence] = []  #: those whose last token is not of the last tick
        self._ends: list[tuple[int, tuple[float, int], Sequence]] = []
        self._needs = [0] * rules.block_tokens
        self._tick = 0
        self._tick_ns = 0.0
        self._context = 0  #: tokens in the caches of those that decode
        self._left = 0  #: tokens that those who decode have left
        self._expected = rules.expected.first
        self._retracted = 0
        self._held_back: Held | None = None

    # --- seen from outside ------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether there is anything to compute."""
        return bool(self._decoding or self._waiting or self._partial)

    def outstanding(self, now_ns: float) -> int:
        """Sequences that wait or run at `now_ns`, which lies in the last pass or after it."""
        ended = len(self.ended) if self.clock > now_ns else 0
        return len(self._waiting) + len(self._decoding) + (self._partial is not None) + ended

    def enqueue(self, sequence: Sequence, now_ns: float) -> None:
        """A sequence arrives."""
        if not self.busy:
            self.clock = max(self.clock, now_ns)
            self._expected = self.rules.expected.first
        sequence.last_ns = now_ns
        self._wait(sequence, sequence.arrived)

    def advance(self, until_ns: float, *, to_end: bool) -> None:
        """Run the passes that begin before `until_ns`; if `to_end`, up to the first end of a sequence."""
        while self.clock < until_ns and self.busy:
            self.ended = []
            quiet = not (self._waiting or self._partial or self._fresh)
            if quiet and self._decode_on(until_ns):
                continue
            self._pass()
            if self.ended and to_end:
                return

    def _decode_on(self, until_ns: float) -> bool:
        """As `_pass`, but many: passes of those who decode, up to what makes one end or lose its cache."""
        decodes, tick, context, now = len(self._decoding), self._tick, self._context, self.clock
        needs, blocks, cache = self._needs, self.rules.block_tokens, self.cache
        host_ns, rows, last = self.rules.host_ns, self.passes.rows, self._ends[0][0] - 1
        while (
            now < until_ns and tick < last and (needed := needs[tick % blocks]) <= cache.available
        ):
            if needed:
                cache.take(needed)
            start, now = now, now + self._step_ns(decodes, context, ()) + host_ns
            assert now > start, "a pass takes time"
            rows.extend((start, now, 2, decodes, 0, 0, cache.used, 0, context))
            self.passes.gap(now - self._tick_ns, decodes)
            self._tick_ns = now
            tick += 1
            context += decodes
        passes = tick - self._tick
        self._tick, self._context, self.clock = tick, context, now
        self._left -= passes * decodes
        self._expect_less(passes)
        return passes > 0

    # --- passes -----------------------------------------------------------------------------------

    def _pass(self) -> None:
        chunks, decodes = self._plan()
        if self._waiting and self._held_back:
            self.passes.held_back[self._held_back] += 1
        if not chunks:
            self._decode_pass()
            return
        number = len(self.passes)
        for sequence, new in chunks:
            self.passes.chunks.extend((number, sequence.request, new, sequence.computed))
        self._spend(decodes, tuple(PromptChunk(new, s.computed) for s, new in chunks))
        if decodes:
            self._tick_on(decodes)
        for sequence, new in chunks:
            self._computed(sequence, new)

    def _decode_pass(self) -> None:
        decodes = len(self._decoding)
        assert decodes, "a pass computes something"
        self._spend(decodes, ())
        self._tick_on(decodes)
        self._expect_less(1)

    def _expect_less(self, passes: int) -> None:
        """The share of answers that is expected falls with passes that only decode."""
        expected = self.rules.expected
        fall = (expected.first - expected.least) / expected.passes
        self._expected = max(expected.least, self._expected - passes * fall)

    def _spend(self, decodes: int, chunks: tuple[PromptChunk, ...]) -> None:
        """The time of a pass."""
        start = self.clock
        context = self._context if decodes else 0
        took = self._step_ns(decodes, context, chunks)
        self.clock += took + self.rules.host_ns
        assert self.clock > start, "a pass takes time"  # what is no number does not, either
        kind = (2 if not chunks else 1) if decodes else 0
        new, used = sum(chunk.new for chunk in chunks), self.cache.used
        self.passes.rows.extend(
            (start, self.clock, kind, decodes, len(chunks), new, used, len(self._waiting), context)
        )

    def _tick_on(self, decodes: int) -> None:
        """All that decode get a token."""
        now = self.clock
        for sequence in self._fresh:
            self.passes.gap(now - sequence.last_ns, 1)
        if decodes > len(self._fresh):
            self.passes.gap(now - self._tick_ns, decodes - len(self._fresh))
        self._fresh.clear()
        self._tick += 1
        self._tick_ns = now
        self._context += decodes
        self._left -= decodes
        while self._ends and self._ends[0][0] <= self._tick:
            end_tick, _, sequence = heapq.heappop(self._ends)
            if sequence in self._decoding and sequence.end_tick == end_tick:
                sequence.generated = sequence.output
                self._leave(sequence)
                self._end(sequence)

    def _computed(self, sequence: Sequence, new: int) -> None:
        """A chunk of a prompt is in the cache; with its last one a token comes."""
        sequence.computed += new
        unit = self.cache.unit_tokens
        while unit and len(sequence.held) < min(sequence.computed // unit, len(sequence.hashes)):
            if not self.cache.publish(sequence.hashes[len(sequence.held)]):
                break  # another computed it meanwhile: this one's blocks stay its own
            sequence.held.append(sequence.hashes[len(sequence.held)])
            sequence.blocks -= self.cache.unit_blocks
        if sequence.computed < sequence.prompt:
            self._partial = sequence
            return
        if self._partial is sequence:
            self._partial = None
        if sequence.generated:
            self.passes.gap(self.clock - sequence.last_ns, 1)
        else:
            self._log.first[sequence.request] = self.clock
        sequence.generated += 1
        sequence.last_ns = self.clock
        if sequence.generated == sequence.output:
            self._end(sequence)
        else:
            self._join(sequence)

    # --- planning ---------------------------------------------------------------------------------

    def _plan(self) -> tuple[_Chunks, int]:
        """The prompts of the next pass with their tokens, and how many sequences decode in it."""
        self._held_back = None
        self._start_transferred()
        first = self.rules.prefill_first
        return self._plan_prompts_first() if first else self._plan_decodes_first()

    def _plan_prompts_first(self) -> tuple[_Chunks, int]:
        beside = len(self._decoding) if self.rules.mixed else 0
        new, blocks = self._next_chunk(self.rules.max_tokens - beside)
        if self._partial is not None and blocks > self.cache.available:
            self._preempt(self._partial)
            self._held_back, new = Held.CACHE, 0
        chunks = self._prompts(new, blocks, self.rules.max_tokens - beside)
        if chunks and not self.rules.mixed:
            return chunks, 0
        self._preempt_for(0)
        self.cache.take(self._needed())
        return chunks, len(self._decoding)

    def _plan_decodes_first(self) -> tuple[_Chunks, int]:
        preempted = self._preempt_for(0)
        budget = self.rules.max_tokens - len(self._decoding)
        new, blocks = self._next_chunk(budget)
        if self._preempt_for(blocks) or preempted:
            self._held_back = Held.CACHE  # nobody starts in a pass that preempted
        self.cache.take(self._needed())
        return self._prompts(new, blocks, budget), len(self._decoding)

    def _needed(self) -> int:
        """Blocks for the next tokens of those that decode."""
        return self._needs[self._tick % self.rules.block_tokens]

    def _next_chunk(self, budget: int) -> tuple[int, int]:
        """Tokens of the prompt that is under way, and the blocks that they need."""
        if (sequence := self._partial) is None:
            return 0, 0
        new = min(sequence.prompt - sequence.computed, budget)
        return new, self.cache.blocks_of(sequence.computed + new) - self._blocks_held(sequence)

    def _preempt_for(self, blocks: int) -> bool:
        """Preempt until those that decode have room beside `blocks` of the prompt that is under way."""
        before = self.passes.preemptions
        while self._needed() + (blocks if self._partial else 0) > self.cache.available:
            self._preempt(self._victim())
        if before == self.passes.preemptions:
            return False
        if self.rules.reserve is Reserve.EXPECTED:
            ahead = self.rules.expected.ahead * len(self._decoding)
            done = sum(s.output - s.end_tick + self._tick for s in self._decoding)
            self._expected = min(1.0, (done + ahead) / (done + self._left + 1))
        return True

    def _prompts(self, new: int, blocks: int, budget: int) -> _Chunks:
        """Chunks of the prompt that is under way and, if nothing holds them back, of those that start."""
        chunks: _Chunks = []
        if self._partial is not None and new:
            self._allot(self._partial, blocks)
            chunks, budget = [(self._partial, new)], budget - new
        starting = 0
        while self._waiting and not self._held_back:
            sequence = self._waiting[0][2]
            running = len(self._decoding) + len(chunks)
            if running >= self.rules.max_sequences:
                self._held_back = Held.SEQUENCES
            elif budget <= 0:
                self._held_back = Held.TOKENS
            elif first := self._start(sequence, budget, starting, running > 0):
                chunks.append((sequence, first))
                budget -= first
                starting += min(sequence.output - sequence.generated, _MOST_EXPECTED)
        return chunks

    def _start(self, sequence: Sequence, budget: int, starting: int, others: bool) -> int:
        """Tokens that `sequence` computes first; 0 if it cannot start, and `_held_back` says why."""
        cache, rules, prompt = self.cache, self.rules, sequence.prompt
        hits = sequence.hashes[: cache.hits(sequence.hashes)]
        most = (prompt - 1) // rules.block_tokens * rules.block_tokens
        cached = min(len(hits) * cache.unit_tokens, most)
        new = prompt - cached
        if new > budget and not (rules.chunked or sequence.generated):
            self._held_back = Held.TOKENS
            return 0
        new = min(new, budget)
        have = len(hits) * cache.unit_blocks
        end = sequence.input + sequence.output if rules.reserve is Reserve.WHOLE else cached + new
        blocks = max(0, cache.blocks_of(end) - have)
        free = cache.available - cache.idle_blocks(hits)
        if max(blocks, self._to_start(sequence, have, starting)) > free - self._kept_free(others):
            self._held_back = Held.CACHE
            return 0
        heapq.heappop(self._waiting)
        cache.hold(hits)
        sequence.held, sequence.computed = hits, cached
        self._allot(sequence, blocks)
        log, request = self._log, sequence.request
        if log.scheduled[request] != log.scheduled[request]:
            log.scheduled[request], log.cached[request] = self.clock, cached
        return new

    def _to_start(self, sequence: Sequence, have: int, starting: int) -> int:
        """Blocks that must be there before a sequence starts, beside `have`."""
        prompt, reserve = sequence.prompt, self.rules.reserve
        if reserve is Reserve.PROMPT:
            return self.cache.blocks_of(prompt) - have
        if reserve is Reserve.EXPECTED:
            left = min(sequence.output - sequence.generated, _MOST_EXPECTED) + starting
            return self.cache.blocks_of(prompt + left + int(self._expected * self._left)) - have
        return 0

    def _kept_free(self, others: bool) -> int:
        return int(self.rules.watermark * self.cache.blocks) if others else 0

    def _start_transferred(self) -> None:
        """Sequences whose cache came from another engine decode as soon as there is room."""
        while self._waiting and len(self._decoding) < self.rules.max_sequences:
            sequence = self._waiting[0][2]
            if not sequence.generated or sequence.computed < sequence.prompt - 1:
                return
            whole = self.rules.reserve is Reserve.WHOLE
            tokens = sequence.input + sequence.output if whole else sequence.prompt
            if self.cache.blocks_of(tokens) > self.cache.available - self._kept_free(
                bool(self._decoding)
            ):
                self._held_back = Held.CACHE
                return
            heapq.heappop(self._waiting)
            self._allot(sequence, self.cache.blocks_of(tokens if whole else sequence.computed))
            self._log.resumed[sequence.request] = self.clock
            self._join(sequence)

    # --- sequences --------------------------------------------------------------------------------

    def _wait(self, sequence: Sequence, turn: tuple[float, int]) -> None:
        by_priority = self.rules.order is QueueOrder.PRIORITY
        heapq.heappush(self._waiting, (sequence.priority if by_priority else 0, turn, sequence))

    def _allot(self, sequence: Sequence, blocks: int) -> None:
        self.cache.take(max(0, blocks))
        sequence.blocks += max(0, blocks)

    def _blocks_held(self, sequence: Sequence) -> int:
        """Blocks of a sequence, those with a hash among them."""
        hashed = len(sequence.held) * self.cache.unit_blocks
        if sequence in self._decoding and self.rules.reserve is not Reserve.WHOLE:
            return self.cache.blocks_of(sequence.offset + self._tick)
        return sequence.blocks + hashed

    def _join(self, sequence: Sequence) -> None:
        """A sequence whose prompt is in the cache decodes from the next tick on."""
        left = sequence.output - sequence.generated
        sequence.offset = sequence.prompt - 1 - self._tick
        sequence.joined, sequence.end_tick = self._tick, self._tick + left
        self._decoding[sequence] = None
        self._fresh.append(sequence)
        heapq.heappush(self._ends, (sequence.end_tick, sequence.arrived, sequence))
        self._context += sequence.offset + self._tick
        self._left += left
        if self.rules.reserve is not Reserve.WHOLE:
            self._needs[-sequence.offset % self.rules.block_tokens] += 1

    def _leave(self, sequence: Sequence) -> None:
        """A sequence decodes no longer; its blocks without a hash are counted."""
        hashed = len(sequence.held) * self.cache.unit_blocks
        sequence.blocks = max(0, self._blocks_held(sequence) - hashed)
        del self._decoding[sequence]
        self.passes.decodes.extend((sequence.request, sequence.joined, self._tick))
        self._context -= sequence.offset + self._tick
        self._left -= sequence.end_tick - self._tick
        if self.rules.reserve is not Reserve.WHOLE:
            self._needs[-sequence.offset % self.rules.block_tokens] -= 1

    def _free(self, sequence: Sequence) -> None:
        self.cache.give(sequence.blocks)
        self.cache.release(sequence.held)
        sequence.blocks, sequence.held = 0, []

    def _end(self, sequence: Sequence) -> None:
        self._free(sequence)
        if not self._prefills:
            self._log.last[sequence.request] = self.clock
        self.ended.append(sequence)

    def _victim(self) -> Sequence:
        decoding = self._decoding
        if self.rules.victim is Victim.SHORTEST:
            return min(reversed(decoding), key=lambda s: (s.output - s.end_tick, -s.input))
        if self.rules.order is QueueOrder.PRIORITY:
            running = [*decoding, *([self._partial] if self._partial else [])]
            return max(running, key=lambda s: (s.priority, s.arrived))
        return self._partial or next(reversed(decoding))

    def _preempt(self, sequence: Sequence) -> None:
        """A sequence loses its cache and waits."""
        if sequence in self._decoding:
            sequence.generated = sequence.output - (sequence.end_tick - self._tick)
            if sequence in self._fresh:
                self._fresh.remove(sequence)
            else:
                sequence.last_ns = self._tick_ns
            self._leave(sequence)
        else:
            self._partial = None
        self._free(sequence)
        sequence.computed = 0
        self.passes.preemptions += 1
        self._log.preemptions[sequence.request] += 1
        turn = sequence.arrived
        if self.rules.victim is Victim.SHORTEST:
            self._retracted += 1
            turn = (self.clock, _AFTER_ARRIVALS + self._retracted)
        self._wait(sequence, turn)
