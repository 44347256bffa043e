"""Ranks of one class whose collectives share groups, and whose messages share peers, alike.

In the first rank of a cohort the third and the fifth collective may be over one group; then they
are in every rank of it, only over another one. So what a rank issues on a group, or sends to a
peer, is a question for the cohort, and the answer is found once. A *label* numbers the different
groups, targets or sources of a rank of the cohort.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from flint.backends.chakra.checking.findings import Findings
from flint.backends.chakra.reading.kinds import GroupCodes, GroupName
from flint.backends.chakra.reading.slot_order import by_turn
from flint.backends.chakra.reading.trace_class import (
    AT,
    COMM_KIND,
    COMM_SIZE,
    COMM_TYPE,
    TraceClass,
    TraceNodes,
)
from flint.backends.chakra.reading.trace_files import Membership
from flint.backends.chakra.schema import CommType, NodeType
from flint.ir.program import Int64s


@dataclass(frozen=True, eq=False)
class Labelled:
    """One kind of communication: `lines` of TraceNodes.comm, and the label of each.

    `values[i, label]` is the group's number, the target or the source for rank i of the cohort.
    """

    lines: Int64s
    label: Int64s
    values: Int64s

    def of(self, label: int) -> Int64s:
        """The lines with this label."""
        return np.compress(self.label == label, self.lines, axis=0)


@dataclass(frozen=True, eq=False)
class Cohort:
    """`ranks` are ascending. Lines whose group or peer is unsound are in none of the three."""

    nodes: TraceNodes
    ranks: Int64s
    collectives: Labelled
    sends: Labelled
    receives: Labelled

    @cached_property
    def parts(self) -> tuple[Labelled, Labelled, Labelled]:
        """Collectives, sends and receives."""
        return self.collectives, self.sends, self.receives


def find_cohorts(
    trace_class: TraceClass, codes: GroupCodes, membership: Membership, findings: Findings
) -> list[Cohort]:
    """The cohorts of a class. Notes groups and peers that cannot be."""
    order = np.argsort(np.array(trace_class.ranks, dtype=np.int64), kind="stable")
    ranks = np.array(trace_class.ranks, dtype=np.int64)[order]
    table = trace_class.table()[order]
    nodes = trace_class.nodes
    groups, slots = _groups(trace_class, ranks, table, _GroupsOfRanks(codes, membership, findings))
    sends, receives, pair = _peers(trace_class, ranks, table, membership.world, findings)
    is_send = nodes.messages[:, COMM_TYPE] == NodeType.COMM_SEND
    parts = (
        (nodes.collectives, slots, groups),
        (nodes.messages[is_send], pair[is_send], sends),
        (nodes.messages[~is_send], pair[~is_send], receives),
    )
    labels = np.concatenate([_first_equal(values) for _, _, values in parts], axis=1)
    patterns, which = np.unique(labels, axis=0, return_inverse=True)
    cohorts = []
    for number, pattern in enumerate(patterns):
        inside = which.reshape(-1) == number
        widths = np.cumsum([values.shape[1] for _, _, values in parts])[:-1]
        firsts = np.split(pattern, widths)
        labelled = [
            _labelled(lines, column, values[inside], first)
            for (lines, column, values), first in zip(parts, firsts, strict=True)
        ]
        cohorts.append(Cohort(nodes, ranks[inside], *labelled))
    return cohorts


def _labelled(lines: Int64s, column: Int64s, values: Int64s, first: Int64s) -> Labelled:
    """`first` is, of each column of `values`, the first that equals it, -1 where it is unsound."""
    used = np.unique(first[first >= 0])
    label = np.searchsorted(used, first[column])
    sound = first[column] >= 0
    return Labelled(lines[sound], label[sound], values[:, used])


def _first_equal(values: Int64s) -> Int64s:
    """For each entry the first column of its row with that value; -1 for negative values."""
    if not values.shape[1]:
        return values
    order = np.argsort(values, axis=1, kind="stable")
    ordered = np.take_along_axis(values, order, axis=1)
    columns = np.arange(values.shape[1])
    new = np.ones(values.shape, dtype=np.bool_)
    new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    start = np.maximum.accumulate(np.where(new, columns, 0), axis=1)
    result = np.empty_like(values)
    np.put_along_axis(result, order, np.take_along_axis(order, start, axis=1), axis=1)
    return np.where(values < 0, -1, result)


@dataclass
class _GroupsOfRanks:
    """Resolves names; what is wrong with one is said once for each rank and name."""

    codes: GroupCodes
    membership: Membership
    findings: Findings

    def numbers(self, nodes: TraceNodes, at: int, ranks: Int64s, code: int) -> Int64s:
        """Number of the group of this code for each rank, -1 where it has none that lists it."""
        name = self.codes.name(code)
        found = self.membership.resolve(name, ranks)
        node = nodes.id_at(at)
        if isinstance(found, str):
            if not self._is_unlisted(name):
                what = "unknown-group" if isinstance(name, str) else "bad-dimensions"
                for rank in ranks.tolist():
                    self.findings.add(what, rank, node, found)
            return np.full(len(ranks), -1, dtype=np.int64)
        result = found.copy()
        for number in np.unique(found).tolist():
            inside = np.flatnonzero(found == number)
            result[inside] = self._listed(number, node, ranks[inside])
        return result

    def _is_unlisted(self, name: GroupName) -> bool:
        """Whether it is for want of a group file, which is said once."""
        return isinstance(name, str) and self.membership.named is None

    def _listed(self, number: int, node: int, ranks: Int64s) -> Int64s:
        label = self.membership.labels[number]
        listed = self.membership.lists(number, ranks)
        for rank in ranks[~listed].tolist():
            sentence = f"it uses {label}, which does not list it"
            self.findings.add("rank-not-in-group", rank, node, sentence)
        if len(self.membership.members[number]) == 1:
            for rank in ranks[listed].tolist():
                self.findings.add("group-of-one", rank, node, f"{label} is the rank alone")
        return np.where(listed, number, -1)


def _groups(
    trace_class: TraceClass, ranks: Int64s, table: Int64s, groups: _GroupsOfRanks
) -> tuple[Int64s, Int64s]:
    """Numbers of groups (rank, column), and the column of each collective."""
    slots, first, column = np.unique(
        trace_class.group_slots, return_index=True, return_inverse=True
    )
    nodes = trace_class.nodes
    numbers = np.full((len(ranks), len(slots)), -1, dtype=np.int64)
    known: dict[int, tuple[Int64s, Int64s]] = {}
    for i in np.argsort(first).tolist():  # a name is reported where it is first used
        values = table[:, slots[i]]
        at = int(nodes.collectives[first[i], AT])
        codes, which = np.unique(values, return_inverse=True)
        order = np.argsort(which.reshape(-1), kind="stable")
        parts = np.split(order, np.cumsum(np.bincount(which.reshape(-1)))[:-1])
        for code, inside in zip(codes.tolist(), parts, strict=True):
            numbers[inside, i] = _known(groups, nodes, at, ranks, inside, code, known)
    return numbers, column.reshape(-1).astype(np.int64)


def _known(
    groups: _GroupsOfRanks,
    nodes: TraceNodes,
    at: int,
    ranks: Int64s,
    inside: Int64s,
    code: int,
    known: dict[int, tuple[Int64s, Int64s]],
) -> Int64s:
    """The numbers of a code for the ranks `inside`; only those that are new are looked up."""
    before, numbers = known.get(code, (np.zeros(0, np.int64), np.zeros(0, np.int64)))
    new = inside if not len(before) else np.setdiff1d(inside, before, assume_unique=True)
    if len(new):
        found = groups.numbers(nodes, at, ranks[new], code)
        before, numbers = np.concatenate((before, new)), np.concatenate((numbers, found))
        order = np.argsort(before)
        before, numbers = before[order], numbers[order]
        known[code] = before, numbers
    return numbers[np.searchsorted(before, inside)]


def _peers(
    trace_class: TraceClass, ranks: Int64s, table: Int64s, world: int, findings: Findings
) -> tuple[Int64s, Int64s, Int64s]:
    """Targets of sends and sources of receives (rank, column), and the column of each message.

    -1 where the ends of a message cannot be.
    """
    messages = trace_class.nodes.messages
    if not len(messages):
        nothing = np.zeros((len(ranks), 0), dtype=np.int64)
        return nothing, nothing, np.zeros(0, dtype=np.int64)
    ends = np.column_stack((messages[:, COMM_TYPE], trace_class.end_slots))
    pairs, pair = np.unique(ends, axis=0, return_inverse=True)
    pair = pair.reshape(-1)
    values = np.empty((len(ranks), len(pairs)), dtype=np.int64)
    for i, (node_type, own_slot, other_slot) in enumerate(pairs.tolist()):
        own, other = table[:, own_slot], table[:, other_slot]
        own = np.where(own == -1, ranks, own)
        sound = (own == ranks) & (other >= 0) & (other < world) & (other != ranks)
        values[:, i] = np.where(sound, other, -1)
        if not sound.all():
            ids = [trace_class.nodes.id_at(p) for p in messages[pair == i, AT].tolist()]
            report = _Ends(node_type == NodeType.COMM_SEND, world, ids, findings)
            for at in np.flatnonzero(~sound).tolist():
                report.add(int(ranks[at]), int(own[at]), int(other[at]))
    is_send = pairs[:, 0] == NodeType.COMM_SEND
    column = np.where(is_send, np.cumsum(is_send), np.cumsum(~is_send)) - 1
    return values[:, is_send], values[:, ~is_send], column[pair]


@dataclass(frozen=True)
class _Ends:
    """Reports the ends of the messages `ids` of one rank."""

    is_send: bool
    world: int
    ids: list[int]
    findings: Findings

    def add(self, rank: int, own: int, other: int) -> None:
        names = ("comm_src", "comm_dst") if self.is_send else ("comm_dst", "comm_src")
        for node in self.ids:
            if own != rank:
                sentence = f"{names[0]} is {own} in the trace of rank {rank}"
                self.findings.add("wrong-rank", rank, node, sentence)
            if not 0 <= other < self.world:
                sentence = f"{names[1]} is {other}, but ranks are 0 to {self.world - 1}"
                self.findings.add("wrong-rank", rank, node, sentence)
            if other == rank:
                sentence = "source and target are the rank itself"
                self.findings.add("send-to-self", rank, node, sentence)


# Whether the members of each group issue the same collectives in the same order.


def match_collectives(
    cohorts: Sequence[Cohort], membership: Membership, present: set[int], findings: Findings
) -> None:
    """Note every group whose members differ or are missing."""
    issued = _issued(cohorts)
    everyone = sorted(present)
    for group in sorted(issued):
        sequences = issued[group]
        label, members = membership.labels[group], membership.members[group]
        seen = {rank for ranks in sequences.values() for rank in ranks}
        listed = members if isinstance(members, range) else frozenset(members)
        for rank in min((members, everyone), key=len):
            if rank not in seen and rank in present and rank in listed:
                sentence = f"it issues no collective on {label}, but other members do"
                findings.add("missing-participant", rank, -1, sentence)
        ordered = sorted(sequences.items(), key=lambda item: (-len(item[1]), item[1][0]))
        usual = _sequence(ordered[0][0])
        for other, ranks in ordered[1:]:
            code, sentence = _difference(usual, _sequence(other), ordered[0][1][0])
            findings.add(code, ranks[0], -1, f"on {label} {sentence}{_others(ranks)}")


def _issued(cohorts: Sequence[Cohort]) -> dict[int, dict[bytes, list[int]]]:
    """Group -> sequence of (kind, comm_size) in their order -> ranks that issue it, ascending."""
    issued: dict[int, dict[bytes, list[int]]] = {}
    for cohort in cohorts:
        ranks, part = cohort.ranks.tolist(), cohort.collectives
        for label in range(part.values.shape[1]):
            lines = by_turn(part.of(label), AT, cohort.nodes.slot_order)
            sequence = np.ascontiguousarray(lines[:, (COMM_KIND, COMM_SIZE)]).tobytes()
            for rank, group in zip(ranks, part.values[:, label].tolist(), strict=True):
                issued.setdefault(group, {}).setdefault(sequence, []).append(rank)
    for sequences in issued.values():
        for found in sequences.values():
            found.sort()
    return issued


def _sequence(data: bytes) -> Int64s:
    return np.frombuffer(data, dtype=np.int64).reshape(-1, 2)


def _difference(usual: Int64s, other: Int64s, rank: int) -> tuple[str, str]:
    """Code and sentence for the first place in which two sequences differ."""
    if len(usual) != len(other):
        return (
            "collective-count",
            f"it has {len(other)} collectives, rank {rank} has {len(usual)}",
        )
    at = int(np.flatnonzero((usual != other).any(axis=1))[0])
    mine, theirs = _describe(other[at]), _describe(usual[at])
    sentence = f"its collective {at} is {mine}, that of rank {rank} is {theirs}"
    if Counter(map(tuple, usual.tolist())) == Counter(map(tuple, other.tolist())):
        return "collective-order", sentence
    return ("collective-kind" if usual[at, 0] != other[at, 0] else "collective-size"), sentence


def _describe(entry: Int64s) -> str:
    kind, size = entry.tolist()
    name = CommType(kind).name if kind in CommType._value2member_map_ else f"comm_type {kind}"
    return f"{name} of {size} bytes"


def _others(ranks: list[int]) -> str:
    return f" (and {len(ranks) - 1} other ranks)" if len(ranks) > 1 else ""
