"""Requests through a router to engines, from the first arrival to the last token.

Engines run in the order of their clocks, and a pass begins only when nothing that could still arrive
before it is missing: the result does not depend on how far one engine was run ahead of another.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence as Several
from dataclasses import dataclass
from enum import StrEnum

from flint.errors import FlintError
from flint.tools.serve.engine.engine import Engine, Sequence
from flint.tools.serve.engine.record import Passes, RequestTimes
from flint.tools.serve.engine.rules import EngineRules
from flint.tools.serve.requests.table import Requests
from flint.tools.serve.step_times import EngineTimes

#: SGLang's router (sglang_router, policy cache_aware: cache_threshold, balance_abs_threshold,
#: balance_rel_threshold): the longest prefix counts if it is more than this part of the prompt, and
#: while no engine has this many and times as many requests as another.
_PART, _APART, _TIMES = 0.3, 64, 1.5


class Router(StrEnum):
    """Which engine a request goes to."""

    ROUND_ROBIN = "round-robin"
    LEAST = "least"  #: the one with the fewest requests that wait or run
    PREFIX = "prefix"  #: the one that has most of the prompt, or as LEAST: see `_PART`


class Unserved(StrEnum):
    """Why a request never ends."""

    MODEL = "longer than the model takes"
    CACHE = "longer than the cache of one engine"
    PASS = "a prompt longer than a pass takes, and prompts are not cut"


@dataclass(frozen=True)
class Pool:
    """Engines of one kind."""

    times: EngineTimes
    rules: EngineRules
    engines: int = 1

    def refuses(self, prompt: int, tokens: int) -> Unserved | None:
        """Why no engine of the pool could ever finish a request of `tokens`, of which it computes `prompt`."""
        rules, longest = self.rules, self.times.longest
        if longest is not None and tokens > longest:
            return Unserved.MODEL
        if tokens > self.times.cache_tokens // rules.block_tokens * rules.block_tokens:
            return Unserved.CACHE
        return Unserved.PASS if prompt > rules.max_tokens and not rules.chunked else None


@dataclass(frozen=True, eq=False)
class Replay:
    """What happened: times of requests, and the passes of each engine of each pool."""

    requests: Requests
    times: RequestTimes
    unserved: dict[int, Unserved]  #: requests that never end
    pools: tuple[Pool, ...]
    passes: tuple[tuple[Passes, ...], ...]


def replay(
    requests: Requests, pool: Pool, decode: Pool | None = None, *, router: Router = Router.LEAST
) -> Replay:
    """Replay requests on the engines of `pool`; with `decode`, prompts there and answers in `decode`.

    Raises FlintError FL888 if no request can be served, FL892 for a pool without engines.
    """
    pools = (pool,) if decode is None else (pool, decode)
    if min(p.engines for p in pools) < 1:
        raise FlintError("FL892", "a pool has no engine", help="give each pool at least one")
    run = _Run(requests, pools, router)
    run.to_the_end()
    if len(run.unserved) == len(requests):
        why = next(iter(run.unserved.values()), "there is none")
        raise FlintError(
            "FL888",
            f"no request can be served: {why}",
            help="shorten the requests, or give an engine more memory",
        )
    passes = tuple(tuple(e.passes for e in engines) for engines in run.pools)
    return Replay(requests, run.log, run.unserved, pools, passes)


class _Run:
    """One replay as it goes on."""

    def __init__(self, requests: Requests, pools: Several[Pool], router: Router) -> None:
        self.requests = requests
        self.closed = requests.concurrency is not None
        self.kinds = pools
        self.log = RequestTimes(len(requests))
        self.unserved: dict[int, Unserved] = {}
        self.router = router
        self.prefixes = requests.prefixes if pools[0].rules.prefix_caching else None
        hash_tokens = self.prefixes.block_tokens if self.prefixes else 1
        unit = math.lcm(hash_tokens, pools[0].rules.block_tokens)
        self.every = unit // hash_tokens  #: each so manieth hash ends a block of the engine, too
        self.pools = [
            self._engines(p, unit if self.prefixes and not at else 0, p is not pools[-1])
            for at, p in enumerate(pools)
        ]
        self.engines = [engine for pool in self.pools for engine in pool]
        self.turns = [0] * len(pools)
        self.next = 0  #: the next request that has not arrived
        self.count = 0
        #: nanoseconds, order, request, and the sequence if it comes from another engine
        self.coming: list[tuple[float, int, int, Sequence | None]] = []

    def _engines(self, pool: Pool, unit: int, prefills: bool) -> list[Engine]:
        of = (pool.times, pool.rules, self.log, unit)
        return [Engine(*of, prefills=prefills) for _ in range(pool.engines)]

    def to_the_end(self) -> None:
        """Run until nothing arrives and nothing runs."""
        for _ in range(self.requests.concurrency or 1):
            self._announce(0.0)
        while True:
            arrival = self.coming[0][0] if self.coming else math.inf
            clocks = sorted((e.clock, at) for at, e in enumerate(self.engines) if e.busy)
            if clocks and clocks[0][0] < arrival:
                self._advance(clocks, arrival)
            elif self.coming:
                self._arrive()
            else:
                assert not any(e.cache.used for e in self.engines), "every block is given back"
                return

    def _advance(self, clocks: list[tuple[float, int]], arrival: float) -> None:
        if not self.closed and len(self.pools) == 1:  # no end brings an arrival
            for _, at in clocks:
                self.engines[at].advance(arrival, to_end=False)
            return
        # another engine sends nothing before its clock: a pass that begins by then is safe
        until = min(arrival, math.nextafter(clocks[1][0], math.inf)) if clocks[1:] else arrival
        engine = self.engines[clocks[0][1]]
        engine.advance(until, to_end=True)
        for sequence in engine.ended:
            self._ended(engine, sequence)

    def _announce(self, now_ns: float) -> None:
        """The next request comes: at its time, or in a closed loop now."""
        if self.next < len(self.requests):
            at = float(self.requests.arrival_s[self.next]) * 1e9
            self._come(now_ns if self.closed else at, self.next, None)
            self.next += 1

    def _come(self, when_ns: float, request: int, moved: Sequence | None) -> None:
        heapq.heappush(self.coming, (when_ns, self.count, request, moved))
        self.count += 1

    def _arrive(self) -> None:
        now, order, request, sequence = heapq.heappop(self.coming)
        if sequence is not None:
            self.log.first[request] = now
            self._send(sequence, 1, now)
            return
        self.log.queued[request] = now
        prompt = int(self.requests.input_tokens[request])
        output = int(self.requests.output_tokens[request])
        last = len(self.kinds) - 1
        refusals = (
            p.refuses(0 if at else prompt, prompt + (output if at == last else 1))
            for at, p in enumerate(self.kinds)
        )
        if why := next(filter(None, refusals), None):
            self.unserved[request] = why
        else:
            priority = int(self.requests.priority[request])
            sequence = Sequence(request, prompt, 1 if last else output, (now, order), priority)
            if self.prefixes:
                sequence.hashes = self.prefixes.of(request)[self.every - 1 :: self.every]
            self._send(sequence, 0, now)
        if why or not self.closed:
            self._announce(now)

    def _send(self, sequence: Sequence, pool: int, now: float) -> None:
        at = self._route(sequence, pool, now)
        if pool == len(self.pools) - 1:
            self.log.replica[sequence.request] = at
        self.pools[pool][at].enqueue(sequence, now)

    def _route(self, sequence: Sequence, pool: int, now: float) -> int:
        engines = self.pools[pool]
        if self.router is Router.ROUND_ROBIN:
            self.turns[pool] += 1
            return (self.turns[pool] - 1) % len(engines)
        loads = [engine.outstanding(now) for engine in engines]
        most, least = max(loads), min(loads)
        if self.router is Router.PREFIX and not most > max(least + _APART, least * _TIMES):
            hits = [engine.cache.hits(sequence.hashes) for engine in engines]
            if max(hits) * engines[0].cache.unit_tokens > _PART * sequence.input:
                return hits.index(max(hits))
        return loads.index(least)

    def _ended(self, engine: Engine, done: Sequence) -> None:
        """What the end of a sequence brings about: it moves to a decode engine, or another request comes."""
        request, now = done.request, engine.clock
        output = int(self.requests.output_tokens[request])
        if len(self.pools) > 1 and engine in self.pools[0]:
            if output > 1:
                sent_ns = max(kind.times.transfer_ns(done.input) for kind in self.kinds)
                then = now + sent_ns
                turn = (then, self.count)
                moved = Sequence(request, done.input, output, turn, done.priority, 1, done.input)
                self._come(then, request, moved)
                return
            self.log.last[request] = now
            self.log.replica[request] = self.pools[0].index(engine)
        if self.closed:
            self._announce(now)
