"""Whether ranks agree: collectives in one sequence per group, each send with its receive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from flint.backends.chakra.findings import Findings
from flint.backends.chakra.membership import Membership
from flint.backends.chakra.references import COMM_BYTES, KIND, NAME, SOURCE, TAG, TARGET
from flint.backends.chakra.schema import CommType
from flint.program import Int64s

#: Kind and comm_size of each collective that a rank issues on a group, in order of id.
Sequence = Int64s


class CollectiveMatcher:
    """Compares the members of each group with the first of them that was seen."""

    def __init__(self) -> None:
        self._sequences: dict[int, dict[bytes, list[int]]] = {}

    def add(self, rank: int, groups: Int64s, columns: Int64s) -> None:
        """The collectives of `rank` in order of id: their groups' numbers and their columns."""
        for group in np.unique(groups).tolist():
            sequence = columns[groups == group][:, (KIND, COMM_BYTES)]
            ranks = self._sequences.setdefault(group, {}).setdefault(sequence.tobytes(), [])
            ranks.append(rank)

    def report(self, membership: Membership, present: set[int], findings: Findings) -> None:
        """Note every group whose members differ or are missing."""
        for group in sorted(self._sequences):
            sequences = self._sequences[group]
            label, members = membership.labels[group], membership.members[group]
            seen = {rank for ranks in sequences.values() for rank in ranks}
            for rank in min((members, sorted(present)), key=len):
                if rank not in seen and rank in present and rank in members:
                    sentence = f"it issues no collective on {label}, other members do"
                    findings.add("missing-participant", rank, -1, sentence)
            ordered = sorted(sequences.items(), key=lambda item: (-len(item[1]), item[1][0]))
            usual = _sequence(ordered[0][0])
            for other, ranks in ordered[1:]:
                code, sentence = _difference(usual, _sequence(other), ordered[0][1][0])
                findings.add(code, ranks[0], -1, f"on {label} {sentence}{_others(ranks)}")


def _sequence(data: bytes) -> Sequence:
    return np.frombuffer(data, dtype=np.int64).reshape(-1, 2)


def _difference(usual: Sequence, other: Sequence, rank: int) -> tuple[str, str]:
    """Code and sentence for the first place in which two sequences differ."""
    if len(usual) != len(other):
        return (
            "collective-count",
            f"its collectives number {len(other)}, those of rank {rank} {len(usual)}",
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


class MessageMatcher:
    """Pairs sends and receives by (tag, source, target, size), as ASTRA-sim does."""

    def __init__(self) -> None:
        self._sends: list[Int64s] = []
        self._receives: list[Int64s] = []

    def add_sends(self, columns: Int64s, ids: Int64s) -> None:
        """Sends of one rank."""
        self._sends.append(_message_keys(columns, ids))

    def add_receives(self, columns: Int64s, ids: Int64s) -> None:
        """Receives of one rank."""
        self._receives.append(_message_keys(columns, ids))

    @property
    def sends(self) -> Int64s:
        """All sends: (tag, source, target, size, node id, number of its name)."""
        return _stack(self._sends)

    @property
    def receives(self) -> Int64s:
        """All receives, in the same columns."""
        return _stack(self._receives)

    def report(self, present: set[int], findings: Findings) -> None:
        """Note every message without its other end, and which value differs if one does."""
        sends, receives = _unmatched(self.sends, self.receives)
        sends = [m for m in sends if m[2] in present]
        receives = [m for m in receives if m[1] in present]
        _pair_up(sends, receives, lambda m: m[:3], "message-size", findings)
        _pair_up(sends, receives, lambda m: m[1:4], "message-tag", findings)
        for tag, source, target, size, node in receives:
            sentence = f"rank {source} sends it no {size} bytes with tag {tag}"
            findings.add("recv-without-send", target, node, sentence)
        for tag, source, target, size, node in sends:
            sentence = f"rank {target} receives no {size} bytes with tag {tag} from it"
            findings.add("send-without-recv", source, node, sentence)


#: (tag, source, target, size, node id)
_Message = tuple[int, int, int, int, int]


def _message_keys(columns: Int64s, ids: Int64s) -> Int64s:
    return np.column_stack((columns[:, (TAG, SOURCE, TARGET, COMM_BYTES)], ids, columns[:, NAME]))


def _stack(parts: list[Int64s]) -> Int64s:
    return np.concatenate(parts) if parts else np.zeros((0, 6), dtype=np.int64)


def _unmatched(sends: Int64s, receives: Int64s) -> tuple[list[_Message], list[_Message]]:
    """Messages left over on either side: sort both by key, then compare how often each occurs."""
    both = np.concatenate((sends, receives))
    is_send = np.arange(len(both)) < len(sends)
    order = np.lexsort((both[:, 4], both[:, 3], both[:, 2], both[:, 1], both[:, 0]))
    both, is_send = both[order], is_send[order]
    if not len(both):
        return [], []
    new = np.ones(len(both), dtype=np.bool_)
    new[1:] = (both[1:, :4] != both[:-1, :4]).any(axis=1)
    key = np.cumsum(new) - 1
    balance = np.bincount(key, weights=np.where(is_send, 1, -1)).astype(np.int64)
    left: tuple[list[_Message], list[_Message]] = ([], [])
    starts = np.append(np.flatnonzero(new), len(both))
    for k in np.flatnonzero(balance).tolist():
        part = slice(starts[k], starts[k + 1])
        side = is_send[part] == (balance[k] > 0)
        entries = both[part][side][-abs(int(balance[k])) :]
        for tag, source, target, size, node, _ in entries.tolist():
            left[0 if balance[k] > 0 else 1].append((tag, source, target, size, node))
        if len(left[0]) + len(left[1]) > _MAX_UNMATCHED:
            break
    return left


#: Unmatched messages examined further: a fault in a program leaves one on every rank.
_MAX_UNMATCHED = 10_000


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


def check_peers(
    rank: int, columns: Int64s, ids: Int64s, world: int, sends: bool, findings: Findings
) -> tuple[Int64s, NDArray[np.bool_]]:
    """Complete and examine the ends of one rank's messages: the columns, and which are sound.

    comm_src of a send and comm_dst of a receive may be absent (-1 here): they are the rank.
    """
    own, other = (SOURCE, TARGET) if sends else (TARGET, SOURCE)
    names: Mapping[int, str] = {SOURCE: "comm_src", TARGET: "comm_dst"}
    columns = columns.copy()
    columns[columns[:, own] == -1, own] = rank
    for at in np.flatnonzero(columns[:, own] != rank).tolist():
        sentence = f"{names[own]} is {columns[at, own]} in the trace of rank {rank}"
        findings.add("wrong-rank", rank, int(ids[at]), sentence)
    outside = (columns[:, other] < 0) | (columns[:, other] >= world)
    for at in np.flatnonzero(outside).tolist():
        sentence = f"{names[other]} is {columns[at, other]}, ranks are 0 to {world - 1}"
        findings.add("wrong-rank", rank, int(ids[at]), sentence)
    for at in np.flatnonzero(columns[:, other] == rank).tolist():
        findings.add("send-to-self", rank, int(ids[at]), "source and target are the rank itself")
    return columns, ~outside & (columns[:, own] == rank) & (columns[:, other] != rank)
