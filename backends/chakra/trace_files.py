"""Find the traces of a directory or prefix, and the files beside them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from flint.backends.chakra.membership import read_groups, read_network
from flint.errors import FlintError


@dataclass(frozen=True)
class TraceSet:
    """Traces by rank, groups by name, and what is known of the whole.

    `dimensions` are the network's, the fastest-varying first, or None. `partial` is true where the
    writer was asked for some of the ranks only; `world` is the number of ranks of the mesh.
    """

    paths: dict[int, Path]
    groups: dict[str, tuple[int, ...]]
    dimensions: tuple[int, ...] | None
    world: int
    partial: bool


def find_traces(place: Path, groups: Path | None = None) -> TraceSet:
    """Traces at `place`, a directory or a prefix: `prefix`.<rank>.et.

    `groups` is the communicator group file, comm_group.json beside the traces unless it is given.
    Raises FlintError FL601 if there are none or of several prefixes, FL602 and FL605.
    """
    folder = place if place.is_dir() else place.parent
    paths = _paths(place, folder)
    beside = folder / "comm_group.json"
    named = groups if groups is not None else (beside if beside.exists() else None)
    members = read_groups(named) if named is not None else {}
    manifest = _manifest(folder)
    sizes = manifest.get("mesh")
    world = max([max(paths), *(max(ranks, default=0) for ranks in members.values())]) + 1
    dimensions = read_network(folder / "network.yml")
    if isinstance(sizes, dict):
        dimensions = tuple(int(s) for s in reversed(sizes.values()) if int(s) > 1)
        world = 1
        for size in dimensions:
            world *= size
    options = manifest.get("options")
    asked = options.get("ranks", "all") if isinstance(options, dict) else "all"
    return TraceSet(paths, members, dimensions, world, partial=asked != "all")


def _paths(place: Path, folder: Path) -> dict[int, Path]:
    found: dict[str, dict[int, Path]] = {}
    wanted = None if place.is_dir() else place.name
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise FlintError("FL602", f"cannot read {folder}: {error.strerror or error}") from error
    for path in entries:
        match = re.fullmatch(r"(.+)\.(\d+)\.et", path.name)
        if match and wanted in (None, match[1]):
            found.setdefault(match[1], {})[int(match[2])] = path
    if not found:
        raise FlintError(
            "FL601",
            f"there are no Chakra traces at {place}",
            help="give a directory that holds PREFIX.<rank>.et files, or DIR/PREFIX",
        )
    if len(found) > 1:
        raise FlintError(
            "FL601",
            f"{folder} holds traces of several prefixes: {', '.join(sorted(found))}",
            help=f"choose one: {folder / min(found)}",
        )
    return dict(sorted(next(iter(found.values())).items()))


def _manifest(folder: Path) -> dict[str, object]:
    """Flint's manifest if the directory has one; traces of others have none."""
    try:
        document = json.loads((folder / "manifest.json").read_text())
    except (OSError, ValueError):
        return {}
    is_ours = isinstance(document, dict) and str(document.get("schema")).startswith("flint.chakra/")
    return document if is_ours else {}
