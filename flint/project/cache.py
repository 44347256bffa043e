"""Captures of before: found again if everything that they were made of is as it was."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from flint.compare.snapshot import Snapshot
from flint.io.files import write_atomically
from flint.io.inputs import Input, InputKind, environment_of
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


class Cache:
    """The folder `.flint_cache` beside the project file. It can be removed at any time."""

    def __init__(self, root: Path) -> None:
        self.folder = root / FOLDER

    def key(self, capture: Capture) -> str:
        """What tells captures apart that were made from the same files."""
        options = capture.model_dump(mode="json", exclude=set(_NO_INPUT))
        parts = (_VERSION, options, environment_of(capture.environment))
        return blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=16).hexdigest()

    def find(self, capture: Capture) -> Entry | None:
        """The entry of a capture, if all its inputs are as they were."""
        try:
            record = json.loads((self.folder / f"{self.key(capture)}.json").read_bytes())
            inputs = [Input(InputKind(kind), path, d) for kind, path, d in record["inputs"]]
            found = snapshot_from(record["snapshot"])
            workload = self.folder / str(record["workload"])
            warnings = tuple(map(str, record["warnings"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None  # none, or one that another version wrote
        if not workload.is_file() or not all(i.is_current() for i in inputs):
            return None
        return Entry(found, workload, tuple(inputs), warnings)

    def store(
        self,
        capture: Capture,
        snapshot: Snapshot,
        workload: bytes,
        inputs: tuple[Input, ...],
        warnings: tuple[str, ...],
    ) -> Entry:
        """Keep a capture. Raises FlintError FL502 if the folder cannot be written."""
        self.prepare()
        name = f"{blake2b(workload, digest_size=16).hexdigest()}.flint"
        write_atomically(self.folder / name, workload)
        record: Mapping[str, Any] = {
            "snapshot": snapshot_record(snapshot),
            "workload": name,
            "warnings": list(warnings),
            "inputs": [list(asdict(i).values()) for i in inputs],
        }
        path = self.folder / f"{self.key(capture)}.json"
        write_atomically(path, json.dumps(record).encode())
        return Entry(snapshot, self.folder / name, inputs, warnings)

    def prepare(self) -> None:
        """Make the folder, which git does not see."""
        os.makedirs(self.folder, exist_ok=True)
        ignore = self.folder / ".gitignore"
        if not ignore.exists():
            write_atomically(ignore, b"*\n")
