"""Messages of one kind between two ranks that are received in another order than they are sent.

A simulator matches messages by tag and does not mind; libraries that match by order (NCCL) deliver
the wrong data, and a pipeline computes with another microbatch than it thinks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

import numpy as np

from flint.backends.chakra.deadlock import RankWork
from flint.backends.chakra.findings import Findings
from flint.program import Int64s

#: Columns of a message: (tag, source, target, size, node id, number of its name).
_TAG, _SOURCE, _TARGET, _SIZE, _ID, _NAME = range(6)


def report_overtaking(
    sends: Int64s, receives: Int64s, work: Mapping[int, RankWork], findings: Findings
) -> None:
    """Note where an order is certain: dependencies say it on both sides, and they disagree.

    Looks at sends of one name, size and pair of ranks whose receives have one name too, when every
    tag is used once. `sends` and `receives` are all matched.
    """
    pairs = _paired(sends, receives)
    if not len(pairs):
        return
    kinds = pairs[:, (_SOURCE, _TARGET, _SIZE, _NAME, 6 + _NAME)]
    change = np.flatnonzero((kinds[1:] != kinds[:-1]).any(axis=1)) + 1
    for messages in np.split(pairs, change):
        received = messages[:, 6 + _ID]
        for at in np.flatnonzero(received[1:] < received[:-1]).tolist():
            first, second = messages[at], messages[at + 1]
            if _is_certain(first, second, work):
                sentence = (
                    f"it receives from rank {first[_SOURCE]} first what is sent second: tag "
                    f"{second[_TAG]} before tag {first[_TAG]}, sent by nodes {second[_ID]} and "
                    f"{first[_ID]}"
                )
                target = int(first[_TARGET])
                findings.add("message-order", target, int(second[6 + _ID]), sentence)


def _paired(sends: Int64s, receives: Int64s) -> Int64s:
    """Sends beside their receives, by kind and then in the order of sending."""
    left, right = _unique(sends), _unique(receives)
    keys = (_TAG, _SOURCE, _TARGET, _SIZE)
    if len(left) != len(right) or not (left[:, keys] == right[:, keys]).all():
        return np.zeros((0, 12), dtype=np.int64)
    both = np.concatenate((left, right), axis=1)
    order = np.lexsort([both[:, c] for c in (_ID, 6 + _NAME, _NAME, _SIZE, _TARGET, _SOURCE)])
    return both[order]


def _unique(messages: Int64s) -> Int64s:
    """Messages by key, without those whose key occurs more than once."""
    order = np.lexsort([messages[:, c] for c in (_SIZE, _TARGET, _SOURCE, _TAG)])
    ordered = messages[order]
    keys = ordered[:, (_TAG, _SOURCE, _TARGET, _SIZE)]
    same = (keys[1:] == keys[:-1]).all(axis=1)
    again = np.zeros(len(ordered), dtype=np.bool_)
    again[1:] |= same
    again[:-1] |= same
    return ordered[~again]


def _is_certain(first: Int64s, second: Int64s, work: Mapping[int, RankWork]) -> bool:
    sender, receiver = work[int(first[_SOURCE])], work[int(first[_TARGET])]
    sent = _waits(sender, int(first[_ID]), int(second[_ID]))
    return sent and _waits(receiver, int(second[6 + _ID]), int(first[6 + _ID]))


def _waits(work: RankWork, early: int, late: int) -> bool:
    """Whether node `late` waits, through others, for node `early`."""
    start, goal = bisect_left(work.ids, early), bisect_left(work.ids, late)
    seen, todo = {start}, [start]
    while todo:
        for child in work.structure.children[todo.pop()]:
            if child == goal:
                return True
            if child < goal and child not in seen:
                seen.add(child)
                todo.append(child)
    return False
