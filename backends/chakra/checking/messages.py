"""Whether every send has its receive: the same tag, ends and size, as ASTRA-sim pairs them.

All messages of one rank to another are an *edge*. The two ranks of an edge agree if both say the
same bundle of tags and sizes; only where they do not are the messages looked at one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from flint.backends.chakra.checking.cohorts import Cohort, Labelled
from flint.backends.chakra.checking.findings import Findings
from flint.backends.chakra.reading.trace_class import AT, COMM_SIZE, COMM_TAG
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
class Exchange:
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


def find_exchange(cohorts: Sequence[Cohort]) -> Exchange:
    """All messages of all ranks."""
    bundles: dict[bytes, int] = {}
    sends = _edges(cohorts, 1, bundles)
    receives = _edges(cohorts, 2, bundles)
    return Exchange(cohorts, sends, receives)


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
