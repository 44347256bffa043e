"""What is said to end at any times ends at all that are tried, and one rank speaks for all like it."""

from __future__ import annotations

import itertools
import random
from collections import Counter, defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flint.backends.chakra.checking.cohorts import find_cohorts, match_collectives
from flint.backends.chakra.checking.findings import Findings
from flint.backends.chakra.checking.liveness import Deadlock, Doubt, Situation, examine
from flint.backends.chakra.checking.messages import find_exchange
from flint.backends.chakra.checking.partition import find_parts
from flint.backends.chakra.reading.kinds import GroupCodes, KindTable
from flint.backends.chakra.reading.parser import TraceParser
from flint.backends.chakra.reading.trace_files import Membership
from flint.backends.chakra.schema import NodeType
from tests.chakra_traces import coll, comp, recv, send, trace_bytes
from tests.random_programs import QUICK

Ranks = list[list[Any]]
Groups = dict[str, tuple[int, ...]]


def situation(ranks: Ranks, groups: Groups) -> Situation | None:
    """All ranks, or None if something is wrong before any simulation."""
    codes, findings = GroupCodes(), Findings()
    parser = TraceParser(codes, None)
    membership = Membership(len(ranks), groups)
    for rank, nodes in enumerate(ranks):
        trace_class, values = parser.load(trace_bytes(nodes), f"t.{rank}.et")
        trace_class.add(rank, values)
    cohorts = []
    for each in parser.classes:
        findings.add_collected(each.ranks, each.nodes.problems)
        cohorts += find_cohorts(each, codes, membership, findings)
    present = set(range(len(ranks)))
    match_collectives(cohorts, membership, present, findings)
    exchange = find_exchange(cohorts)
    exchange.report(present, findings)
    return None if findings else Situation(cohorts, exchange, membership.members, len(ranks))


def both_ways(where: Situation) -> int:
    """Assert that parts and ranks end alike; the number of parts."""
    parts = find_parts(where.cohorts, where.exchange, where.members, where.world)
    assert examine(where, parts) == examine(where, np.arange(where.world))
    return int(parts.max()) + 1


def random_step(rng: random.Random, ranks: int) -> tuple[Ranks, Groups]:
    """What every rank does at once, in an order of its own where a coin says so."""
    groups: Groups = {}
    for stride in (1, 2, 3):
        if ranks % (2 * stride) == 0:
            for r in range(ranks):
                if r // stride % 2 == 0:
                    groups[str(len(groups) + 1)] = (r, r + stride)
    operations = [_random_operation(rng, ranks, groups) for _ in range(rng.randint(1, 6))]
    deps = [[d for d in range(i) if rng.random() < 0.4] for i in range(len(operations))]
    in_order = rng.random() < 0.5
    step: Ranks = [[] for _ in range(ranks)]
    is_twisted = rng.random() < 0.3
    if is_twisted:
        operations[:2], deps[:2] = [_collective(groups, 1), _collective(groups, 2)], [[], []]
    for rank, nodes in enumerate(step):
        ends: dict[int, tuple[int, ...]] = {}
        # Where the ranks of a square disagree like this, they wait in a circle.
        is_last = is_twisted and rank.bit_count() % 2
        for at in range(len(operations)):
            i = len(operations) - 1 - at if is_last else at
            waits = tuple(sorted({n for d in deps[i] for n in ends.get(d, ())}))
            if in_order and nodes:
                waits = tuple(sorted({*waits, nodes[-1].id}))
            found = operations[i](4 * at, rank, waits)
            ends[i] = tuple(n.id for n in found)
            nodes.extend(found)
        if rng.random() < 0.3 and len(nodes) > 1:
            one, other = rng.sample(nodes, 2)
            one.id, other.id = other.id, one.id
    return step, groups


def _collective(groups: Groups, stride: int) -> Any:
    """A collective of each rank with the one that is `stride` away, or else of all."""

    def collective(id: int, rank: int, deps: tuple[int, ...]) -> list[Any]:
        names = [n for n, (a, b) in groups.items() if rank in (a, b) and b - a == stride]
        return [coll(id, (names or ["0"])[0], deps)]

    return collective


