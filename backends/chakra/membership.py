"""Who belongs to the group of a collective: comm_group.json, the world, or network dimensions."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flint.errors import FlintError

GroupName = str | tuple[bool, ...]


@dataclass
class Membership:
    """Resolves a group's name on a rank to a number; `members` and `labels` are by number.

    `dimensions` are the sizes of the network's dimensions, the fastest-varying first; None when
    nobody said. ASTRA-sim takes "" and "0" for the world, or for `involved_dim` if it is there.
    """

    world: int
    named: Mapping[str, tuple[int, ...]]
    dimensions: tuple[int, ...] | None = None
    members: list[Sequence[int]] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    _numbers: dict[object, int] = field(default_factory=dict)

    def resolve(self, name: GroupName, rank: int) -> int | str:
        """Number of the group, or the sentence that says why there is none."""
        if name in ("", "0"):
            return self._number("world", range(self.world), "the world")
        if isinstance(name, str):
            if name not in self.named:
                return f"group '{name}' is not in the communicator group file"
            return self._number(name, self.named[name], f"group {name}")
        if all(name) and (self.dimensions is None or len(self.dimensions) == len(name)):
            return self._number("world", range(self.world), "the world")
        if self.dimensions is None or len(self.dimensions) != len(name):
            known = "unknown" if self.dimensions is None else str(len(self.dimensions))
            return f"involved_dim has {len(name)} entries, network dimensions: {known}"
        return self._along(name, rank)

    def _along(self, involved: tuple[bool, ...], rank: int) -> int:
        assert self.dimensions is not None
        ranks, stride = [rank], 1
        for size, inside in zip(self.dimensions, involved, strict=True):
            if inside:
                low = rank - (rank // stride % size) * stride
                ranks = [r - rank + low + i * stride for r in ranks for i in range(size)]
            stride *= size
        members = tuple(sorted(ranks))
        label = f"ranks {members[0]} and on along dimensions {list(involved)}"
        return self._number((involved, members[0]), members, label)

    def _number(self, key: object, members: Sequence[int], label: str) -> int:
        number = self._numbers.setdefault(key, len(self.members))
        if number == len(self.members):
            self.members.append(members)
            self.labels.append(label)
        return number


def read_groups(path: Path) -> dict[str, tuple[int, ...]]:
    """A communicator group file. Raises FlintError FL602 (cannot read) or FL605 (not one)."""
    try:
        document = json.loads(path.read_text())
    except OSError as error:
        raise FlintError("FL602", f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise _not_groups(path, str(error)) from error
    if not isinstance(document, dict):
        raise _not_groups(path, "it is not an object of lists")
    for name, ranks in document.items():
        if not name.isdecimal() or int(name) < 1:
            raise _not_groups(path, f"'{name}' is not a number above 0")
        if not isinstance(ranks, list) or not all(
            isinstance(r, int) and not isinstance(r, bool) and r >= 0 for r in ranks
        ):
            raise _not_groups(path, f"group {name} is not a list of ranks")
    return {name: tuple(ranks) for name, ranks in document.items()}


def read_network(path: Path) -> tuple[int, ...] | None:
    """npus_count of an ASTRA-sim network file, or None if it has none."""
    try:
        found = re.search(r"^\s*npus_count:\s*\[([\d,\s]+)\]", path.read_text(), re.MULTILINE)
    except (OSError, UnicodeDecodeError):
        return None
    return tuple(int(n) for n in found[1].split(",") if n.strip()) if found else None


def _not_groups(path: Path, why: str) -> FlintError:
    return FlintError(
        "FL605",
        f"{path} is not a communicator group file: {why}",
        help='it holds group numbers and their ranks: {"1": [0, 1], "2": [2, 3]}',
    )
