"""Whether every send has its receive: the same tag, ends and size, as ASTRA-sim pairs them.

All messages of one rank to another are an *edge*. The two ranks of an edge agree if both say the
same bundle of tags and sizes; only where they do not are the messages looked at one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from flint.backends.chakra.checking.cohorts import Cohort, Labelled
from flint.backends.chakra.checking.findings import Findings
from flint.backends.chakra.reading.trace_class import AT, COMM_NAME, COMM_SIZE, COMM_TAG, Structure
from flint.ir.program import Int64s

#: Unmatched messages examined further: a fault in a program leaves one on every rank.
_MAX_UNMATCHED = 10_000

#: (tag, source, target, size, node id)
_Message = tuple[int, int, int, int, int]


@dataclass(frozen=True, eq=False)
class Edges:
    """One side of all edges, by source and target, each pair once.

    `cohort` and `label` say whose messages they are; `bundle` is equal for equal tags and sizes.
    """

    source: Int64s
    target: Int64s
    cohort: Int64s
    label: Int64s
    bundle: Int64s

    def __len__(self) -> int:
        return len(self.source)


@dataclass(frozen=True, eq=False)
class AllMessages:
    """Sends and receives of all ranks."""

    cohorts: Sequence[Cohort]
    sends: Edges
    receives: Edges

    @cached_property
    def agrees(self) -> bool:
        """Whether both sides say the same, so that edge i of one is edge i of the other."""
        s, r = self.sends, self.receives
        return len(s) == len(r) and bool(
            (s.source == r.source).all()
            and (s.target == r.target).all()
            and (s.bundle == r.bundle).all()
        )

    def report(self, present: set[int], findings: Findings) -> None:
        """Note every message without its other end, and which value differs if one does."""
        if self.agrees:
            return
        sent, received = self._left_over()
        sends = [m for m in sent if m[2] in present]
        receives = [m for m in received if m[1] in present]
        _pair_up(sends, receives, lambda m: m[:3], "message-size", findings)
        _pair_up(sends, receives, lambda m: m[1:4], "message-tag", findings)
        for tag, source, target, size, node in receives:
            sentence = f"rank {source} sends it no {size} bytes with tag {tag}"
            findings.add("recv-without-send", target, node, sentence)
        for tag, source, target, size, node in sends:
            sentence = f"rank {target} receives no {size} bytes with tag {tag} from it"
            findings.add("send-without-recv", source, node, sentence)

    def _left_over(self) -> tuple[list[_Message], list[_Message]]:
        """Messages that the other side lacks, by source, target, tag and size."""
        sides = [
            {(s, t): at for at, (s, t) in enumerate(_ends(edges))}
            for edges in (self.sends, self.receives)
        ]
        left: tuple[list[_Message], list[_Message]] = ([], [])
        for ends in sorted({**sides[0], **sides[1]}):
            at, other = sides[0].get(ends, -1), sides[1].get(ends, -1)
            if min(at, other) >= 0 and self.sends.bundle[at] == self.receives.bundle[other]:
                continue
            sent = self._messages(self.sends, at, 1) if at >= 0 else []
            received = self._messages(self.receives, other, 2) if other >= 0 else []
            for found, more in zip(left, _surplus(sent, received), strict=True):
                found.extend(more)
            if len(left[0]) + len(left[1]) > _MAX_UNMATCHED:
                break
        return left

    def _messages(self, edges: Edges, at: int, part: int) -> list[_Message]:
        """The messages of an edge, by tag, size and id. `part` 1 is sends, 2 is receives."""
        cohort = self.cohorts[edges.cohort[at]]
        source, target = int(edges.source[at]), int(edges.target[at])
        lines = cohort.parts[part].of(int(edges.label[at]))
        return sorted(
            (tag, source, target, size, cohort.nodes.id_at(position))
            for position, tag, size in lines[:, (AT, COMM_TAG, COMM_SIZE)].tolist()
        )


def find_exchange(cohorts: Sequence[Cohort]) -> AllMessages:
    """All messages of all ranks."""
    bundles: dict[bytes, int] = {}
    sends = _edges(cohorts, 1, bundles)
    receives = _edges(cohorts, 2, bundles)
    return AllMessages(cohorts, sends, receives)


def _edges(cohorts: Sequence[Cohort], part: int, bundles: dict[bytes, int]) -> Edges:
    columns: list[Int64s] = [np.zeros((0, 5), dtype=np.int64)]
    for number, cohort in enumerate(cohorts):
        messages = cohort.parts[part]
        for label in range(messages.values.shape[1]):
            peers = messages.values[:, label]
            source, target = (cohort.ranks, peers) if part == 1 else (peers, cohort.ranks)
            bundle = bundles.setdefault(_bundle(messages, label), len(bundles))
            same = np.tile(np.array([number, label, bundle]), (len(peers), 1))
            columns.append(np.column_stack((source, target, same)))
    table = np.concatenate(columns)
    table = table[np.lexsort((table[:, 1], table[:, 0]))]
    return Edges(*(np.ascontiguousarray(c) for c in table.T))


def _bundle(messages: Labelled, label: int) -> bytes:
    """Equal for equal tags and sizes, however often each."""
    pairs = messages.of(label)[:, (COMM_TAG, COMM_SIZE)]
    return pairs[np.lexsort(pairs.T)].tobytes()


def _ends(edges: Edges) -> list[tuple[int, int]]:
    return list(zip(edges.source.tolist(), edges.target.tolist(), strict=True))


def _surplus(
    sent: list[_Message], received: list[_Message]
) -> tuple[list[_Message], list[_Message]]:
    """Of each tag and size, the messages that one side has more than the other: its last ones."""
    counts: dict[tuple[int, int], list[list[_Message]]] = {}
    for side, messages in enumerate((sent, received)):
        for message in messages:
            counts.setdefault((message[0], message[3]), [[], []])[side].append(message)
    surplus: tuple[list[_Message], list[_Message]] = ([], [])
    for sides in counts.values():
        same = min(map(len, sides))
        for found, messages in zip(surplus, sides, strict=True):
            found.extend(messages[same:])
    return sorted(surplus[0]), sorted(surplus[1])


def _pair_up(
    sends: list[_Message],
    receives: list[_Message],
    same: Callable[[_Message], tuple[int, ...]],
    code: str,
    findings: Findings,
) -> None:
    """Take out sends and receives that agree in `same`, and note what differs."""
    waiting: dict[tuple[int, ...], list[_Message]] = {}
    for message in receives:
        waiting.setdefault(same(message), []).append(message)
    paired: set[_Message] = set()
    for send in sends:
        found = waiting.get(same(send))
        if not found:
            continue
        receive = found.pop(0)
        paired |= {(*send[:4], ~send[4]), receive}
        what, at = ("comm_size", 3) if code == "message-size" else ("comm_tag", 0)
        sentence = (
            f"its {what} is {receive[at]}, but node {send[4]} of rank {send[1]} sends {send[at]}"
        )
        findings.add(code, receive[2], receive[4], sentence)
    sends[:] = [m for m in sends if (*m[:4], ~m[4]) not in paired]
    receives[:] = [m for m in receives if m not in paired]


# Messages of one kind between two ranks that are received in another order than they are sent.
#
# A simulator matches messages by tag and does not mind; libraries that match by order (NCCL) deliver
# the wrong data, and a pipeline computes with another microbatch than it thinks.


class _Paired(NamedTuple):
    """One message of an edge: tag, and the position of its node on either side."""

    tag: int
    sent: int
    received: int


def report_overtaking(exchange: AllMessages, findings: Findings) -> None:
    """Note where an order is certain: dependencies say it on both sides, and they disagree.

    Looks at sends of one name, size and pair of ranks whose receives have one name too, when every
    tag is used once. All messages are matched.
    """
    sends, receives = exchange.sends, exchange.receives
    kinds = np.column_stack((sends.cohort, sends.label, receives.cohort, receives.label))
    if not len(kinds):
        return
    different, which = np.unique(kinds, axis=0, return_inverse=True)
    for number, (sender, sent, receiver, received) in enumerate(different.tolist()):
        ends = exchange.cohorts[sender], exchange.cohorts[receiver]
        found = _overtaken(*ends, ends[0].sends.of(sent), ends[1].receives.of(received))
        for at in np.flatnonzero(which.reshape(-1) == number).tolist() if found else ():
            source, target = int(sends.source[at]), int(sends.target[at])
            for first, second in found:
                _report(source, target, ends, first, second, findings)


def _report(
    source: int,
    target: int,
    ends: tuple[Cohort, Cohort],
    first: _Paired,
    second: _Paired,
    findings: Findings,
) -> None:
    sender, receiver = ends[0].nodes, ends[1].nodes
    sentence = (
        f"it first receives from rank {source} what is sent second: tag {second.tag} before tag "
        f"{first.tag}, sent by nodes {sender.id_at(second.sent)} and {sender.id_at(first.sent)}"
    )
    findings.add("message-order", target, receiver.id_at(second.received), sentence)


def _overtaken(
    sender: Cohort, receiver: Cohort, sends: Int64s, receives: Int64s
) -> list[tuple[_Paired, _Paired]]:
    """Pairs of messages of an edge of which the second is received first, for certain."""
    found = []
    for messages in _by_kind(_unique(sends), _unique(receives)):
        for first, second in pairwise(messages):
            if (
                second.received < first.received
                and _waits(sender.nodes.structure, first.sent, second.sent)
                and _waits(receiver.nodes.structure, second.received, first.received)
            ):
                found.append((first, second))
    return found


def _by_kind(sends: Int64s, receives: Int64s) -> list[list[_Paired]]:
    """Messages of one size and name on both sides, in the order of sending."""
    kinds: dict[tuple[int, int, int], list[_Paired]] = {}
    for send, receive in zip(sends.tolist(), receives.tolist(), strict=True):
        kind = (send[COMM_SIZE], send[COMM_NAME], receive[COMM_NAME])
        message = _Paired(send[COMM_TAG], send[AT], receive[AT])
        kinds.setdefault(kind, []).append(message)
    return [sorted(messages, key=lambda m: m.sent) for messages in kinds.values()]


def _unique(lines: Int64s) -> Int64s:
    """Messages by tag and size, without those that are not alone in both."""
    ordered = lines[np.lexsort((lines[:, COMM_SIZE], lines[:, COMM_TAG]))]
    keys = ordered[:, (COMM_TAG, COMM_SIZE)]
    same = (keys[1:] == keys[:-1]).all(axis=1)
    again = np.zeros(len(ordered), dtype=np.bool_)
    again[1:] |= same
    again[:-1] |= same
    return ordered[~again]


def _waits(structure: Structure, start: int, goal: int) -> bool:
    """Whether the node at position `goal` waits, through others, for that at `start`."""
    seen, todo = {start}, [start]
    child_start, children = structure.adjacency
    while todo:
        at = todo.pop()
        for child in children[child_start[at] : child_start[at + 1]]:
            if child == goal:
                return True
            if child < goal and child not in seen:
                seen.add(child)
                todo.append(child)
    return False
