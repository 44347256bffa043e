"""What earlier runs found, as lines of JSON; and which mutants mean the same as the original."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath

from benchmarks.mutation.tokens import Mutant


@dataclass(frozen=True)
class Entry:
    """The outcome of one mutant.

    Verdicts: killed, timeout (killed too), survived, and unreached: no test enters its function.
    """

    key: str
    room: str
    path: str
    line: int
    before: str
    after: str
    verdict: str
    test: str
    seconds: float
    source: str  #: digest of the mutated file
    tests: str  #: digest of the tests that belong to the room
    cpu_seconds: float

    @property
    def is_noticed(self) -> bool:
        return self.verdict in ("killed", "timeout")


class Ledger:
    """A file that grows by a line for each mutant. The last line of a mutant counts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entries: dict[str, Entry] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                entry = Entry(**json.loads(line))
                self._entries[entry.key] = entry

    def known(self, key: str, source: str, tests: str) -> Entry | None:
        """What still holds: kills as long as the file is the same, survivors also need the tests."""
        entry = self._entries.get(key)
        if entry is None or entry.source != source:
            return None
        return entry if entry.is_noticed or entry.tests == tests else None

    def killers(self, path: str) -> Counter[str]:
        """Test files -> how many mutants of a file they noticed."""
        same = (entry for entry in self._entries.values() if entry.path == path and entry.test)
        return Counter(entry.test.split("::")[0] for entry in same)

    def add(self, entry: Entry) -> None:
        """Write it down at once."""
        self._entries[entry.key] = entry
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(entry)) + "\n")


def digest(texts: Iterable[str]) -> str:
    """A short name for some texts."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Equivalent:
    """A mutant that no test can notice, and why. Lines are without their indentation."""

    file: str  #: its name without folders
    before: str
    after: str
    reason: str

    def means(self, mutant: Mutant) -> bool:
        """Whether this is the mutant that is meant."""
        name = PurePosixPath(mutant.path).name
        return (name, mutant.before, mutant.after) == (self.file, self.before, self.after)


def read_equivalents(path: Path) -> list[Equivalent]:
    """The committed list. TypeError: an entry lacks a field or has one more."""
    found = tomllib.loads(path.read_text(encoding="utf-8"))
    return [Equivalent(**entry) for entry in found.get("mutant", ())]


def stale(equivalents: Sequence[Equivalent], pool: Sequence[Mutant]) -> list[Equivalent]:
    """Entries that mean no mutant of the files as they are now."""
    return [each for each in equivalents if not any(each.means(mutant) for mutant in pool)]
