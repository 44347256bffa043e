"""Captures of before: found again if everything that they were made of is as it was."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from flint.errors import Malformed
from flint.io.bounded import FileKind
from flint.io.files import read_regular, write_atomically
from flint.io.inputs import ReadInput, ReadInputKind, digest, environment_of
from flint.io.records import Texts, record
from flint.tools.change.diff.snapshot import Snapshot
from flint.tools.change.project.config import Capture
from flint.tools.change.project.records import snapshot_from, snapshot_record

FOLDER = ".flint_cache"
#: Raised when what an entry holds changes its meaning.
_VERSION = 1
#: Keys of a capture that have no part in its result.
_NO_INPUT = ("budgets", "traces", "extends")


class _Kept(TypedDict):
    snapshot: dict[str, Any]
    workload: str
    warnings: Texts
    made_with: dict[str, str]
    inputs: list[tuple[ReadInputKind, str, str]]


@dataclass(frozen=True)
class Entry:
    """A capture that was made: its snapshot, its workload, and what it was made of."""

    snapshot: Snapshot
    workload: Path
    inputs: tuple[ReadInput, ...]
    warnings: tuple[str, ...] = ()
    made_with: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Made:
    """What a capture gave: `workload` is a `.flint` file's bytes, `made_with` names versions."""

    snapshot: Snapshot
    workload: bytes
    inputs: tuple[ReadInput, ...]
    warnings: tuple[str, ...]
    made_with: Mapping[str, str]


class Cache:
    """The folder `.flint_cache` beside the project file. It can be removed at any time."""

    def __init__(self, root: Path) -> None:
        self.folder = root / FOLDER

    def key(self, capture: Capture) -> str:
        """What tells captures apart that were made from the same files."""
        options = capture.model_dump(mode="json", exclude=set(_NO_INPUT))
        parts = (_VERSION, options, environment_of(capture.environment))
        return digest(json.dumps(parts, sort_keys=True).encode())

    def find(self, capture: Capture) -> Entry | None:
        """The entry of a capture, if all its inputs are as they were."""
        key = self.key(capture)
        workload = self.folder / f"{key}.flint"
        try:
            kept = record(
                _Kept, read_regular(self.folder / f"{key}.json", FileKind.LOCK.most_bytes)
            )
            found = snapshot_from(kept["snapshot"])
            is_whole = digest(workload.read_bytes()) == kept["workload"]
        except (OSError, Malformed):
            return None  # none, or one that another version wrote
        inputs = tuple(ReadInput(kind, path, d) for kind, path, d in kept["inputs"])
        if not is_whole or not all(i.is_current() for i in inputs):
            return None
        return Entry(found, workload, inputs, kept["warnings"], kept["made_with"])

    def store(self, capture: Capture, made: Made) -> Entry:
        """Keep a capture, and drop an older one. Raises FlintError FL502."""
        self.prepare()
        key = self.key(capture)
        path = self.folder / f"{key}.flint"
        write_atomically(path, made.workload)
        document: Mapping[str, Any] = {
            "snapshot": snapshot_record(made.snapshot),
            "workload": digest(made.workload),
            "warnings": list(made.warnings),
            "made_with": dict(made.made_with),
            "inputs": [list(asdict(i).values()) for i in made.inputs],
        }
        write_atomically(self.folder / f"{key}.json", json.dumps(document).encode())
        return Entry(made.snapshot, path, made.inputs, made.warnings, made.made_with)

    def prepare(self) -> None:
        """Make the folder, which git does not see. Raises FlintError FL502."""
        ignore = self.folder / ".gitignore"
        if not ignore.exists():
            write_atomically(ignore, b"*\n")
