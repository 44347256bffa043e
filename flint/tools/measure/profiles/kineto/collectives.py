"""What events say of collectives, and what kernels take over from the operators around them.

Since 2024 operators and kernels say kind, sizes and group. Of older recordings an annotation around
the launch (`nccl:all_reduce`) has kind, shapes and type of the input, and nothing says the group.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from flint.tools.measure.profiles.builder import ProfileBuilder
from flint.tools.measure.profiles.kineto.fields import integer, integers
from flint.tools.measure.profiles.profile import Operators, Profile, ProfiledComm

_KEYS = (
    "Collective name", "In msg nelems", "Out msg nelems", "dtype", "Process Group Name",
    "Process Group ID", "Group size", "Process Group Ranks", "Src Rank", "Dst Rank",
    "In split size", "Out split size", "Seq", "Rank", "Global rank start", "Global rank stride",
)  # fmt: skip
_MESSAGES = ("send", "recv")
#: What annotations around a collective begin with; they are read as operators.
ANNOTATION = "nccl:"


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

    def of_annotation(self, name: str, args: dict[str, Any]) -> int:
        """Number of what an annotation around a collective says; -1 if it is none, or says nothing."""
        if not name.startswith(ANNOTATION) or "Collective name" in args:
            return -1
        shapes, types = args.get("Input Dims"), args.get("Input type")
        if not isinstance(shapes, list) or not isinstance(types, list) or not shapes or not types:
            return -1
        dtype = types[0][0] if isinstance(types[0], list) and types[0] else types[0]
        elements = sum(map(_elements, shapes))
        if not isinstance(dtype, str) or not elements:
            return -1
        plain = name.removeprefix(ANNOTATION).partition(" ")[0]
        return self._builder.comm(ProfiledComm(plain, elements, -1, dtype))

    def _read(self, name: str, args: dict[str, Any]) -> ProfiledComm:
        group = args.get("Process Group Name", args.get("Process Group ID", ""))
        size = max(0, integer(args.get("Group size"), 0))
        ranks = integers(args.get("Process Group Ranks")) or ()
        comm = ProfiledComm(
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

    def _learn(self, comm: ProfiledComm, args: dict[str, Any], ranks: tuple[int, ...]) -> None:
        if ranks and comm.group:
            self._builder.groups.setdefault(comm.group, ranks)
        at = integer(args.get("Rank"))
        if comm.name not in _MESSAGES and 0 <= at < len(ranks):
            self.rank = ranks[at]


def _elements(shape: Any) -> int:
    """Elements of a tensor, or of a list of tensors; 0 of anything else."""
    if not isinstance(shape, list):
        return 0
    if shape and isinstance(shape[0], list):
        return sum(map(_elements, shape))
    return prod(shape) if all(type(d) is int and 0 < d < 1 << 40 for d in shape) else 0


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
    comm[rows] = [_around(operators, int(at), profile.comms) for at in activities.operator[rows]]
    missing = int((comm[rows] < 0).sum())
    said = (
        f"{missing} collective kernels state neither size nor group (coalesced, or older PyTorch)",
    )
    return _with_groups(
        replace(
            profile,
            activities=replace(activities, comm=comm),
            warnings=profile.warnings + (said if missing else ()),
        )
    )


def _around(operators: Operators, at: int, comms: tuple[ProfiledComm, ...]) -> int:
    """What the operators around one say of a collective: rather with a group, rather the inner one."""
    found = -1
    for row in operators.around(at):
        number = int(operators.comm[row])
        if number >= 0 and (comms[number].group_size or found < 0):
            found = number
            if comms[number].group_size:
                break
    return found


def _with_groups(profile: Profile) -> Profile:
    """Collectives without a group are of the only group that there is, or of all ranks."""
    groups = {tuple(sorted(g)) for g in profile.groups.values() if len(g) > 1}
    ranks = groups.pop() if len(groups) == 1 else tuple(range(profile.world_size))
    used = np.unique(profile.activities.comm)
    without = [n for n in used.tolist() if n >= 0 and not profile.comms[n].group_size]
    without = [n for n in without if profile.comms[n].name not in _MESSAGES]
    if groups or len(ranks) < 2 or not without:
        return profile
    comms = list(profile.comms)
    for number in without:
        comms[number] = replace(comms[number], group_size=len(ranks), ranks=ranks)
    kernels = int(np.isin(profile.activities.comm, without).sum())
    said = (
        f"{kernels} collective kernels do not name their group: all {len(ranks)} ranks are assumed"
    )
    return replace(profile, comms=tuple(comms), warnings=(*profile.warnings, said))
