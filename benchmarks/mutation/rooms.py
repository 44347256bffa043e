"""The rooms of the house: which files each has, and which tests belong to it, in which order."""

from __future__ import annotations

import math
import re
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path, PurePosixPath

from benchmarks.mutation.ledger import digest
from benchmarks.sources import PRODUCT, Source, imported_names, importers, read_sources


@dataclass(frozen=True)
class Room:
    """Patterns of paths below the root; `*` matches slashes too."""

    files: tuple[str, ...]
    tests: tuple[str, ...]  #: belong to the room whatever they import
    derived: bool = True  #: tests that import a module of the room belong to it too


ROOMS = {
    "chakra": Room(
        ("backends/chakra/*",),
        (
            "tests/*/test_chakra*",
            "tests/golden/test_cli*",
            "tests/*/test_*traces*",
            "tests/*/test_summary*",
        ),
    ),
    "extract": Room(
        ("passes/hlo/*", "passes/work/*"),
        (
            "tests/*/test_extract*", "tests/*/test_hlo*", "tests/golden/test_collectives*",
            "tests/oracle/test_numbers*", "tests/oracle/test_llama_accounting*",
            "tests/*/test_phases*", "tests/properties/test_capture*",
        ),
    ),
    "cost": Room(
        ("backends/cost/*",),
        (
            "tests/*/test_cost*", "tests/*/test_estimate*", "tests/*/test_utilisation*",
            "tests/oracle/test_astra*", "tests/oracle/test_pipeline_timing*",
        ),
    ),
    "simulators": Room(
        ("flint/tools/simulators/*",),
        ("tests/*/test_simulat*", "tests/*/test_scale_sim*", "tests/*/test_fidelities*"),
    ),
    "pipeline": Room(
        ("passes/pipeline/*",),
        ("tests/*/test_*pipeline*", "tests/*/test_pools*", "tests/*/test_jax_cut*"),
    ),
    "mesh": Room(
        ("flint/ir/mesh.py", "passes/axes.py"),
        (
            "tests/*/test_axes*", "tests/*/test_mesh*", "tests/*/test_*groups*",
            "tests/*/test_placement*", "tests/*/test_sharding_rules*", "tests/golden/*",
            "tests/properties/test_invariants*", "tests/properties/test_chakra*",
            "tests/*/test_chakra*", "tests/*/test_cost_network*", "tests/*/test_extract*",
            "tests/*/test_hlo*", "tests/*/test_jax_frontend*",
        ),
        derived=False,  # a third of all tests make a mesh
    ),
    "project": Room(
        ("flint/tools/change/project/*", "flint/io/inputs.py", "flint/tools/change/diff/*"),
        (
            "tests/*/test_project*", "tests/*/test_lock*", "tests/*/test_inputs*",
            "tests/*/test_verify*", "tests/*/test_compare*", "tests/*/test_grown*",
            "tests/*/test_revisions*", "tests/*/test_cli_diff*", "tests/properties/test_align*",
        ),
        derived=False,
    ),
    "torch_world": Room(
        ("frontends/torch_world/*",),
        (
            "tests/*/test_torch_*", "tests/*/test_late_imports*", "tests/*/test_recorded*",
            "tests/compat/test_torch*", "tests/oracle/test_torch_accounting*",
            "tests/oracle/test_torch_real_ranks*",
        ),
    ),
}  # fmt: skip
#: These kinds of tests run whole programs: they come after what stands two imports nearer.
_LATE = {"oracle": 2, "compat": 2, "packaging": 4}
_FAR = 9


def matches(path: str | PurePosixPath, patterns: Sequence[str]) -> bool:
    """Whether a path below the root is one of those meant."""
    return any(fnmatch(str(path), pattern) for pattern in patterns)


