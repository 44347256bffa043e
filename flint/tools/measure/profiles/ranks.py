"""Profiles of several ranks: who is who, one clock for all, and collectives that belong together."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from flint.errors import FlintError
from flint.ir.program import Collective, Kind
from flint.tools.measure.profiles.comms import (
    collective_of,
    described,
    library_of,
    members_of,
    message_kind,
)
from flint.tools.measure.profiles.profile import Profile, ProfiledComm
from flint.tools.measure.profiles.steps import ProfiledStep

#: Clocks that differ by more are worth a sentence.
_WORTH_SAYING_NS = 1e6
#: Of more matched collectives than this the first warms up and says nothing of the clocks.
_WARM_UP = 3

#: A collective or message of a step: the ranks of its group (source and target of a message), whether
#: it is a message, and its turn among those of these ranks.
Key: TypeAlias = tuple[tuple[int, ...], bool, int]


@dataclass(frozen=True, slots=True)
class Recorded:
    """A rank's profile and the step of it that is taken."""

    rank: int
    profile: Profile
    step: ProfiledStep


def by_rank(profiles: Sequence[Profile], warnings: list[str]) -> dict[int, Profile]:
    """Profiles by rank, in order. Raises FlintError FL812 for two of one rank, FL813 for profiles
    that cannot be of one job."""
    formats = sorted({p.format for p in profiles})
    if len(formats) > 1:
        raise FlintError(
            "FL813",
            f"profiles of different tools ({', '.join(formats)}) are not ranks of one job",
            help="import the ranks of one recording together, others separately",
        )
    worlds = sorted({p.world_size for p in profiles if p.world_size > 0})
    if len(worlds) > 1:
        raise FlintError(
            "FL813",
            f"profiles of jobs of {worlds[0]} and {worlds[-1]} ranks are not of one job",
            help="import the ranks of one recording together, others separately",
        )
    found: dict[int, Profile] = {}
    silent = [p for p in profiles if p.rank < 0]
    if silent and len(profiles) > 1:
        warnings.append(
            f"{len(silent)} of {len(profiles)} profiles do not name their rank: their position "
            "in the arguments is used"
        )
    for place, profile in enumerate(profiles):
        rank = profile.rank if profile.rank >= 0 else place if len(profiles) > 1 else 0
        if rank in found:
            raise FlintError(
                "FL812",
                f"two profiles are of rank {rank}",
                help="give one file per rank (and of one recording)",
            )
        found[rank] = profile
    devices = sorted({p.device for p in profiles if p.device})
    if len(devices) > 1:
        warnings.append(f"ranks ran on different devices: {', '.join(devices)}")
    return dict(sorted(found.items()))


def communication_of(recorded: Recorded, world: int) -> dict[Key, int]:
    """Activities that are collectives of known groups or messages, in order of start."""
    profile = recorded.profile
    turns: dict[tuple[tuple[int, ...], bool], int] = defaultdict(int)
    found: dict[Key, int] = {}
    for row in recorded.step.activities.tolist():
        if not profile.communicates[row]:
            continue
        comm = described(profile, row, world)
        if comm is None or (comm.in_elements < 0 and library_of(profile, row) != "nccl"):
            continue  # kernels of other libraries end when their own rank is done
        ends = _ends(comm, recorded, world)
        if ends is not None:
            found[(*ends, turns[ends])] = row
            turns[ends] += 1
    return found


def _ends(
    comm: ProfiledComm, recorded: Recorded, world: int
) -> tuple[tuple[int, ...], bool] | None:
    """Ranks of a collective's group, or source and target of a message; None where unknown."""
    kind = message_kind(comm.name)
    if kind is not None:
        if not 0 <= comm.peer < world or comm.peer == recorded.rank:
            return None
        pair = (recorded.rank, comm.peer)
        return pair if kind is Kind.SEND else pair[::-1], True
    if collective_of(comm.name) is Collective.NONE:
        return None
    members = members_of(comm, recorded.profile, world)
    return (members, False) if len(members) > 1 else None


@dataclass(frozen=True, slots=True)
class Aligned:
    """What is added to each rank's times to be on the first rank's clock, and which collectives of
    each rank have partners: their activities with the time of the transfer alone."""

    shift_ns: Mapping[int, float]
    transfer_ns: Mapping[int, Mapping[int, float]]
    unmatched: Mapping[int, frozenset[int]]


