"""vLLM's scheduler written plainly: each sequence and each block on its own, one pass after another.

An oracle for the engine, which counts sequences instead of visiting them. One replica, no prefixes.
"""

from dataclasses import dataclass

from flint.tools.serve.requests.table import Requests
from flint.tools.serve.step_times import Chunk, StepTimes


@dataclass(eq=False)
class One:
    number: int
    input: int
    output: int
    priority: int
    arrival_ns: float
    computed: int = 0
    generated: int = 0
    preemptions: int = 0
    scheduled: float | None = None
    first: float = 0.0
    last: float = 0.0

    @property
    def turn(self) -> tuple[int, int]:
        return self.priority, self.number


def times_of(
    requests: Requests, times: StepTimes, *, sequences: int, tokens: int, block: int,
    whole_prompt: bool, by_priority: bool,
) -> list[One]:  # fmt: skip
    """Every request with its times; all of them fit into the cache."""
    rows = zip(requests.input_tokens, requests.output_tokens, requests.priority, strict=True)
    every = [
        One(i, int(a), int(b), int(p) if by_priority else 0, float(requests.arrival_s[i]) * 1e9)
        for i, (a, b, p) in enumerate(rows)
    ]
    coming, waiting, running = every[:], list[One](), list[One]()
    capacity, now = times.cache_tokens // block, 0.0

    def held() -> int:
        return sum(-(-(s.computed + planned.get(s, 0)) // block) for s in running)

    def preempt(victim: One) -> None:
        running.remove(victim)
        planned.pop(victim, None)
        victim.computed, victim.preemptions = 0, victim.preemptions + 1
        waiting.append(victim)

    while coming or waiting or running:
        if not waiting and not running:
            now = max(now, coming[0].arrival_ns)
        while coming and coming[0].arrival_ns <= now:
            waiting.append(coming.pop(0))
        planned: dict[One, int] = {}
        budget, preempted = tokens, False
        for one in running[:]:
            if one not in running:
                continue
            planned[one] = min(one.input + one.generated - one.computed, budget)
            while one in running and held() > capacity:
                preempted = True
                preempt(max(running, key=lambda s: s.turn) if by_priority else running[-1])
            budget = tokens - sum(planned.values())
        waiting.sort(key=lambda s: s.turn)
        while waiting and not preempted and budget and len(running) < sequences:
            one = waiting[0]
            new = min(one.input + one.generated, budget)
            if (
                held() + -(-(one.input + one.generated if whole_prompt else new) // block)
                > capacity
            ):
                break
            running.append(waiting.pop(0))
            one.scheduled = now if one.scheduled is None else one.scheduled
            planned[one] = new
            budget -= new
        decodes = [s for s in planned if s.generated and s.computed == s.input + s.generated - 1]
        chunks = tuple(Chunk(n, s.computed) for s, n in planned.items() if s not in decodes and n)
        now += times.step_ns(len(decodes), sum(s.computed for s in decodes), chunks)
        for one, new in planned.items():
            one.computed += new
            if one.computed == one.input + one.generated:
                one.generated += 1
                one.first = one.first or now
                if one.generated == one.output:
                    one.last = now
                    running.remove(one)
    return every