@dataclass(frozen=True)
class Plan:
    """Which tests of a checkout run for which file."""

    product: Sequence[Source]
    tests: Sequence[Source]

    @classmethod
    def of(cls, root: Path) -> Plan:
        """Read a checkout."""
        return cls(read_sources(root, PRODUCT), read_sources(root, ("tests",)))

    def files(self, room: str) -> list[Source]:
        """The product files of a room, without those that only name a package."""
        return [s for s in self.product if matches(s.path, ROOMS[room].files) and s.text.strip()]

    def tests_of(self, room: str) -> list[str]:
        """The test files of a room."""
        own = {source.module for source in self.files(room)} if ROOMS[room].derived else set()
        return [
            str(test.path)
            for test in self.tests
            if test.path.name.startswith("test_")
            and (matches(test.path, ROOMS[room].tests) or self._imports[test.module] & own)
        ]

    def digests(self, rooms: Sequence[str]) -> dict[str, str]:
        """The test files of some rooms -> digest of each, and of what tests share."""
        texts = {str(test.path): test.text for test in self.tests}
        shared = [test.text for test in self.tests if len(test.path.parts) == 2]
        tests = sorted({test for room in rooms for test in self.tests_of(room)})
        return {test: digest([*shared, texts[test]]) for test in tests}

    def ordered(
        self, room: str, path: str, killers: Mapping[str, int], seconds: Mapping[str, float]
    ) -> list[str]:
        """The tests of a room, those first that most likely notice a mistake in a file.

        First what noticed others in that file (`killers`, test file -> how many), then by what a
        test says of the file: words of its path in the test's name and names that it defines, each
        the more the fewer tests have it (one that a single test has counts as three imports). Less
        counts how many imports lie between them, and how long the test takes where that is known
        (`seconds`: ten times as long counts as one import); of equals, those named for the room.
        """
        mutated = next(s for s in self.product if str(s.path) == path)
        distance = self._distances(mutated.module)
        texts = {str(test.path): test for test in self.tests}
        tests = self.tests_of(room)
        said = [
            _likeness(_path_words(mutated.path), {n: _path_words(texts[n].path) for n in tests}),
            _likeness(frozenset(_names(mutated)), {n: self._words[texts[n].module] for n in tests}),
        ]

        def key(name: str) -> tuple[int, float, bool, str]:
            test = texts[name]
            near = min((distance.get(m, _FAR) for m in self._imports[test.module]), default=_FAR)
            late = _LATE.get(test.path.parts[1], 0) + int(math.log10(max(seconds.get(name, 1), 1)))
            alike = sum(min(1.0, found[name]) for found in said)
            named = matches(name, ROOMS[room].tests)
            return -killers.get(name, 0), near + late - 3 * alike, not named, name

        return sorted(tests, key=key)

    @cached_property
    def _words(self) -> dict[str, frozenset[str]]:
        """Test module -> all words of its text."""
        return {test.module: frozenset(re.findall(r"\w+", test.text)) for test in self.tests}

    @cached_property
    def _imports(self) -> dict[str, set[str]]:
        """Test module -> product modules that it imports, or that helpers of tests import for it."""
        known = {source.module for source in self.product}
        direct = {test.module: _modules(test, known) for test in self.tests}
        helpers = {test.module: _modules(test, set(direct)) for test in self.tests}
        return {
            module: set().union(*(direct[m] for m in _reach(module, helpers))) for module in direct
        }

    @cached_property
    def _importers(self) -> dict[str, set[str]]:
        return importers(self.product)

    def _distances(self, module: str) -> dict[str, int]:
        return _reach(module, self._importers)


def _modules(source: Source, known: set[str]) -> set[str]:
    """The modules of `known` that a file imports, whole or names of them."""
    names = set(imported_names(source))
    return (names | {name.rpartition(".")[0] for name in names}) & known


def _reach(start: str, edges: Mapping[str, set[str]]) -> dict[str, int]:
    """What can be reached, with the number of steps."""
    distance = {start: 0}
    waiting = deque([start])
    while waiting:
        current = waiting.popleft()
        for other in edges.get(current, ()):
            if other not in distance:
                distance[other] = distance[current] + 1
                waiting.append(other)
    return distance


def _names(source: Source) -> set[str]:
    """Names of a file's functions and classes, and its own, as a test may say them."""
    defined = re.findall(r"^\s*(?:def|class) (\w+)", source.text, re.MULTILINE)
    return {name for name in defined if not name.startswith("_")} | {source.path.stem}


def _path_words(path: PurePosixPath) -> frozenset[str]:
    """Beginnings of the words of a path: `moves.py` and `test_move.py` share one."""
    words = re.split(r"[^a-z0-9]+", str(path.with_suffix("")))
    return frozenset(word[:5].rstrip("s") for word in words if len(word) > 2)


def _likeness(words: frozenset[str], of: Mapping[str, frozenset[str]]) -> dict[str, float]:
    """Name -> how many of the words it has, each divided by how many have it."""
    have = Counter(word for found in of.values() for word in found & words)
    return {name: sum(1 / have[word] for word in found & words) for name, found in of.items()}
