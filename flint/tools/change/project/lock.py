"""flint.lock: what each capture was when somebody last accepted it; committed beside the model.

JSON with one line for each argument, class of operations and kind of collective, sorted, without
dates, paths of a machine or lines of the source, so that its own diff reads well. Versions of what
made an entry stand in it, so that they can be named where it differs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from flint.errors import FlintError, Malformed
from flint.io.bounded import FileKind, is_file, parse_json, read_bounded
from flint.io.files import cannot_write
from flint.io.outputs import OutputKind, write_output
from flint.io.records import record_of
from flint.tools.change.diff.snapshot import Snapshot
from flint.tools.change.project.records import snapshot_from, snapshot_record

#: What files of another major version hold is not known here.
SCHEMA = "flint.lock/1"
_ANEW = "flint run --update rewrites it"


@dataclass(frozen=True)
class Lock:
    """The accepted snapshots, and with what each was made, by name of the capture."""

    captures: Mapping[str, Snapshot] = field(default_factory=dict)
    made_with: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """The file. Equal locks give equal bytes."""
        captures = {
            n: {"made_with": dict(self.made_with.get(n, {})), **snapshot_record(s)}
            for n, s in sorted(self.captures.items())
        }
        document = {"schema": SCHEMA, "captures": captures}
        return ("".join(_written(document, "")) + "\n").encode()

    def save(self, path: Path) -> bool:
        """Write the file, if it would change. Raises FlintError FL502, FL508 for another program's."""
        data = self.to_bytes()
        try:
            if is_file(path) and path.read_bytes() == data:
                return False
        except OSError as error:
            raise cannot_write(path, error) from error
        write_output(path, data, OutputKind.LOCK)
        return True


def load_lock(path: Path) -> Lock | None:
    """Read a lock file; None if there is none.

    Raises FlintError FL723 for one of another version, with conflict markers, or of other content.
    """
    if not is_file(path):
        return None
    data = read_bounded(path, FileKind.LOCK, "FL723")
    try:
        if any(line.startswith((b"<<<<<<< ", b">>>>>>> ")) for line in data.splitlines()):
            raise FlintError(
                "FL723",
                f"{path.name} has git conflict markers",
                place=str(path),
                help=f"{_ANEW}, from the merged model",
            )
        document = parse_json(data)
    except Malformed as error:
        raise _no_lock(path, f"{path.name} is not a lock file of flint: {error}") from error
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA:
        raise _no_lock(path, f"{path.name} is {schema!r}, but this flint reads {SCHEMA!r}")
    try:
        return _read(record_of(_Document, document)["captures"])
    except Malformed as error:
        raise _no_lock(path, f"{path.name} does not conform to {SCHEMA}: {error}") from error


class _Document(TypedDict):
    captures: dict[str, dict[str, Any]]


def _read(captures: Mapping[str, Mapping[str, Any]]) -> Lock:
    made_with = {n: record_of(dict[str, str], e.get("made_with")) for n, e in captures.items()}
    parts = {n: {k: v for k, v in e.items() if k != "made_with"} for n, e in captures.items()}
    return Lock({n: snapshot_from(part) for n, part in parts.items()}, made_with)


def _no_lock(path: Path, message: str) -> FlintError:
    return FlintError("FL723", message, place=str(path), help=_ANEW)


def _written(value: Any, indent: str) -> Iterator[str]:
    """JSON in which what holds no table stands on one line."""
    if not isinstance(value, (dict, list, tuple)) or not value or _is_flat(value):
        yield json.dumps(value, ensure_ascii=False, allow_nan=False)
        return
    inner, is_table = indent + "  ", isinstance(value, dict)
    yield "{\n" if is_table else "[\n"
    entries = list(value.items()) if isinstance(value, dict) else [("", v) for v in value]
    for number, (key, entry) in enumerate(entries):
        yield f"{inner}{json.dumps(key, ensure_ascii=False)}: " if is_table else inner
        yield from _written(entry, inner)
        yield ",\n" if number < len(entries) - 1 else "\n"
    yield f"{indent}{'}' if is_table else ']'}"


def _is_flat(value: Any) -> bool:
    """Whether nothing in a value holds a table or a list of more than numbers and texts."""
    inside = value.values() if isinstance(value, dict) else value
    return all(
        not isinstance(v, dict)
        and not (isinstance(v, list | tuple) and any(isinstance(w, dict | list | tuple) for w in v))
        for v in inside
    )
