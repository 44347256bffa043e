"""What is to be shared: a workload in a file or beside traces, traces without one, or profiles."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from flint.backends.chakra.manifest import Manifest, read_manifest
from flint.errors import FlintError
from flint.io.bounded import is_directory
from flint.ir.workload import Workload

#: The file of a workload beside its traces.
_WORKLOAD = "*.flint"


class ShareInputKind(Enum):
    """What lies at a path."""

    WORKLOAD = auto()  #: a `.flint` file
    CAPTURE = auto()  #: a directory of traces with the workload that they were written from
    TRACES = auto()  #: Chakra traces of another producer, or without their workload
    PROFILE = auto()  #: a profile of a step that ran


@dataclass(frozen=True)
class ShareInput:
    """An input that was read. `workload` is None for TRACES; `manifest` is that of a CAPTURE."""

    path: Path
    kind: ShareInputKind
    workload: Workload | None = None
    manifest: Manifest | None = None


def read_source(path: str | Path) -> ShareInput:
    """Read what is to be shared.

    Raises FlintError FL301 (not there), FL304 (no workload), FL601 (a directory without traces), and FL801
    to FL806 for a file that is neither a workload nor a profile.
    """
    place = Path(path)
    if is_directory(place):
        return _directory(place)
    if place.suffix == ".flint":
        return ShareInput(place, ShareInputKind.WORKLOAD, Workload.load(place))
    if not place.exists():
        raise FlintError("FL301", f"cannot read {place}: No such file or directory")
    from flint.tools.measure.imported import import_profiles

    return ShareInput(place, ShareInputKind.PROFILE, import_profiles(place).workload)


def _directory(place: Path) -> ShareInput:
    found = sorted(place.glob(_WORKLOAD))
    if not found:
        from flint.backends.chakra.reading.trace_files import find_traces

        find_traces(place)
        return ShareInput(place, ShareInputKind.TRACES)
    if len(found) > 1:
        raise FlintError(
            "FL301",
            f"{place} holds {len(found)} .flint files: {', '.join(f.name for f in found)}",
            help=f"give one of them: {found[0]}",
        )
    manifest = read_manifest(place)
    known = manifest if isinstance(manifest, Manifest) else None
    return ShareInput(place, ShareInputKind.CAPTURE, Workload.load(found[0]), known)
