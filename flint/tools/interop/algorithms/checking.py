"""`flint check ALGO.xml`: what an algorithm's steps wait for, and what its ranks hold at the end."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from flint.backends.chakra.checking.findings import CheckReport, Findings, Proved
from flint.errors import FlintError
from flint.ir.op_class import Collective
from flint.text import plural
from flint.tools.interop.algorithms.reading import ChunkPlace, WrittenAlgorithm, read_algorithm

#: Named of a circle of steps.
_SHOWN = 4


class HeldChunk(NamedTuple):
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
            waited = at.get((step.rank, *step.waits_for), -1) if step.waits_for else -1
            self.other.append(waited)
            if step.waits_for and (waited < 0 or not steps[waited].told):
                why = "is not there" if waited < 0 else "has no hasdep: it tells nobody"
                whom = "thread block {}, step {}".format(*step.waits_for)
                self._found("unknown-dependency", i, f"waits for {whom}, which {why}")
        self._match()
        if len(self.order) < len(steps):
            self._find_circle()

    def _found(self, code: str, at: int, sentence: str) -> None:
        step = self.algorithm.steps[at]
        self.findings.add(code, step.rank, -1, f"{step} {sentence}")

    def _match(self) -> None:
        """Pair what is sent with what is received, in order, by ranks and channel."""
        ends = defaultdict[tuple[int, ...], tuple[list[int], list[int]]](lambda: ([], []))
        for i, s in enumerate(self.algorithm.steps):
            for side, peer in enumerate((s.sends_to, s.from_rank)):
                if peer == s.rank:
                    self._found("send-to-self", i, "exchanges data with its own rank")
                elif peer >= self.algorithm.ranks:
                    self._found("wrong-rank", i, f"exchanges data with rank {peer}")
                elif peer >= 0:
                    pair = (peer, s.rank) if side else (s.rank, peer)
                    ends[*pair, s.channel][side].append(i)
        for _, (sent, received) in sorted(ends.items()):
            self._pair(sent, received)

    def _pair(self, sent: Sequence[int], received: Sequence[int]) -> None:
        steps = self.algorithm.steps
        for side in (sent, received):
            if len({steps[i].block for i in side}) > 1:
                self._found("message-order", side[-1], "has the peer of another thread block")
        for i, j in zip(sent, received, strict=False):
            self.sender[j] = i
            if steps[i].count != steps[j].count:
                told = f"receives {steps[j].count} chunks of {steps[i].count}"
                self._found("message-size", j, f"{told} that rank {steps[i].rank} sends")
        for i in sent[len(received) :]:
            told = f"sends to rank {steps[i].sends_to}, which does not receive it"
            self._found("send-without-recv", i, told)
        for j in received[len(sent) :]:
            told = f"receives from rank {steps[j].from_rank}, which does not send it"
            self._found("recv-without-send", j, told)

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
        steps = [self.algorithm.steps[i] for i in (*circle[1:_SHOWN], at)]
        said = "; that for ".join(f"rank {s.rank}'s {s}" for s in steps)
        self._found("dependency-cycle", at, f"waits for {said} ({len(circle)} in all)")

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
    ) -> tuple[list[dict[ChunkPlace, HeldChunk]], dict[int, set[int]]]:
        """What each rank holds after the steps, and which ranks completed each piece of the array."""
        a, everyone = self.algorithm, (1 << self.algorithm.ranks) - 1
        memory = [dict(self._input(rank)) for rank in range(a.ranks)]
        sent: dict[int, list[HeldChunk | None]] = {}
        makers = defaultdict[int, set[int]](set)
        for i in order:
            step, mine = a.steps[i], memory[a.steps[i].rank]
            data = sent.pop(self.sender[i]) if self.sender[i] >= 0 else []
            if step.source is not None:
                local = [mine.get(p) for p in _places(step.source, step.count)]
                if step.kind == "re" and step.target is not None:
                    data = [mine.get(p) for p in _places(step.target, step.count)]
                data = list(map(_sum, data, local)) if step.adds else local
            if step.adds:
                for held in data:
                    if held is not None and held.once == everyone:
                        makers[held.piece].add(step.rank)
            if step.target is not None:
                for place, held in zip(_places(step.target, step.count), data, strict=True):
                    mine[place] = held or HeldChunk(-1, 0)
            if step.sends_to >= 0:
                sent[i] = data
        return memory, makers

    def _input(self, rank: int) -> Iterator[tuple[ChunkPlace, HeldChunk]]:
        """What a rank begins with. Pieces of an all-to-all are counted over all ranks."""
        a, kind = self.algorithm, self.algorithm.collective
        size = a.part if kind is Collective.ALL_GATHER else a.chunks
        first = rank * size if kind in (Collective.ALL_GATHER, Collective.ALL_TO_ALL) else 0
        for k in range(size):
            place = a.one_name(ChunkPlace("i", k), rank)
            yield place, HeldChunk(first + k, 1 << rank)

    def _prove_rank(self, rank: int, held: dict[ChunkPlace, HeldChunk], when: str) -> None:
        a, kind = self.algorithm, self.algorithm.collective
        for k in range(a.part if kind is Collective.REDUCE_SCATTER else a.chunks):
            origin, within = divmod(k, a.part)
            wanted = HeldChunk(k, (1 << a.ranks) - 1)
            if kind is Collective.REDUCE_SCATTER:
                wanted = HeldChunk(rank * a.part + k, wanted.once)
            elif kind is Collective.ALL_GATHER:
                wanted = HeldChunk(k, 1 << origin)
            elif kind is Collective.ALL_TO_ALL:
                wanted = HeldChunk(origin * a.chunks + rank * a.part + within, 1 << origin)
            found = held.get(a.one_name(ChunkPlace("o", k), rank))
            if found != wanted:
                code, why = _difference(found, wanted)
                self.findings.add(code, rank, -1, f"chunk {k} of its result {why}{when}")


def _places(first: ChunkPlace, count: int) -> list[ChunkPlace]:
    return [ChunkPlace(first.buffer, first.offset + k) for k in range(count)]


def _sum(a: HeldChunk | None, b: HeldChunk | None) -> HeldChunk | None:
    """Both added up; pieces of different places of the array are no piece of it."""
    if a is None or b is None:
        return None
    piece = a.piece if a.piece == b.piece else -1
    return HeldChunk(piece, a.once | b.once, a.twice | b.twice | (a.once & b.once))


def _difference(found: HeldChunk | None, wanted: HeldChunk) -> tuple[str, str]:
    """What is wrong with a chunk: code and sentence."""
    if found is None or not found.once:
        return "wrong-result", "is never written, or with what never was"
    if found.piece != wanted.piece:
        return "wrong-result", "is of another place"
    if found.twice:
        told = f"counts what rank {_lowest(found.twice)} contributes more than once"
        return "repeated-contribution", told
    if lacking := wanted.once & ~found.once:
        return "missing-contribution", f"lacks what rank {_lowest(lacking)} contributes"
    return "wrong-result", f"has a contribution of rank {_lowest(found.once & ~wanted.once)}"


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


def check_algorithm(path: Path) -> CheckReport:
    """Check an algorithm of MSCCL. Raises FlintError FL607 to FL609 for what is none."""
    graph = AlgorithmGraph(read_algorithm(path))
    graph.prove()
    a, found = graph.algorithm, graph.findings
    said = f"{a.kind} of {plural(a.ranks, 'rank')} in {plural(a.chunks, 'chunk')}"
    return CheckReport(
        ranks=a.ranks,
        nodes=len(a.steps),
        groups=1,
        partial=False,
        deadlock_examined=True,
        findings=found.sorted(),
        counts=found.in_order(),
        notes=(said, "sends are taken to end before they are received"),
        proved=Proved.NOTHING if found else Proved.ANY_TIMES,
    )


def proved_algorithm(path: Path) -> AlgorithmGraph:
    """An algorithm that `check_algorithm` finds nothing wrong with. Raises FlintError FL611 for others, and as it does."""
    graph = AlgorithmGraph(read_algorithm(path))
    graph.prove()
    for first in graph.findings.sorted():
        raise FlintError(
            "FL611",
            f"{path} is no {graph.algorithm.kind} of {graph.algorithm.ranks} ranks: {first}",
            help=f"flint check {path} lists what is wrong with it",
        )
    return graph
