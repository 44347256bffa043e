"""What events say of collectives, and what kernels take over from the operators around them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from flint.frontends.profiles.builder import ProfileBuilder
from flint.frontends.profiles.kineto.fields import integer, integers
from flint.frontends.profiles.profile import Comm, Profile

_KEYS = (
    "Collective name", "In msg nelems", "Out msg nelems", "dtype", "Process Group Name",
    "Process Group ID", "Group size", "Process Group Ranks", "Src Rank", "Dst Rank",
    "In split size", "Out split size", "Seq", "Rank", "Global rank start", "Global rank stride",
)  # fmt: skip
_MESSAGES = ("send", "recv")


class Comms:
    """Numbers of descriptions; learns ranks of groups, and the own rank, on the way."""

    def __init__(self, builder: ProfileBuilder) -> None:
        self._builder = builder
        self._known: dict[str, int] = {}
        self.rank = -1

    def number(self, args: dict[str, Any]) -> int:
        """Number of a collective's description, -1 if the event has none."""
        name = args.get("Collective name")
        if not isinstance(name, str) or not name:
            return -1
        key = repr([args.get(k) for k in _KEYS])
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._builder.comm(self._read(name, args))
        return found

    def _read(self, name: str, args: dict[str, Any]) -> Comm:
        group = args.get("Process Group Name", args.get("Process Group ID", ""))
        size = max(0, integer(args.get("Group size"), 0))
        ranks = integers(args.get("Process Group Ranks")) or ()
        ranks = ranks if len(ranks) == (size or len(ranks)) else ()
        comm = Comm(
            name=name,
            in_elements=integer(args.get("In msg nelems")),
            out_elements=integer(args.get("Out msg nelems")),
            dtype=str(args.get("dtype", "")),
            group=str(group),
            group_size=size or len(ranks),
            ranks=ranks or _regular(args, size),
            peer=integer(args.get("Dst Rank" if name == "send" else "Src Rank")),
            in_splits=integers(args.get("In split size")) or (),
            out_splits=integers(args.get("Out split size")) or (),
            turn=integer(args.get("Seq")),
        )
        self._learn(comm, args, ranks)
        return comm

    def _learn(self, comm: Comm, args: dict[str, Any], ranks: tuple[int, ...]) -> None:
        if ranks and comm.group:
            self._builder.groups.setdefault(comm.group, ranks)
        at = integer(args.get("Rank"))
        if comm.name not in _MESSAGES and 0 <= at < len(ranks):
            self.rank = ranks[at]


def _regular(args: dict[str, Any], size: int) -> tuple[int, ...]:
    """Ranks by start and stride, which operators have: all that is said where the list is cut."""
    if (
        isinstance(args.get("Process Group Ranks"), str)
        and "..." not in args["Process Group Ranks"]
    ):
        return ()
    start = integer(args.get("Global rank start"))
    stride = integer(args.get("Global rank stride"))
    if start < 0 or stride < 1 or not 0 < size <= 1 << 20:
        return ()
    return tuple(range(start, start + size * stride, stride))


def with_comms_of_operators(profile: Profile) -> Profile:
    """NCCL's and RCCL's kernels that say nothing say what the operator around them says."""
    activities, operators = profile.activities, profile.operators
    is_nccl = np.array(["nccl" in s.lower() or "rccl" in s.lower() for s in profile.strings])
    rows = np.flatnonzero((activities.comm < 0) & is_nccl[activities.name])
    if not len(rows):
        return profile
    comm = activities.comm.copy()
    for row in rows.tolist():
        at = int(activities.operator[row])
        while at >= 0 and operators.comm[at] < 0:
            at = int(operators.parent[at])
        comm[row] = operators.comm[at] if at >= 0 else -1
    missing = int((comm[rows] < 0).sum())
    said = (
        f"{missing} collective kernels say neither size nor group (coalesced, or of an older PyTorch)",
    )
    return replace(
        profile,
        activities=replace(activities, comm=comm),
        warnings=profile.warnings + (said if missing else ()),
    )
