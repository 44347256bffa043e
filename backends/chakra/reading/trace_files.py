"""Find the traces of a directory or prefix, and the files beside them."""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flint.backends.chakra.manifest import Manifest, OldManifest, read_manifest
from flint.backends.chakra.reading.kinds import GroupName
from flint.backends.chakra.writing.output import left_behind
from flint.cluster.astrasim.memory import NOTHING
from flint.errors import FlintError, Malformed
from flint.io.bounded import FileKind, is_directory, is_file, parse_json, read_bounded
from flint.ir.mesh import MOST_DEVICES
from flint.ir.program import Int64s

# Who belongs to the group of a collective: comm_group.json, the world, or network dimensions.

#: Simulators keep ranks in 32 bits.
MOST_RANKS = 1 << 31


@dataclass
class Membership:
    """Gives the groups that traces name numbers; `members` and `labels` are by number.

    `along` has the dimensions of those that are said by dimensions, unless that is the world.

    `named` is None where there is no communicator group file. `dimensions` are the sizes of the
    network's dimensions, the fastest-varying first; None when nobody said. ASTRA-sim takes "" and
    "0" for the world, or for `involved_dim` if it is there.
    """

    world: int
    named: Mapping[str, tuple[int, ...]] | None
    dimensions: tuple[int, ...] | None = None
    members: list[Sequence[int]] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    along: dict[int, tuple[bool, ...]] = field(default_factory=dict)
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
            return f"involved_dim has {len(name)} entries, but the network dimensions are {known}"
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
        self.along.update(dict.fromkeys(numbers, involved))
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
    except Malformed as error:
        raise _not_groups(path, str(error)) from error
    if not isinstance(document, dict):
        raise _not_groups(path, "it is not an object of lists")
    for name, ranks in document.items():
        if not re.fullmatch(r"0*[1-9][0-9]{0,18}", name):
            raise _not_groups(path, f"'{name[:40]}' is not a number above 0")
        if not isinstance(ranks, list) or not all(type(r) is int and r >= 0 for r in ranks):
            raise _not_groups(path, f"group {name} is not a list of ranks")
        if max(ranks, default=0) >= MOST_RANKS:
            what = f"it has a rank {str(max(ranks))[:40]}, but ranks are below {MOST_RANKS:,}"
            raise _not_groups(path, f"group {name}: {what}")
    return {name: tuple(ranks) for name, ranks in document.items()}


def read_network(path: Path) -> tuple[int, ...] | None:
    """npus_count of an ASTRA-sim network file, or None if there is no file or it has none (one device).

    Raises FlintError FL602 for one that cannot be read, FL706 for counts that no system has.
    """
    if not path.exists():
        return None
    text = read_bounded(path, FileKind.SIMULATOR, "FL602").decode(errors="replace")
    found = re.search(r"^\s*npus_count:\s*\[([0-9,\s]+)\]", text, re.MULTILINE)
    if found is None:
        return None
    counts = tuple(int(n[:20]) for n in found[1].replace(",", " ").split())
    if not counts:  # of one device
        return None
    if min(counts) < 1 or math.prod(counts) > MOST_DEVICES:
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
        help='it contains group numbers and their ranks: {"1": [0, 1], "2": [2, 3]}',
    )


_TRACE = re.compile(r"(.+)\.([0-9]+)\.et", re.DOTALL)


@dataclass(frozen=True)
class TraceSet:
    """Traces by rank, groups by name, and what is known of the whole.

    `entries` are the names of all that the directory holds. `groups` is None where there is no
    group file, `group_file` the file that was found under another name than comm_group.json.
    `dimensions` are the network's, the fastest-varying first, or None. `has_roofline` is what the
    simulator's system.json says, `has_memory` whether its memory.json has remote memory, None without
    such a file. `partial` is true where the writer was asked for
    some of the ranks only; `world` is the number of ranks of the mesh.
    """

    folder: Path
    prefix: str
    paths: dict[int, Path]
    entries: tuple[str, ...]
    groups: dict[str, tuple[int, ...]] | None
    group_file: str
    dimensions: tuple[int, ...] | None
    has_roofline: bool | None
    has_memory: bool | None
    world: int
    partial: bool
    manifest: Manifest | OldManifest | None


