"""Messages of one kind between two ranks that are received in another order than they are sent.

A simulator matches messages by tag and does not mind; libraries that match by order (NCCL) deliver
the wrong data, and a pipeline computes with another microbatch than it thinks.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from flint.backends.chakra.checking.cohorts import Cohort
from flint.backends.chakra.checking.findings import Findings
from flint.backends.chakra.checking.messages import Exchange
from flint.backends.chakra.checking.structure import Structure
from flint.backends.chakra.reading.trace_class import AT, COMM_NAME, COMM_SIZE, COMM_TAG
from flint.ir.program import Int64s


class _Message(NamedTuple):
    """One message of an edge: tag, and the position of its node on either side."""

    tag: int
    sent: int
    received: int


def report_overtaking(exchange: Exchange, findings: Findings) -> None:
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
    first: _Message,
    second: _Message,
    findings: Findings,
) -> None:
    sender, receiver = ends[0].nodes, ends[1].nodes
    sentence = (
        f"it receives from rank {source} first what is sent second: tag "
        f"{second.tag} before tag {first.tag}, sent by nodes {sender.id_at(second.sent)} and "
        f"{sender.id_at(first.sent)}"
    )
    findings.add("message-order", target, receiver.id_at(second.received), sentence)


def _overtaken(
    sender: Cohort, receiver: Cohort, sends: Int64s, receives: Int64s
) -> list[tuple[_Message, _Message]]:
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


def _by_kind(sends: Int64s, receives: Int64s) -> list[list[_Message]]:
    """Messages of one size and name on both sides, in the order of sending."""
    kinds: dict[tuple[int, int, int], list[_Message]] = {}
    for send, receive in zip(sends.tolist(), receives.tolist(), strict=True):
        kind = (send[COMM_SIZE], send[COMM_NAME], receive[COMM_NAME])
        message = _Message(send[COMM_TAG], send[AT], receive[AT])
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
