"""Whether the members of each group issue the same collectives in the same order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from flint.backends.chakra.checking.cohorts import Cohort
from flint.backends.chakra.checking.findings import Findings
from flint.backends.chakra.reading.membership import Membership
from flint.backends.chakra.reading.trace_class import COMM_KIND, COMM_SIZE
from flint.backends.chakra.schema import CommType
from flint.ir.program import Int64s


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
                sentence = f"it issues no collective on {label}, other members do"
                findings.add("missing-participant", rank, -1, sentence)
        ordered = sorted(sequences.items(), key=lambda item: (-len(item[1]), item[1][0]))
        usual = _sequence(ordered[0][0])
        for other, ranks in ordered[1:]:
            code, sentence = _difference(usual, _sequence(other), ordered[0][1][0])
            findings.add(code, ranks[0], -1, f"on {label} {sentence}{_others(ranks)}")


def _issued(cohorts: Sequence[Cohort]) -> dict[int, dict[bytes, list[int]]]:
    """Group -> sequence of (kind, comm_size) in order of id -> ranks that issue it, ascending."""
    issued: dict[int, dict[bytes, list[int]]] = {}
    for cohort in cohorts:
        ranks, part = cohort.ranks.tolist(), cohort.collectives
        for label in range(part.values.shape[1]):
            lines = part.of(label)
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
