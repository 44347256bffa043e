"""What an algorithm's steps wait for, and what its ranks hold at the end."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from flint.backends.chakra.checking.findings import Findings
from flint.ir.op_class import Collective
from flint.tools.interop.algorithms.reading import AlgorithmStep, ChunkPlace, WrittenAlgorithm

#: Named of a circle of steps.
_SHOWN = 4


class Held(NamedTuple):
    """What a chunk is: a piece of the array, and whose contributions are in it, bit by bit: once, and more than once."""

    piece: int
    once: int
    twice: int = 0


@dataclass(frozen=True, eq=False)
class AlgorithmGraph:
    """The steps by number, what each waits for, and what was found wrong with that.

    `earlier` is the step before in its thread block, `other` the one of another thread block, and `sender`
    the one that sends what it receives; -1 for none.
    """

    algorithm: WrittenAlgorithm
    earlier: list[int] = field(default_factory=list)
    other: list[int] = field(default_factory=list)
    sender: list[int] = field(default_factory=list)
    findings: Findings = field(default_factory=Findings)

    def __post_init__(self) -> None:
        steps = self.algorithm.steps
        at = {(s.rank, s.block, s.number): i for i, s in enumerate(steps)}
        self.sender.extend([-1] * len(steps))
        for i, step in enumerate(steps):
            self.earlier.append(i - 1 if step.number else -1)
            waited = -1 if step.waits_for is None else at.get((step.rank, *step.waits_for), -1)
            self.other.append(waited)
            if step.waits_for is not None and (waited < 0 or not steps[waited].told):
                block, number = step.waits_for
                why = "is not there" if waited < 0 else "tells nobody that it ended (hasdep)"
                self._found(
                    *("unknown-dependency", step),
                    f"waits for step {number} of thread block {block}, which {why}",
                )
        self._match()
        if len(self.order) < len(steps):
            self._find_circle()

    def _found(self, code: str, step: AlgorithmStep, sentence: str) -> None:
        self.findings.add(code, step.rank, -1, f"{step} {sentence}")

    def _match(self) -> None:
        """Pair what is sent with what is received, in order, by ranks and channel."""
        sent, received = (
            defaultdict[tuple[int, ...], list[int]](list),
            defaultdict[tuple[int, ...], list[int]](list),
        )
        for i, step in enumerate(self.algorithm.steps):
            for peer, ends, lists in (
                (step.sends_to, (step.rank, step.sends_to), sent),
                (step.from_rank, (step.from_rank, step.rank), received),
            ):
                if peer >= self.algorithm.ranks or peer == step.rank:
                    code = "send-to-self" if peer == step.rank else "wrong-rank"
                    self._found(code, step, f"exchanges data with rank {peer}")
                elif peer >= 0:
                    lists[*ends, step.channel].append(i)
        for key in sorted({*sent, *received}):
            self._pair(sent[key], received[key])

    def _pair(self, sent: Sequence[int], received: Sequence[int]) -> None:
        steps = self.algorithm.steps
        for ends in (sent, received):
            if len({steps[i].block for i in ends}) > 1:
                self._found(
                    "message-order",
                    steps[ends[-1]],
                    "shares rank and channel of its messages with another thread block",
                )
        for i, j in zip(sent, received, strict=False):
            self.sender[j] = i
            if steps[i].count != steps[j].count:
                told = f"receives {steps[j].count} chunks, and rank {steps[i].rank} sends {steps[i].count} in {steps[i]}"
                self._found("message-size", steps[j], told)
        for i in sent[len(received) :]:
            self._found(
                "send-without-recv",
                steps[i],
                f"sends to rank {steps[i].sends_to}, which does not receive it",
            )
        for j in received[len(sent) :]:
            self._found(
                "recv-without-send",
                steps[j],
                f"receives from rank {steps[j].from_rank}, which does not send it",
            )

    def before(self, i: int) -> Iterator[int]:
        """The steps that step `i` waits for."""
        yield from (j for j in (self.earlier[i], self.other[i], self.sender[i]) if j >= 0)

    @cached_property
    def order(self) -> list[int]:
        """The steps in an order in which they can run; those of circles, and what waits for them, are not in it."""
        return self._order(1)

    def _order(self, sign: int) -> list[int]:
        """An order that takes the first of what can run, or the last of it."""
        count = len(self.algorithm.steps)
        after: list[list[int]] = [[] for _ in range(count)]
        left = [0] * count
        for i in range(count):
            for j in self.before(i):
                after[j].append(i)
                left[i] += 1
        ready = [sign * i for i in range(count) if not left[i]]
        heapq.heapify(ready)
        found = []
        while ready:
            i = sign * heapq.heappop(ready)
            found.append(i)
            for j in after[i]:
                left[j] -= 1
                if not left[j]:
                    heapq.heappush(ready, sign * j)
        return found

    def _find_circle(self) -> None:
        stuck = set(range(len(self.algorithm.steps))) - set(self.order)
        at, seen = min(stuck), dict[int, None]()
        while at not in seen:
            seen[at] = None
            at = next(j for j in self.before(at) if j in stuck)
        circle = list(seen)[list(seen).index(at) :]
        steps = [self.algorithm.steps[i] for i in circle]
        said = "; that for ".join(f"rank {s.rank}'s {s}" for s in [*steps[1:_SHOWN], steps[0]])
        more = f" ({len(steps)} steps in all)" if len(steps) > _SHOWN else ""
        self._found("dependency-cycle", steps[0], f"waits for {said}{more}")

    def prove(self) -> None:
        """Find what is wrong with the result, where nothing else is wrong.

        Two orders of the thread blocks are tried: what only some orders spoil may show in one of them.
        """
        for sign, when in ((1, ""), (-1, ", if its thread blocks run in another order")):
            if not self.findings:
                memory = self._run(self._order(sign))[0]
                for rank, held in enumerate(memory):
                    self._prove_rank(rank, held, when)

    @cached_property
    def alone(self) -> int:
        """Chunks that each rank alone completes, at least, of an all-reduce."""
        makers = self._run(self.order)[1]
        counts = [0] * self.algorithm.ranks
        for ranks in makers.values():
            if len(ranks) == 1:
                counts[min(ranks)] += 1
        return min(counts)

    def _run(
        self, order: Sequence[int]
    ) -> tuple[list[dict[ChunkPlace, Held]], dict[int, set[int]]]:
        """What each rank holds after the steps, and which ranks completed each piece of the array."""
        a, everyone = self.algorithm, (1 << self.algorithm.ranks) - 1
        memory = [dict(self._input(rank)) for rank in range(a.ranks)]
        sent: dict[int, list[Held | None]] = {}
        makers = defaultdict[int, set[int]](set)
        for i in order:
            step, mine = a.steps[i], memory[a.steps[i].rank]
            data = sent.pop(self.sender[i]) if self.sender[i] >= 0 else []
            if step.source is not None:
                local = [mine.get(p) for p in _places(step.source, step.count)]
                if step.kind == "re" and step.target is not None:
                    data = [mine.get(p) for p in _places(step.target, step.count)]
                data = (
                    [_sum(*both) for both in zip(data, local, strict=True)] if step.adds else local
                )
            if step.adds:
                for held in data:
                    if held is not None and held.once == everyone:
                        makers[held.piece].add(step.rank)
            if step.target is not None:
                for place, held in zip(_places(step.target, step.count), data, strict=True):
                    mine[place] = held or Held(-1, 0)
            if step.sends_to >= 0:
                sent[i] = data
        return memory, makers

    def _input(self, rank: int) -> Iterator[tuple[ChunkPlace, Held]]:
        """What a rank begins with."""
        a = self.algorithm
        gathers, exchanges = (
            a.collective is Collective.ALL_GATHER,
            a.collective is Collective.ALL_TO_ALL,
        )
        in_place = a.in_place and gathers
        for k in range(a.part if gathers else a.chunks):
            piece = rank * (a.chunks if exchanges else a.part) + k if gathers or exchanges else k
            place = ChunkPlace("o", piece) if in_place else ChunkPlace("i", k)
            yield place, Held(piece, 1 << rank)

    def _prove_rank(self, rank: int, held: dict[ChunkPlace, Held], when: str) -> None:
        a = self.algorithm
        for k in range(a.part if a.collective is Collective.REDUCE_SCATTER else a.chunks):
            wanted, place = Held(k, (1 << a.ranks) - 1), ChunkPlace("i" if a.in_place else "o", k)
            if a.collective is Collective.REDUCE_SCATTER:
                wanted = Held(rank * a.part + k, wanted.once)
                place = ChunkPlace("i", wanted.piece) if a.in_place else place
            elif a.collective is Collective.ALL_GATHER:
                wanted, place = Held(k, 1 << k // a.part), ChunkPlace("o", k)
            elif a.collective is Collective.ALL_TO_ALL:
                origin, within = divmod(k, a.part)
                wanted = Held(origin * a.chunks + rank * a.part + within, 1 << origin)
            found = held.get(place)
            if found != wanted:
                code, why = _difference(found, wanted)
                self.findings.add(code, rank, -1, f"chunk {k} of its result {why}{when}")


def _places(first: ChunkPlace, count: int) -> list[ChunkPlace]:
    return [ChunkPlace(first.buffer, first.offset + k) for k in range(count)]


def _sum(a: Held | None, b: Held | None) -> Held | None:
    """Both added up; pieces of different places of the array are no piece of it."""
    if a is None or b is None:
        return None
    piece = a.piece if a.piece == b.piece else -1
    return Held(piece, a.once | b.once, a.twice | b.twice | (a.once & b.once))


def _difference(found: Held | None, wanted: Held) -> tuple[str, str]:
    """What is wrong with a chunk: code and sentence."""
    if found is None or not found.once:
        return "wrong-result", "is never written, or with what never was"
    if found.piece != wanted.piece:
        return "wrong-result", "is of another place"
    if found.twice:
        return (
            "repeated-contribution",
            f"counts what rank {_lowest(found.twice)} contributes more than once",
        )
    if lacking := wanted.once & ~found.once:
        return "missing-contribution", f"lacks what rank {_lowest(lacking)} contributes"
    return "wrong-result", f"has a contribution of rank {_lowest(found.once & ~wanted.once)}"


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1
