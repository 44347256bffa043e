"""Ranks, groups and messages that cannot be."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from flint.tools.measure.profiles.comms import message_kind
from flint.tools.measure.profiles.profile import Profile, ProfiledComm

# What rules look at.


@dataclass(frozen=True)
class Checked:
    """The profile of one rank of a job of `world` ranks; `rows` are activities of the step taken."""

    rank: int
    world: int
    profile: Profile
    rows: NDArray[np.int64]


#: A rule gives a sentence for each thing that cannot be.
Rule: TypeAlias = Callable[[Checked], Iterator[str]]


def some(what: list[str], most: int = 3) -> str:
    """A few of many, in their order."""
    rest = f" and {len(what) - most} more" if len(what) > most else ""
    return ", ".join(what[:most]) + rest


def ms(ns: float) -> str:
    """Milliseconds."""
    return f"{ns / 1e6:,.3f} ms"


#: No job has more ranks.
MOST_RANKS = 1 << 24


def world_is_too_large(c: Checked) -> Iterator[str]:
    """More ranks than any job has."""
    if c.world > MOST_RANKS:
        yield f"the job has {c.world:,} ranks"


def rank_is_outside(c: Checked) -> Iterator[str]:
    """A rank that the job does not have."""
    if c.rank >= c.world:
        yield f"rank {c.rank} is of a job of {c.world} ranks"


def group_is_outside(c: Checked) -> Iterator[str]:
    """Groups of ranks that the job does not have, or of more."""
    for name, ranks, size in _groups(c):
        if any(r >= c.world for r in ranks):
            yield f"group {name} has rank {max(ranks)} of a job of {c.world} ranks"
        elif size > c.world:
            yield f"group {name} has {size:,} of {c.world} ranks"


def group_repeats_a_rank(c: Checked) -> Iterator[str]:
    """Groups in which a rank is twice."""
    for name, ranks, _ in _groups(c):
        if len(set(ranks)) < len(ranks):
            yield f"group {name} has a rank twice: {some([str(r) for r in sorted(ranks)], 8)}"


def group_is_of_another_size(c: Checked) -> Iterator[str]:
    """Groups that list more or fewer ranks than they say to have."""
    for name, ranks, size in _groups(c):
        if ranks and size and len(ranks) != size:
            yield f"group {name} lists {len(ranks)} ranks but says that it has {size}"


def rank_is_not_in_its_group(c: Checked) -> Iterator[str]:
    """Collectives of groups that the rank is not in."""
    used = {int(n) for n in c.profile.activities.comm[c.rows].tolist() if n >= 0}
    for number in sorted(used):
        comm = c.profile.comms[number]
        if c.profile.rank >= 0 and comm.ranks and c.rank not in comm.ranks:
            yield f"rank {c.rank} runs {comm.name} of group {_name(comm)}, which it is not in"


def peer_is_outside(c: Checked) -> Iterator[str]:
    """Messages to ranks that the job does not have."""
    for comm in c.profile.comms:
        ends = (comm.peer, *(rank for pair in comm.pairs for rank in pair))
        if max(ends) >= c.world:
            yield f"{comm.name} goes to rank {max(ends)} of a job of {c.world} ranks"


def message_to_itself(c: Checked) -> Iterator[str]:
    """Messages whose other end is the rank itself."""
    own = [m for m in c.profile.comms if message_kind(m.name) and m.peer == c.rank and c.world > 1]
    if own:
        yield f"{own[0].name} of rank {c.rank} goes to itself"


def group_has_two_lists(c: Checked) -> Iterator[str]:
    """Groups of one name with different ranks."""
    known: dict[str, set[tuple[int, ...]]] = defaultdict(set)
    for name, ranks, _ in _groups(c):
        if ranks:
            known[name].add(tuple(sorted(ranks)))
    twice = [n for n, lists in known.items() if len(lists) > 1 and n.startswith("'")]
    if twice:
        yield f"groups of one name have different ranks: {some(twice)}"


def permutation_meets(c: Checked) -> Iterator[str]:
    """Permutations in which two ranks send to one."""
    for comm in c.profile.comms:
        targets = [target for _, target in comm.pairs]
        if len(set(targets)) < len(targets):
            yield f"two ranks of {comm.name} send to rank {max(targets, key=targets.count)}"


def _groups(c: Checked) -> Iterator[tuple[str, tuple[int, ...], int]]:
    """Name, listed ranks and said size of each group."""
    for name, ranks in c.profile.groups.items():
        yield f"'{name[:40]}'", ranks, len(ranks)
    for comm in c.profile.comms:
        yield _name(comm), comm.ranks, comm.group_size


def _name(comm: ProfiledComm) -> str:
    return f"'{comm.group[:40]}'" if comm.group else f"of {comm.name}"
