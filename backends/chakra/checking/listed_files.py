"""Files of a trace directory held against its manifest: which changed, are missing, or are new."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from flint.backends.chakra.checking.findings import Findings
from flint.backends.chakra.manifest import NAME, Listed, Manifest, OldManifest, matches
from flint.backends.chakra.reading.trace_files import TraceSet
from flint.io.files import open_regular
from flint.text import one_line

#: (device, inode)
FileNumber = tuple[int, int]

_PIECE = 1 << 20
_OTHER_BYTES = "has other bytes than were written"
#: Names of files that are said when more of them are not listed.
_MOST_NAMES = 5


@dataclass
class ListedFiles:
    """Compares traces as they are read, and then the other files. `compared` counts all."""

    folder: Path
    manifest: Manifest | OldManifest | None
    findings: Findings
    compared: int = 0
    _before: dict[FileNumber, tuple[Listed | None, str]] = field(default_factory=dict)

    def compare(self, name: str, rank: int, data: bytes, number: FileNumber | None) -> None:
        """Hold a trace that was read against what is listed.

        `number` is that of the file if it has several names, see `compare_again`.
        """
        listed, what = self._listed(name), ""
        if listed is not None:
            what = _size_difference(listed, len(data))
            what = what or ("" if matches(listed, [data]) else _OTHER_BYTES)
        if number is not None:
            self._before[number] = listed, what
        self._note(name, rank, listed, what)

    def compare_again(self, name: str, rank: int, number: FileNumber) -> bool:
        """Do the same for another name of a file that was compared, without its bytes.

        False if more is known of this name, so that the file must be read.
        """
        listed, what = self._before[number]
        if self._listed(name) != listed:
            return False
        self._note(name, rank, listed, what)
        return True

    def compare_others(self) -> None:
        """Read the files that are no traces, and note those that are not as they were written."""
        if self.manifest is None:
            return
        for name in _no_traces(self.manifest):
            listed = self.manifest.listing[name]
            if os.path.lexists(self.folder / name) and listed != Listed(None, None):
                self.compared += 1
                what = _difference(self.folder / name, listed)
                if what:
                    self._changed(name, -1, what)

    def report_absent(self, entries: Sequence[str], prefix: str, partial: bool) -> None:
        """Note listed files that are not among the directory's `entries`.

        Of traces that are examined (`prefix`) only those that nobody else expects.
        """
        if self.manifest is None:
            return
        present = set(entries)
        names = list(_no_traces(self.manifest))
        has_traces = isinstance(self.manifest, Manifest)
        if has_traces and (partial or self.manifest.prefix != prefix):
            names = list(self.manifest.listing)
        for name in names:
            if name not in present:
                self.findings.add("missing-file", -1, -1, f"{name} is in the manifest but not here")

    def notes(self, entries: Sequence[str]) -> list[str]:
        """What is not a fault: files that nobody listed, and a manifest that says too little."""
        if self.manifest is None:
            return []
        notes = []
        if isinstance(self.manifest, OldManifest):
            notes.append(
                "the manifest is from an older Flint, without digests: changes cannot be detected"
            )
        new = sorted(e for e in entries if e != NAME and e not in self.manifest.listing)
        if new:
            shown = ", ".join(
                [*map(one_line, new[:_MOST_NAMES]), *["..."][: len(new) - _MOST_NAMES]]
            )
            are = "file is" if len(new) == 1 else "files are"
            notes.append(f"{len(new):,} {are} not in the manifest: {shown}")
        return notes

    def _listed(self, name: str) -> Listed | None:
        return None if self.manifest is None else self.manifest.listing.get(name)

    def _note(self, name: str, rank: int, listed: Listed | None, what: str) -> None:
        self.compared += listed is not None and listed != Listed(None, None)
        if what:
            self._changed(name, rank, what)

    def _changed(self, name: str, rank: int, what: str) -> None:
        self.findings.add("changed-file", rank, -1, f"{name} {what}")


def changed_files(traces: TraceSet) -> tuple[str, ...]:
    """What is not as the manifest beside traces says, a sentence or none, for who runs them.

    Of traces those of `traces`, and the other files; a file with several names is read once.
    """
    if traces.manifest is None:
        return ()
    listing = traces.manifest.listing
    known: dict[tuple[FileNumber, Listed], str] = {}
    found = []
    for name in (*(p.name for p in traces.paths.values()), *_no_traces(traces.manifest)):
        path, listed = traces.folder / name, listing.get(name)
        if listed is None or not os.path.lexists(path):
            continue
        about = path.stat()
        key = ((about.st_dev, about.st_ino), listed)
        if key not in known:
            known[key] = _difference(path, listed)
        found += [name] if known[key] else []
    if not found:
        return ()
    shown = ", ".join([*map(one_line, found[:_MOST_NAMES]), *["..."][: len(found) - _MOST_NAMES]])
    are = "file is" if len(found) == 1 else "files are"
    return (
        f"{len(found):,} {are} not as Flint wrote them, by the manifest: {shown} (flint check says more)",
    )


def _no_traces(manifest: Manifest | OldManifest) -> list[str]:
    if isinstance(manifest, Manifest):
        return [f.name for f in manifest.files]
    return [name for name in manifest.files if name != NAME]


def _size_difference(listed: Listed, size_bytes: int) -> str:
    if listed.size_bytes in (None, size_bytes):
        return ""
    return f"has {size_bytes:,} bytes, but was written with {listed.size_bytes:,}"


def _difference(path: Path, listed: Listed) -> str:
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            what = _size_difference(listed, size)
            return what or ("" if matches(listed, _pieces(file)) else _OTHER_BYTES)
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    while piece := file.read(_PIECE):
        yield piece
