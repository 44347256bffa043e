"""Simulating one rank for all that are in step says what simulating every rank says."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flint.backends.chakra.checking.cohorts import find_cohorts, match_collectives
from flint.backends.chakra.checking.deadlock import Situation, find_deadlock
from flint.backends.chakra.checking.findings import Findings
from flint.backends.chakra.checking.messages import find_exchange
from flint.backends.chakra.checking.partition import find_parts
from flint.backends.chakra.reading.kinds import GroupCodes, KindTable
from flint.backends.chakra.reading.parser import TraceParser
from flint.backends.chakra.reading.trace_files import Membership
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
    alone = find_deadlock(where, np.arange(where.world))
    assert find_deadlock(where, parts) == alone
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
        in_order = False
    for rank, nodes in enumerate(step):
        ends: dict[int, tuple[int, ...]] = {}
        for i, operation in enumerate(operations):
            waits = tuple(sorted({n for d in deps[i] for n in ends.get(d, ())}))
            if in_order and nodes:
                waits = tuple(sorted({*waits, nodes[-1].id}))
            # Where the ranks of a square disagree like this, they wait in a circle.
            is_last = is_twisted and rank.bit_count() % 2
            at = len(operations) - 1 - i if is_last else i
            found = operation(4 * at, rank, waits)
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


def test_ranks_of_a_ring_are_one_part() -> None:
    ring: Ranks = [
        [send(0, r, (r + 1) % 6), recv(1, r, (r - 1) % 6), comp(2, (0, 1))] for r in range(6)
    ]
    where = situation(ring, {})
    assert where is not None and both_ways(where) == 1
    stuck: Ranks = [[recv(0, r, (r - 1) % 6), send(1, r, (r + 1) % 6, (0,))] for r in range(6)]
    where = situation(stuck, {})
    assert where is not None and both_ways(where) == 1
    found = find_deadlock(where)
    assert found is not None and found.only_messages and "rank 0 waits in node 0" in found.sentence


def test_ranks_of_a_square_wait_in_a_circle() -> None:
    """All four are of one cohort, and meet each other in different turns: none stands for another."""
    groups = {"1": (0, 1), "2": (2, 3), "3": (0, 2), "4": (1, 3)}
    pairs = [("1", "3"), ("1", "4"), ("2", "3"), ("2", "4")]
    square: Ranks = []
    for rank, (row, column) in enumerate(pairs):
        first, second = (0, 4) if rank in (0, 3) else (4, 0)
        square.append([coll(first, row), coll(second, column)])
    where = situation(square, groups)
    assert where is not None and both_ways(where) == 4
    assert find_deadlock(where) is not None


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
            stuck += find_deadlock(where) is not None
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