def _random_operation(rng: random.Random, ranks: int, groups: Groups) -> Any:
    kind, shift, tag = rng.random(), rng.choice([1, 2, ranks - 1]), rng.randint(0, 9)
    wraps, send_first = rng.random() < 0.5, rng.random() < 0.5
    collective = _collective(groups, rng.choice(sorted({b - a for a, b in groups.values()}) or [0]))

    def message(id: int, rank: int, deps: tuple[int, ...]) -> list[Any]:
        to, source = rank + shift, rank - shift
        if wraps:
            to, source = to % ranks, source % ranks
        found = []
        if 0 <= to < ranks and to != rank:
            found.append(send(id + (not send_first), rank, to, deps, comm_tag=tag))
        if 0 <= source < ranks and source != rank:
            found.append(recv(id + send_first, rank, source, deps, comm_tag=tag))
        return found

    def computation(id: int, rank: int, deps: tuple[int, ...]) -> list[Any]:
        return [comp(id, deps)]

    return computation if kind < 0.2 else collective if kind < 0.6 else message


@QUICK
@given(st.integers(0, 2**32), st.integers(2, 6))
def test_parts_end_as_ranks_do(seed: int, ranks: int) -> None:
    where = situation(*random_step(random.Random(seed), ranks))
    if where is not None:
        both_ways(where)


class _Rank:
    """One rank of the simulation that follows."""

    def __init__(self, nodes: list[Any]) -> None:
        self.nodes = {node.id: node for node in nodes}
        self.said = {
            node.id: {a.name: getattr(a, a.WhichOneof("value")) for a in node.attr}
            for node in nodes
        }
        self.ended: set[int] = set()
        self.begun: set[int] = set()
        self.slot = -1
        self.turns: Counter[str] = Counter()

    def ready(self, *types: NodeType) -> list[int]:
        """Nodes of these types that could begin, by id."""
        return sorted(
            n
            for n, node in self.nodes.items()
            if n not in self.begun and node.type in types and self.ended.issuperset(node.data_deps)
        )

    def end(self, node: int) -> None:
        self.ended.add(node)
        if self.slot == node:
            self.slot = -1


class _Clock:
    """Every rank in every step, where all that anything takes is drawn from `rng`, or nothing."""

    def __init__(self, ranks: Ranks, groups: Groups, rng: random.Random | None = None) -> None:
        self.ranks = [_Rank(nodes) for nodes in ranks]
        self.groups = {"0": tuple(range(len(ranks))), **groups}
        self.rng = rng
        self.ends: dict[int, list[tuple[_Rank, int]]] = defaultdict(list)
        self.on_the_way: list[tuple[int, int, int, int]] = []  # when it is there, source, to, tag
        self.gathering: dict[tuple[str, int], list[tuple[_Rank, int]]] = defaultdict(list)

    def takes(self, least: int) -> int:
        return least if self.rng is None else least + self.rng.choice((0, 0, 1, 2, 9))

    def all_end(self) -> bool:
        now, last = 0, 10 * sum(len(rank.nodes) for rank in self.ranks) + 12
        while now < last:
            for rank, node in self.ends.pop(now, ()):
                rank.end(node)
            for number, rank in enumerate(self.ranks):
                self._settle(number, rank, now)
            for number, rank in enumerate(self.ranks):
                self._issue(number, rank, now)
            now += 1
        return all(len(rank.ended) == len(rank.nodes) for rank in self.ranks)

    def _settle(self, number: int, rank: _Rank, now: int) -> None:
        """Computation begins at once; a receive of what is there takes no time."""
        again = True
        while again:
            again = False
            for node in rank.ready(NodeType.COMP):
                rank.begun.add(node)
                ends = now + self.takes(0)
                if ends > now:
                    self.ends[ends].append((rank, node))
                    continue
                rank.end(node)
                again = True
            for node in rank.ready(NodeType.COMM_RECV):
                said = rank.said[node]
                end = (said["comm_src"], number, said["comm_tag"])
                there = [m for m in self.on_the_way if m[1:] == end and m[0] <= now]
                if there:
                    self.on_the_way.remove(min(there))
                    rank.begun.add(node)
                    rank.end(node)
                    again = True

    def _issue(self, number: int, rank: _Rank, now: int) -> None:
        ready = rank.ready(NodeType.COMM_COLL, NodeType.COMM_SEND)
        if rank.slot >= 0 or not ready:
            return
        node = rank.slot = ready[0]
        rank.begun.add(node)
        said = rank.said[node]
        if rank.nodes[node].type == NodeType.COMM_SEND:
            ends = now + self.takes(1)
            self.on_the_way.append((ends, number, said["comm_dst"], said["comm_tag"]))
            self.ends[ends].append((rank, node))
            return
        group = said["pg_name"]
        gathered = self.gathering[group, rank.turns[group]]
        rank.turns[group] += 1
        gathered.append((rank, node))
        if len(gathered) == len(self.groups[group]):
            for member, at in gathered:
                self.ends[now + self.takes(1)].append((member, at))


