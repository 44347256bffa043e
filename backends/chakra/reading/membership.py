"""Who belongs to the group of a collective: comm_group.json, the world, or network dimensions."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flint.backends.chakra.reading.kinds import GroupName
from flint.errors import FlintError
from flint.io.bounded import FileKind, parse_json, read_bounded
from flint.ir.mesh import MOST_DEVICES
from flint.ir.program import Int64s

#: Simulators keep ranks in 32 bits.
MOST_RANKS = 1 << 31


@dataclass
class Membership:
    """Gives the groups that traces name numbers; `members` and `labels` are by number.

    `named` is None where there is no communicator group file. `dimensions` are the sizes of the
    network's dimensions, the fastest-varying first; None when nobody said. ASTRA-sim takes "" and
    "0" for the world, or for `involved_dim` if it is there.
    """

    world: int
    named: Mapping[str, tuple[int, ...]] | None
    dimensions: tuple[int, ...] | None = None
    members: list[Sequence[int]] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    _numbers: dict[object, int] = field(default_factory=dict)
    _sorted: dict[int, Int64s] = field(default_factory=dict)

    def resolve(self, name: GroupName, ranks: Int64s) -> Int64s | str:
        """Number of the group of this name for each of `ranks`, or why there is none."""
        if name in ("", "0"):
            return self._one("world", range(self.world), "the world", ranks)
        if isinstance(name, str):
            if self.named is None or name not in self.named:
                return f"group '{name}' is not in the communicator group file"
            return self._one(name, self.named[name], f"group {name}", ranks)
        if all(name) and (self.dimensions is None or len(self.dimensions) == len(name)):
            return self._one("world", range(self.world), "the world", ranks)
        if self.dimensions is None or len(self.dimensions) != len(name):
            known = "unknown" if self.dimensions is None else str(len(self.dimensions))
            return f"involved_dim has {len(name)} entries, network dimensions: {known}"
        return self._along(name, self.dimensions, ranks)

    def lists(self, number: int, ranks: Int64s) -> NDArray[np.bool_]:
        """Whether the group holds each of `ranks`."""
        members = self.members[number]
        if isinstance(members, range):
            return (ranks >= members.start) & (ranks < members.stop)
        known = self._sorted.get(number)
        if known is None:
            known = self._sorted[number] = np.array(sorted({-1, *members}), dtype=np.int64)
        found: NDArray[np.bool_] = known[np.searchsorted(known, ranks, side="right") - 1] == ranks
        return found

    def _along(
        self, involved: tuple[bool, ...], dimensions: tuple[int, ...], ranks: Int64s
    ) -> Int64s:
        """Groups of the ranks that differ in the involved dimensions only."""
        first, offsets, stride = ranks.copy(), np.zeros(1, dtype=np.int64), 1
        for size, is_inside in zip(dimensions, involved, strict=True):
            if is_inside:
                first -= ranks // stride % size * stride
                offsets = (np.arange(size)[:, None] * stride + offsets).reshape(-1)
            stride *= size
        starts, which = np.unique(first, return_inverse=True)
        text = list(involved)
        numbers = [
            self._number(
                (involved, start),
                lambda start=start: tuple(np.sort(offsets + start).tolist()),  # type: ignore[misc]
                f"ranks {start} and on along dimensions {text}",
            )
            for start in starts.tolist()
        ]
        return np.array(numbers, dtype=np.int64)[which.reshape(-1)]

    def _one(self, key: str, members: Sequence[int], label: str, ranks: Int64s) -> Int64s:
        return np.full(len(ranks), self._number(key, lambda: members, label), dtype=np.int64)

    def _number(self, key: object, members: Callable[[], Sequence[int]], label: str) -> int:
        number = self._numbers.setdefault(key, len(self.members))
        if number == len(self.members):
            self.members.append(members())
            self.labels.append(label)
        return number


def read_groups(path: Path) -> dict[str, tuple[int, ...]]:
    """A communicator group file. Raises FlintError FL602 (cannot read) or FL605 (not one)."""
    data = read_bounded(path, FileKind.GROUPS, "FL602")
    try:
        document = parse_json(data)
    except ValueError as error:
        raise _not_groups(path, str(error)) from error
    if not isinstance(document, dict):
        raise _not_groups(path, "it is not an object of lists")
    for name, ranks in document.items():
        if not re.fullmatch(r"0*[1-9][0-9]{0,18}", name):
            raise _not_groups(path, f"'{name[:40]}' is not a number above 0")
        if not isinstance(ranks, list) or not all(type(r) is int and r >= 0 for r in ranks):
            raise _not_groups(path, f"group {name} is not a list of ranks")
        if max(ranks, default=0) >= MOST_RANKS:
            what = f"it has a rank {str(max(ranks))[:40]}, ranks are below {MOST_RANKS:,}"
            raise _not_groups(path, f"group {name}: {what}")
    return {name: tuple(ranks) for name, ranks in document.items()}


def read_network(path: Path) -> tuple[int, ...] | None:
    """npus_count of an ASTRA-sim network file, or None if there is no file or it has none.

    Raises FlintError FL602 for one that cannot be read, FL706 for counts that no system has.
    """
    if not path.exists():
        return None
    text = read_bounded(path, FileKind.SIMULATOR, "FL602").decode(errors="replace")
    found = re.search(r"^\s*npus_count:\s*\[([0-9,\s]+)\]", text, re.MULTILINE)
    if found is None:
        return None
    counts = tuple(int(n[:20]) for n in found[1].replace(",", " ").split())
    if not counts or min(counts) < 1 or math.prod(counts) > MOST_DEVICES:
        raise FlintError(
            "FL706",
            f"{path.name}: npus_count is {found[1].strip()[:60]}",
            place=str(path),
            help=f"the product of all counts is between 1 and {MOST_DEVICES:,}",
        )
    return counts


def _not_groups(path: Path, why: str) -> FlintError:
    return FlintError(
        "FL605",
        f"{path} is not a communicator group file: {why}",
        help='it holds group numbers and their ranks: {"1": [0, 1], "2": [2, 3]}',
    )