def align(recorded: Sequence[Recorded], world: int, warnings: list[str]) -> Aligned:
    """Clocks by the ends of collectives, which all members of a group see at once.

    From rank to rank the median of what ends differ by is taken, the first collective omitted.
    """
    keys = {r.rank: communication_of(r, world) for r in recorded}
    base = {r.rank: float(r.profile.origin_ns) for r in recorded}
    if any(b == 0 for b in base.values()):
        base = dict.fromkeys(base, 0.0)
    first = recorded[0].rank
    start = {rank: b - base[first] for rank, b in base.items()}
    corrections = _corrections(recorded, keys, start)
    shift = {rank: start[rank] + corrections.get(rank, 0.0) for rank in start}
    apart = [r for r in start if r not in corrections]
    if apart:
        moved = _moved_together(recorded, start, apart)
        shift |= moved
        how = "their clocks are used unchanged"
        if moved:
            how = f"{len(moved)} steps at other times are assumed to begin with its own"
        warnings.append(
            f"{len(apart)} of {len(start)} ranks have no collective in common with rank {first}: {how}"
        )
    worst = max(map(abs, corrections.values()), default=0.0)
    if worst > _WORTH_SAYING_NS:
        warnings.append(
            f"clocks of ranks differed by up to {worst / 1e6:.3f} ms: aligned on the ends of collectives"
        )
    transfer, unmatched = _transfers(recorded, keys, shift)
    lost = sum(map(len, unmatched.values()))
    if lost:
        warnings.append(
            f"{lost} collectives and messages have no partner in another profile: they are "
            "treated as kernels with their measured time"
        )
    return Aligned(shift, transfer, unmatched)


def _moved_together(
    recorded: Sequence[Recorded], start: Mapping[int, float], apart: Sequence[int]
) -> dict[int, float]:
    """What is added to times of ranks `apart` whose steps lie before or after that of the first rank.

    Clocks of other machines, or other recordings: that the steps began together is as good a guess as
    any, and hours between them are none.
    """
    spans = {}
    for r in recorded:
        a, rows = r.profile.activities, r.step.activities
        spans[r.rank] = a.start_ns[rows].min() + start[r.rank], a.end_ns[rows].max() + start[r.rank]
    begin, end = spans[recorded[0].rank]
    others = [r for r in apart if spans[r][0] > end or spans[r][1] < begin]
    return {r: start[r] + float(begin - spans[r][0]) for r in others}


def _corrections(
    recorded: Sequence[Recorded], keys: Mapping[int, Mapping[Key, int]], start: Mapping[int, float]
) -> dict[int, float]:
    """Breadth first from the first rank over ranks that share collectives."""
    ends = {
        r.rank: {
            key: float(r.profile.activities.end_ns[row]) + start[r.rank]
            for key, row in keys[r.rank].items()
        }
        for r in recorded
    }
    found = {recorded[0].rank: 0.0}
    waiting = deque(found)
    while waiting:
        known = waiting.popleft()
        for other, theirs in ends.items():
            if other in found:
                continue
            shared = sorted(ends[known].keys() & theirs.keys(), key=ends[known].__getitem__)
            if not shared:
                continue
            used = shared[1:] if len(shared) > _WARM_UP else shared
            apart = [ends[known][k] - theirs[k] for k in used]
            found[other] = found[known] + float(np.median(apart))
            waiting.append(other)
    return found


def _transfers(
    recorded: Sequence[Recorded], keys: Mapping[int, Mapping[Key, int]], shift: Mapping[int, float]
) -> tuple[dict[int, dict[int, float]], dict[int, frozenset[int]]]:
    """Time from the last start to the first end of the profiled members of each collective."""
    profiles = {r.rank: r.profile for r in recorded}
    transfer: dict[int, dict[int, float]] = {r: {} for r in profiles}
    unmatched: dict[int, set[int]] = {r: set() for r in profiles}
    for key in {k for found in keys.values() for k in found}:
        present = [r for r in key[0] if r in profiles]
        have = [r for r in present if key in keys[r]]
        if len(have) < len(present) or (key[1] and len(have) < 2):
            for rank in have:
                unmatched[rank].add(keys[rank][key])
        elif len(have) > 1:
            rows = [(profiles[r].activities, keys[r][key], shift[r]) for r in have]
            last = max(float(a.start_ns[row]) + s for a, row, s in rows)
            over = min(float(a.end_ns[row]) + s for a, row, s in rows)
            for rank in have:
                transfer[rank][keys[rank][key]] = max(over - last, 1.0)
    return transfer, {r: frozenset(rows) for r, rows in unmatched.items()}