def outcomes(ranks: Ranks, groups: Groups, seed: int, times: int = 12) -> set[bool]:
    """Whether the ranks end, at the times of some draws and where nothing takes time."""
    draws = [None, *(random.Random(f"{seed} {n}") for n in range(times))]
    return {_Clock(ranks, groups, rng).all_end() for rng in draws}


@pytest.mark.long
def test_what_is_said_of_any_times_holds_at_those_that_are_tried() -> None:
    said: Counter[tuple[str, bool]] = Counter()
    for seed in range(250):
        rng = random.Random(seed)
        ranks, groups = random_step(rng, rng.randint(2, 6))
        where = situation(ranks, groups)
        if where is None:
            continue
        found, seen = examine(where), outcomes(ranks, groups, seed)
        if found is None:
            assert seen == {True}, seed
        if isinstance(found, Deadlock):
            assert seen == {False}, seed
        said.update((type(found).__name__, ends) for ends in seen)
    assert said["NoneType", True] > 30 and said["Deadlock", False] > 3, said
    assert said["Doubt", True] > 10 and said["Doubt", False] > 5, said


def race(hops: int, turns: int, *, late: bool, upwards: bool) -> tuple[Ranks, Groups]:
    """Rank 0 may join collective 1 after `hops` messages and 2 after `turns` collectives.

    Rank 1 joins 1 first: if rank 0 begins with 2, they wait for each other. Each rank that a message
    passes posts its receive at the beginning, or (`late`) when the message is sent.
    """
    groups: Groups = {"1": (0, 1), "2": (0, 1)}
    ranks: Ranks = [[], [coll(0, "1"), coll(1, "2", (0,))]]

    def busy(rank: int, count: int) -> list[Any]:
        """So many collectives with a rank that does nothing else."""
        name, partner = str(len(groups) + 1), len(ranks)
        groups[name] = (rank, partner)
        found = [coll(n, name, (n - 1,) if n else ()) for n in range(count)]
        ranks.append(found)
        return list(found)

    way = list(range(2, 2 + hops))
    way = [*(way if upwards else reversed(way)), 0]
    ranks += [[] for _ in range(hops)]
    for hop, (source, target) in enumerate(itertools.pairwise(way)):
        before = busy(target, hop) if late and target and hop else []
        deps = (hop - 1,) if before else ()
        ranks[source].append(send(99, source, target, (50,) if hop else ()))
        ranks[target] += [*before, recv(50, target, source, deps)]
    first = busy(0, turns)
    ranks[0] += [
        *first,
        coll(90, "1", (50,) if hops else ()),
        coll(91, "2", (turns - 1,) if turns else ()),
    ]
    return [sorted(nodes, key=lambda n: n.id) for nodes in ranks], groups


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("upwards", [False, True])
@pytest.mark.parametrize("hops", range(5))
def test_a_race_of_messages_and_collectives_is_left_open(
    hops: int, upwards: bool, late: bool
) -> None:
    """Whatever numbers the ranks have, and whichever side is there first."""
    for turns in range(5):
        ranks, groups = race(hops, turns, late=late, upwards=upwards)
        where = situation(ranks, groups)
        assert where is not None
        both_ways(where)
        assert isinstance(examine(where), Doubt)
        assert _Clock(ranks, groups).all_end() == (hops <= turns)


def test_a_send_that_a_collective_may_keep_from_the_slot() -> None:
    """Rank 0 may enter the collective before it sends what rank 1 needs to come there."""
    late = [[coll(0, "1"), send(1, 0, 1)], [recv(0, 1, 0), coll(1, "1", (0,))]]
    where = situation(late, {"1": (0, 1)})
    assert where is not None
    assert examine(where) == Doubt(0, (0, 1))
    assert outcomes(late, {"1": (0, 1)}, 0) == {False}
    first = [[send(0, 0, 1), coll(1, "1", (0,))], late[1]]
    where = situation(first, {"1": (0, 1)})
    assert where is not None and examine(where) is None
    beside = [[coll(0, "1"), send(1, 0, 1)], [recv(0, 1, 0), coll(1, "1")]]
    where = situation(beside, {"1": (0, 1)})
    assert where is not None and examine(where) is None  # a send that nobody needs for that


