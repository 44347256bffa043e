"""A scheduler written plainly: each sequence and each block on its own, one pass after another.

An oracle for the engine, which counts sequences instead of visiting them. One engine, no prefixes.
"""

from dataclasses import dataclass, field

from flint.tools.serve.engine.rules import EngineRules, QueueOrder, Reserve, Victim
from flint.tools.serve.requests.table import Requests
from flint.tools.serve.step_times import EngineTimes, PromptChunk


@dataclass(eq=False)
class One:
    """A request; its `turn` is its place among those who wait."""

    input: int
    output: int
    arrival_ns: float
    turn: tuple[float, float, int]
    decodes: bool = False
    computed: int = 0
    planned: int = 0
    tokens_ns: list[float] = field(default_factory=list)
    scheduled: float | None = None
    preemptions: int = 0

    @property
    def known(self) -> int:
        return self.input + len(self.tokens_ns)

    @property
    def left(self) -> int:
        return self.output - len(self.tokens_ns)


class Plain:
    """Every request with its times; all of them fit into the cache."""

    def __init__(self, requests: Requests, times: EngineTimes, rules: EngineRules) -> None:
        self.rules, self.times, self.now, self.share = rules, times, 0.0, rules.expected.first
        rows = zip(requests.input_tokens, requests.output_tokens, requests.priority, strict=True)
        self.every = []
        for i, (a, b, p) in enumerate(rows):
            when = float(requests.arrival_s[i]) * 1e9
            priority = int(p) if rules.order is QueueOrder.PRIORITY else 0
            self.every.append(One(int(a), int(b), when, (priority, when, i)))
        self.waiting: list[One] = []
        self.running: list[One] = []
        self.preempted = False
        coming = self.every[:]
        while coming or self.waiting or self.running:
            if not self.waiting and not self.running:
                self.now, self.share = max(self.now, coming[0].arrival_ns), rules.expected.first
            while coming and coming[0].arrival_ns <= self.now:
                self.waiting.append(coming.pop(0))
            self.preempted = False
            self.prompts_first() if rules.prefill_first else self.decodes_first()
            self.compute()

    def blocks(self, one: One, tokens: int) -> int:
        whole = self.rules.reserve is Reserve.WHOLE
        return -(-(one.input + one.output if whole else tokens) // self.rules.block_tokens)

    def free(self) -> int:
        used = sum(self.blocks(s, s.computed + s.planned) for s in self.running)
        return self.times.cache_tokens // self.rules.block_tokens - used

    def preempt(self, victim: One) -> None:
        self.running.remove(victim)
        self.waiting.append(victim)
        victim.computed = victim.planned = 0
        victim.decodes = False
        victim.preemptions += 1
        self.preempted = True
        if self.rules.victim is Victim.SHORTEST:
            later = sum(s.preemptions for s in self.every)
            victim.turn = (0, self.now, 10**9 + later)

    def decodes_first(self) -> None:
        for one in self.running[:]:
            if one in self.running:
                budget = self.rules.max_tokens - sum(s.planned for s in self.running)
                one.planned = min(one.known - one.computed, budget)
            while one in self.running and self.free() < 0:
                by_priority = self.rules.order is QueueOrder.PRIORITY
                last = self.running[-1]
                self.preempt(max(self.running, key=lambda s: s.turn) if by_priority else last)
        if not self.preempted:
            self.start(self.rules.max_tokens - sum(s.planned for s in self.running))

    def prompts_first(self) -> None:
        budget = self.rules.max_tokens
        decoding = [s for s in self.running if s.decodes]
        budget -= len(decoding) if self.rules.mixed else 0
        for one in self.running[:]:
            if not one.decodes:
                one.planned = min(one.known - one.computed, budget)
                budget -= one.planned
                if self.free() < 0:
                    self.preempt(one)
        if not self.preempted:
            self.start(budget)
        if any(s.planned for s in self.running) and not self.rules.mixed:
            return
        self.preempted = False
        for one in decoding:
            one.planned = 1
        while self.free() < 0:
            decoding.sort(key=lambda s: (-len(s.tokens_ns), s.input))
            self.preempt(decoding.pop())
        if self.preempted:
            done = sum(len(s.tokens_ns) for s in decoding)
            left = sum(s.left for s in decoding)
            self.share = min(1.0, (done + 20 * len(decoding)) / (done + left + 1))

    def start(self, budget: int) -> None:
        rules, size = self.rules, self.rules.block_tokens
        starting = 0
        while self.waiting and budget > 0 and len(self.running) < rules.max_sequences:
            one = min(self.waiting, key=lambda s: s.turn)
            new = min(one.known, budget)
            if new < one.known and not rules.chunked and not one.tokens_ns:
                return
            share = int(self.share * sum(s.left for s in self.running if s.decodes))
            needs = {
                Reserve.CHUNK: self.blocks(one, new),
                Reserve.WHOLE: self.blocks(one, new),
                Reserve.PROMPT: self.blocks(one, one.known),
                Reserve.EXPECTED: -(-(one.known + one.left + starting + share) // size),
            }[rules.reserve]
            kept = int(rules.watermark * (self.times.cache_tokens // size)) if self.running else 0
            if needs > self.free() - kept:
                return
            self.waiting.remove(one)
            self.running.append(one)
            one.scheduled = self.now if one.scheduled is None else one.scheduled
            one.planned, budget, starting = new, budget - new, starting + one.left

    def compute(self) -> None:
        planned = [s for s in self.running if s.planned]
        decodes = [s for s in planned if s.decodes]
        chunks = tuple(PromptChunk(s.planned, s.computed) for s in planned if not s.decodes)
        step = self.times.step_ns(len(decodes), sum(s.computed for s in decodes), chunks)
        self.now += step + self.rules.host_ns
        for one in planned:
            one.computed, one.planned = one.computed + one.planned, 0
            if one.computed == one.known:
                one.tokens_ns.append(self.now)
                one.decodes = True
                if not one.left:
                    self.running.remove(one)
        expected = self.rules.expected
        if not chunks:
            fall = (expected.first - expected.least) / expected.passes
            self.share = max(expected.least, self.share - fall)
