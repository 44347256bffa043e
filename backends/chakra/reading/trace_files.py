"""Find the traces of a directory or prefix, and the files beside them."""

from __future__ import annotations

import contextlib
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path

from flint.backends.chakra.manifest import Manifest, OldManifest, read_manifest
from flint.backends.chakra.reading.membership import MOST_RANKS, read_groups, read_network
from flint.backends.chakra.writing.output import left_behind
from flint.errors import FlintError
from flint.io.bounded import FileKind, is_directory, is_file, parse_json, read_bounded

_TRACE = re.compile(r"(.+)\.([0-9]+)\.et", re.DOTALL)


@dataclass(frozen=True)
class TraceSet:
    """Traces by rank, groups by name, and what is known of the whole.

    `entries` are the names of all that the directory holds. `groups` is None where there is no
    group file, `group_file` the file that was found under another name than comm_group.json.
    `dimensions` are the network's, the fastest-varying first, or None. `has_roofline` is what the
    simulator's system.json says, None without one. `partial` is true where the writer was asked for
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
    world: int
    partial: bool
    manifest: Manifest | OldManifest | None


def find_traces(place: Path, groups: Path | None = None) -> TraceSet:
    """Traces at `place`, a directory or a prefix: `prefix`.<rank>.et.

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
    world = max([max(paths), *listed]) + 1
    dimensions = read_network(folder / "network.yml")
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
        world=world,
        partial=asked != "all",
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
    if not path.exists():
        return None
    try:
        document = parse_json(read_bounded(path, FileKind.SIMULATOR, "FL602"))
    except ValueError:
        return None
    if not isinstance(document, dict):
        return None
    return bool(document.get("roofline-enabled", False))


def _paths(place: Path, folder: Path, entries: tuple[str, ...]) -> tuple[str, dict[int, Path]]:
    """The prefix of the traces, and the file of each rank, ascending."""
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


def _some(names: list[str]) -> str:
    return ", ".join(names if len(names) <= 5 else [*names[:5], f"{len(names) - 5:,} more"])


def _rank(path: Path, digits: str) -> int:
    """The rank in a file's name. Raises FlintError FL601 for one that no system has."""
    rank = int(digits[:20])  # Python refuses to convert thousands of digits
    if rank >= MOST_RANKS or len(digits) > 20:
        raise FlintError(
            "FL601",
            f"{path.name[:80]} is of a rank that no system has",
            place=str(path.parent),
            help=f"ranks are below {MOST_RANKS:,}; rename or remove the file",
        )
    return rank