def test_ranks_of_a_ring_are_one_part() -> None:
    ring: Ranks = [
        [send(0, r, (r + 1) % 6), recv(1, r, (r - 1) % 6), comp(2, (0, 1))] for r in range(6)
    ]
    where = situation(ring, {})
    assert where is not None and both_ways(where) == 1
    stuck: Ranks = [[recv(0, r, (r - 1) % 6), send(1, r, (r + 1) % 6, (0,))] for r in range(6)]
    where = situation(stuck, {})
    assert where is not None and both_ways(where) == 1
    found = examine(where)
    assert isinstance(found, Deadlock) and found.only_messages
    assert "rank 0 waits in node 0" in found.sentence


def test_ranks_of_a_square_wait_in_a_circle() -> None:
    """All four are of one cohort, and meet each other in different turns."""
    groups = {"1": (0, 1), "2": (2, 3), "3": (0, 2), "4": (1, 3)}
    pairs = [("1", "3"), ("1", "4"), ("2", "3"), ("2", "4")]
    square: Ranks = []
    for rank, (row, column) in enumerate(pairs):
        first, second = (0, 4) if rank in (0, 3) else (4, 0)
        square.append([coll(first, row), coll(second, column)])
        square[-1][1 if first < second else 0].data_deps.append(0)
    where = situation(square, groups)
    assert where is not None and both_ways(where) == 1
    assert isinstance(examine(where), Deadlock)


def test_stages_are_parts_and_their_replicas_are_not() -> None:
    """Three stages of four ranks each: two that differ at the ends, and one between them."""
    stages: Ranks = []
    for rank in range(12):
        nodes = [coll(0, str(1 + rank // 4))]
        if rank >= 4:
            nodes.append(recv(1, rank, rank - 4, (0,)))
        if rank < 8:
            nodes.append(send(2, rank, rank + 4, (nodes[-1].id,)))
        stages.append(nodes)
    groups = {str(1 + s): tuple(range(4 * s, 4 * s + 4)) for s in range(3)}
    where = situation(stages, groups)
    assert where is not None and both_ways(where) == 3


def test_some_random_steps_deadlock_and_some_share_parts() -> None:
    """The property above would hold of nothing otherwise."""
    shared = stuck = 0
    for seed in range(60):
        where = situation(*random_step(random.Random(seed), 4))
        if where is not None:
            shared += both_ways(where) < 4
            stuck += isinstance(examine(where), Deadlock)
    assert shared > 5 and stuck > 0, (shared, stuck)


@QUICK
@given(st.integers(0, 2**32))
def test_unusual_records_read_as_usual_ones(seed: int) -> None:
    """Fields in another order, lists that are not packed: the same nodes, decoded one by one."""
    rng = random.Random(seed)
    deps = tuple(rng.sample(range(20), rng.randint(0, 4)))
    nodes = [
        comp(i, deps if i > 20 else ()) for i in [*range(20), rng.choice([21, 1 << 20, 1 << 63])]
    ]
    usual = trace_bytes(nodes)
    last = nodes[-1].SerializeToString(deterministic=True)
    head = b"\x08" + _varint(nodes[-1].id)
    assert last.startswith(head)
    body = last[len(head) :] + head
    if deps:
        packed = b"".join(map(_varint, deps))
        packed = b"\x2a" + _varint(len(packed)) + packed
        assert body.count(packed) == 1
        body = body.replace(packed, b"") + b"".join(b"\x28" + _varint(d) for d in deps)
    unusual = usual[: len(usual) - len(last) - len(_varint(len(last)))] + _varint(len(body)) + body
    parser = TraceParser(GroupCodes(), None)
    one, other = (parser.load(data, "t.0.et")[0] for data in (usual, unusual))
    assert one is other


def test_hidden_fields_are_not_overlooked() -> None:
    """An id that is said again counts: such a record is not one of the usual kind."""
    table = KindTable(GroupCodes(), None)
    left = comp(0).SerializeToString(deterministic=True)
    assert table.number(left) == 0
    assert table.number(left + b"\x08\x00") == -1
    assert table.number(left + b"\x2a\x01\x05") == -1
    assert table.number(left + b"\x18\x04") == -1


def _varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])
