"""Captures of before: found again if everything that they were made of is as it was."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from flint.compare.snapshot import Snapshot
from flint.io.files import write_atomically
from flint.io.inputs import Input, InputKind, digest, environment_of
from flint.project.config import Capture
from flint.project.records import snapshot_from, snapshot_record

FOLDER = ".flint_cache"
#: Raised when what an entry holds changes its meaning.
_VERSION = 1
#: Keys of a capture that have no part in its result.
_NO_INPUT = ("budgets", "traces", "extends")


@dataclass(frozen=True)
class Entry:
    """A capture that was made: its snapshot, its workload, and what it was made of."""

    snapshot: Snapshot
    workload: Path
    inputs: tuple[Input, ...]
    warnings: tuple[str, ...] = ()
    made_with: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Made:
    """What a capture gave: `workload` is a `.flint` file's bytes, `made_with` names versions."""

    snapshot: Snapshot
    workload: bytes
    inputs: tuple[Input, ...]
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
            record = json.loads((self.folder / f"{key}.json").read_bytes())
            inputs = tuple(Input(InputKind(kind), path, d) for kind, path, d in record["inputs"])
            found = snapshot_from(record["snapshot"])
            warnings = tuple(map(str, record["warnings"]))
            made_with = {str(k): str(v) for k, v in record["made_with"].items()}
            is_whole = digest(workload.read_bytes()) == record["workload"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None  # none, or one that another version wrote
        if not is_whole or not all(i.is_current() for i in inputs):
            return None
        return Entry(found, workload, inputs, warnings, made_with)

    def store(self, capture: Capture, made: Made) -> Entry:
        """Keep a capture in the place of an older one. Raises FlintError FL502."""
        self.prepare()
        key = self.key(capture)
        path = self.folder / f"{key}.flint"
        write_atomically(path, made.workload)
        record: Mapping[str, Any] = {
            "snapshot": snapshot_record(made.snapshot),
            "workload": digest(made.workload),
            "warnings": list(made.warnings),
            "made_with": dict(made.made_with),
            "inputs": [list(asdict(i).values()) for i in made.inputs],
        }
        write_atomically(self.folder / f"{key}.json", json.dumps(record).encode())
        return Entry(made.snapshot, path, made.inputs, made.warnings, made.made_with)

    def prepare(self) -> None:
        """Make the folder, which git does not see. Raises FlintError FL502."""
        ignore = self.folder / ".gitignore"
        if not ignore.exists():
            write_atomically(ignore, b"*\n")