def find_traces(place: Path, groups: Path | None = None) -> TraceSet:
    """Traces at `place`, a directory or a prefix: `prefix`.<rank>.et; or the one that it is.

    `groups` is the communicator group file; unless it is given, comm_group.json beside the traces,
    or a group file of the traces' name, as STAGE calls it. Raises FlintError FL601 if there are no
    traces or of several prefixes, FL602, FL605 and FL606.
    """
    folder = place if is_directory(place) else place.parent
    entries = _entries(folder)
    prefix, paths = _paths(place, folder, entries)
    members, group_file = _find_groups(folder, prefix, groups)
    manifest = read_manifest(folder)
    listed = (max(ranks, default=0) for ranks in (members or {}).values())
    dimensions = read_network(folder / "network.yml")
    world = max(max([max(paths), *listed]) + 1, math.prod(dimensions or ()))
    asked: object = "all"
    if manifest is not None:
        dimensions = tuple(s for s in reversed(manifest.mesh.values()) if s > 1)
        world = math.prod(dimensions)
        options = manifest.options
        asked = options.get("ranks", "all") if isinstance(options, dict) else options.ranks
    return TraceSet(
        folder=folder,
        prefix=prefix,
        paths=paths,
        entries=entries,
        groups=members,
        group_file=group_file,
        dimensions=dimensions,
        has_roofline=_read_roofline(folder / "system.json"),
        has_memory=_read_memory(folder / "memory.json"),
        world=world,
        partial=asked != "all" or _is_trace(place),
        manifest=manifest,
    )


def _entries(folder: Path) -> tuple[str, ...]:
    try:
        return tuple(sorted(os.listdir(folder)))
    except (OSError, ValueError) as error:  # ValueError: a name that no system has
        reason = getattr(error, "strerror", None) or error
        raise FlintError("FL602", f"cannot read {folder}: {reason}") from error


def _find_groups(
    folder: Path, prefix: str, given: Path | None
) -> tuple[dict[str, tuple[int, ...]] | None, str]:
    """The groups, None without a file; and the file's name if nobody would expect it."""
    if given is not None:
        return read_groups(given), ""
    usual = folder / "comm_group.json"
    if usual.exists():
        return read_groups(usual), ""
    for name in group_file_names(prefix)[1:]:
        if is_file(folder / name):
            # Something else may have this name, such as a timeline.
            with contextlib.suppress(FlintError):
                return read_groups(folder / name), name
    return None, ""


def group_file_names(prefix: str) -> tuple[str, str, str]:
    """Where a group file is looked for: the usual name, and those that STAGE gives it."""
    return "comm_group.json", f"{prefix}.json", prefix


def _read_roofline(path: Path) -> bool | None:
    """Whether ASTRA-sim's system file turns the roofline on; None without a file that says so."""
    document = _settings(path)
    return None if document is None else bool(document.get("roofline-enabled", False))


def _read_memory(path: Path) -> bool | None:
    """Whether ASTRA-sim's memory file has remote memory; None without a file that says so."""
    document = _settings(path)
    return None if document is None else document.get("memory-type") != NOTHING


def _settings(path: Path) -> dict[str, object] | None:
    if not path.exists():
        return None
    try:
        document = parse_json(read_bounded(path, FileKind.SIMULATOR, "FL602"))
    except Malformed:
        return None
    return document if isinstance(document, dict) else None


def _paths(place: Path, folder: Path, entries: tuple[str, ...]) -> tuple[str, dict[int, Path]]:
    """The prefix of the traces, and the file of each rank, ascending."""
    if _is_trace(place):
        named = _TRACE.fullmatch(place.name)
        prefix, digits = (named[1], named[2]) if named else (place.stem, "0")
        return prefix, {_rank(place, digits): place}
    found: dict[str, dict[int, Path]] = {}
    wanted = None if is_directory(place) else place.name
    for name in entries:
        match = _TRACE.fullmatch(name)
        if match and wanted in (None, match[1]):
            ranks = found.setdefault(match[1], {})
            rank = _rank(folder / name, match[2])
            if rank in ranks:
                raise FlintError(
                    "FL601",
                    f"{folder} has two traces of rank {rank}: {ranks[rank].name}, {name}",
                    help="remove one of them",
                )
            ranks[rank] = folder / name
    if not found:
        raise FlintError(
            "FL601",
            f"there are no Chakra traces at {place}",
            help=left_behind(place)
            or "give a directory that holds PREFIX.<rank>.et files, or DIR/PREFIX",
        )
    if len(found) > 1:
        raise FlintError(
            "FL601",
            f"{folder} holds traces of several prefixes: {_some(sorted(found))}",
            help=f"choose one: {folder / min(found)}",
        )
    prefix, paths = next(iter(found.items()))
    return prefix, dict(sorted(paths.items()))


def _is_trace(place: Path) -> bool:
    """Whether a place is one trace. A prefix may be a file, too: STAGE's groups."""
    return place.suffix == ".et" and is_file(place)


def _some(names: list[str]) -> str:
    return ", ".join(names if len(names) <= 5 else [*names[:5], f"{len(names) - 5:,} more"])


def _rank(path: Path, digits: str) -> int:
    """The rank in a file's name. Raises FlintError FL601 for one that no system has."""
    rank = int(digits[:20])  # Python refuses to convert thousands of digits
    if rank >= MOST_RANKS or len(digits) > 20:
        raise FlintError(
            "FL601",
            f"{path.name[:80]} has a rank that no system has",
            place=str(path.parent),
            help=f"ranks are below {MOST_RANKS:,}; rename or remove the file",
        )
    return rank
