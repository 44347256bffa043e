"""Spoil one token of the product at a time, and count the spoilt ones that a test notices.

    python -m benchmarks.mutants --seed 0 --count 300
    python -m benchmarks.mutants --rooms pipeline,mesh --count 40 --minutes 30 --least 0.85

A mutant is one token replaced (`<` by `<=`, `and` by `or`, 1 by 2, `min` by `max`, `[0]` by `[-1]`,
...) in a copy of this checkout. Docstrings, annotations, messages and assertions are left alone.
Each room of the house (`mutation/rooms.py`) gets an equal share of --count; which of its mutants is
decided by --seed, and a change to one file leaves the choice in all others as it was. The tests of
the room run until one fails, the likely ones first. A test that takes too long counts as having
noticed; one that fails without the mutant is left out and named. Where many mutants wait, it is
first measured which tests enter which functions; then only these run. Linux only.

What was found is kept in --ledger: the same command goes on where an earlier one stopped, and runs
survivors again when a test of their room changed. Mutants that mean the same as the original are
listed with a reason in `data/mutants_equivalent.toml`, and do not count. Exit status 1 if the share
that tests notice is below --least.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import math
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from benchmarks.mutation.copies import Process, compile_with_hashes, copy_checkout, share_out
from benchmarks.mutation.ledger import Entry, Equivalent, Ledger, digest, read_equivalents, stale
from benchmarks.mutation.reach import REACHED, Reach, mark_copy
from benchmarks.mutation.rooms import ROOMS, Plan
from benchmarks.mutation.tokens import Mutant, mutants
from benchmarks.mutation.worker import Outcome, Task
from benchmarks.sources import PRODUCT, read_sources

ROOT = Path(__file__).resolve().parents[1]
EQUIVALENT = Path(__file__).parent / "data" / "mutants_equivalent.toml"
#: Measuring which tests enter which functions takes as long as about ten mutants that survive.
WORTH_MEASURING = 30


@dataclass(frozen=True)
class Pool:
    """All mutants of a checkout's rooms."""

    plan: Plan
    rooms: Sequence[str]

    @cached_property
    def of_rooms(self) -> dict[str, list[Mutant]]:
        return {
            room: [m for s in self.plan.files(room) for m in mutants(str(s.path), s.text)]
            for room in self.rooms
        }

    @cached_property
    def texts(self) -> dict[str, str]:
        """Path -> text of each product file and each test."""
        return {str(s.path): s.text for s in (*self.plan.product, *self.plan.tests)}

    def chosen(self, seed: int, count: int) -> Iterator[tuple[str, Mutant]]:
        """Mutants with their rooms, in turns of rooms, so that a short run is fair to all."""
        ordered = [
            [(room, m) for m in sorted(found, key=lambda m: _rank(seed, m))]
            for room, found in self.of_rooms.items()
        ]
        turns = itertools.chain.from_iterable(itertools.zip_longest(*ordered))
        yield from itertools.islice((each for each in turns if each), count)

    @cached_property
    def digests(self) -> dict[str, str]:
        """Test file of the rooms -> digest of it and what tests share."""
        return self.plan.digests(self.rooms)

    @cached_property
    def tests_digest(self) -> dict[str, str]:
        """Room -> digest of its tests."""
        return {room: digest(self.plan.digests([room]).values()) for room in self.rooms}


def _rank(seed: int, mutant: Mutant) -> str:
    return hashlib.sha256(f"{seed} {mutant.key}".encode()).hexdigest()


class Run:
    """Takes mutants through the tests, in as many processes as asked for."""

    def __init__(self, pool: Pool, ledger: Ledger, reach: Reach, limit_seconds: float) -> None:
        self._pool, self._ledger, self._reach = pool, ledger, reach
        self._limit_seconds = limit_seconds
        self._passing: dict[str, float] = {}  # tests that can pass, and seconds that they took
        self.failing: set[str] = set()  # tests that fail without any mutant
        self._lock = threading.Lock()

    def known(self, room: str, mutant: Mutant) -> Entry | None:
        """What an earlier run, or this one, found and still holds."""
        source = digest([self._pool.texts[mutant.path]])
        return self._ledger.known(mutant.key, source, self._pool.tests_digest[room])

    def unknown_tests(self) -> list[str]:
        """Test files of which it is not known which functions they enter."""
        return self._reach.missing(self._pool.digests)

    def measure(self, process: Process, test: str) -> None:
        """Which functions a test file enters, in a marked copy: that takes longer than it does."""
        task = Task(REACHED, "", [test], [], 3 * self._limit_seconds, exhaustive=True)
        outcome = process.run(task)
        if outcome.verdict == "survived":  # it came to its end; else nothing is known
            with self._lock:
                self._reach.add(test, self._pool.digests[test], outcome.left.splitlines())

    def try_mutant(self, process: Process, item: tuple[str, Mutant]) -> None:
        """Run the tests that may notice it, and write down what they say."""
        room, mutant = item
        with self._lock:
            killers = self._ledger.killers(mutant.path)
            tests = self._pool.plan.ordered(room, mutant.path, killers, self._file_seconds())
        tests = [test for test in tests if self._reach.reaches(test, mutant)]
        outcome = self._outcome(process, mutant, tests) if tests else Outcome("unreached")
        self._note(room, mutant, outcome)

    def _outcome(self, process: Process, mutant: Mutant, tests: Sequence[str]) -> Outcome:
        """What these tests say, but for those that fail without the mutant too."""
        path = mutant.path
        spoilt = mutant.applied(self._pool.texts[path])
        seconds = cpu_seconds = 0.0
        while True:
            outcome = self._run(process, path, spoilt, tests)
            seconds += outcome.seconds
            cpu_seconds += outcome.cpu_seconds
            if outcome.verdict == "survived" or self._tells(process, path, outcome):
                return replace(outcome, seconds=seconds, cpu_seconds=cpu_seconds)

    def _run(self, process: Process, path: str, text: str, tests: Sequence[str]) -> Outcome:
        task = Task(path, text, tests, sorted(self.failing), self._limit_seconds)
        outcome = process.run(task)
        with self._lock:
            self._passing |= outcome.passed
        return outcome

    def _file_seconds(self) -> dict[str, float]:
        """Test files -> how long their tests took."""
        found: defaultdict[str, float] = defaultdict(float)
        for test, seconds in self._passing.items():
            found[test.split("::")[0]] += seconds
        return found

    def _tells(self, process: Process, path: str, outcome: Outcome) -> bool:
        """Whether a test passes without the mutant: else it says nothing, and is left out.

        How long it takes depends on what else the machine does now: that is always tried.
        """
        test = outcome.test
        passing = self._passing.copy()
        if outcome.verdict == "killed" and any(
            name == test or name.startswith(f"{test}::") for name in passing
        ):
            return True
        if self._run(process, path, self._pool.texts[path], [test]).verdict == "survived":
            return True
        with self._lock:
            self.failing.add(test)
        return False

    def _note(self, room: str, mutant: Mutant, outcome: Outcome) -> None:
        entry = Entry(
            mutant.key,
            room,
            mutant.path,
            mutant.line,
            mutant.before,
            mutant.after,
            outcome.verdict,
            outcome.test,
            round(outcome.seconds, 1),
            digest([self._pool.texts[mutant.path]]),
            self._pool.tests_digest[room],
            round(outcome.cpu_seconds, 1),
        )
        with self._lock:
            self._ledger.add(entry)
        where = f"{room} {mutant.path}:{mutant.line}"
        print(f"{entry.verdict} {where} {entry.seconds:.1f} s {entry.test}", file=sys.stderr)


def main() -> int:
    """Run the mutants that are not known yet, and report on all that were chosen."""
    options = _options()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # no copies are left behind
    with tempfile.TemporaryDirectory(prefix="flint-mutants-") as name:
        copy = Path(name) / "checkout"
        copy_checkout(ROOT, copy)  # all that follows is of this moment
        pool = Pool(Plan.of(copy), options.rooms)
        product = digest(source.text for source in pool.plan.product)
        reach = Reach(options.ledger.with_suffix(".reach"), product)
        run = Run(pool, Ledger(options.ledger), reach, options.timeout)
        equivalents = read_equivalents(EQUIVALENT)
        chosen = list(pool.chosen(options.seed, options.count))
        equal = [(room, m) for room, m in chosen if any(each.means(m) for each in equivalents)]
        counting = [each for each in chosen if each not in equal]
        run_all(run, [each for each in counting if not run.known(*each)], copy, options)
    found = [entry for each in counting if (entry := run.known(*each))]
    print_survivors(found)
    print_table(options.rooms, found, Counter(room for room, _ in equal))
    print_remarks(run, len(counting) - len(found), pool, equivalents)
    return int(not found or share(found) < options.least)


def run_all(
    run: Run, waiting: list[tuple[str, Mutant]], copy: Path, options: argparse.Namespace
) -> None:
    """Measure tests whose reach is unknown, then try mutants, until the minutes are over."""
    end = time.monotonic() + 60 * options.minutes
    unknown = run.unknown_tests() if len(waiting) >= WORTH_MEASURING else []
    if waiting:
        compile_with_hashes(copy)
    if unknown:
        marked = copy.with_name("marked")
        shutil.copytree(copy, marked, symlinks=True)
        mark_copy(marked, read_sources(marked, PRODUCT))
        with ExitStack() as stack:
            processes = _processes(marked, options.processes, stack)
            if not share_out(unknown, processes, run.measure, end):
                return
    if waiting:
        with ExitStack() as stack:
            processes = _processes(copy, options.processes, stack)
            share_out(waiting, processes, run.try_mutant, end)


def _processes(copy: Path, number: int, stack: ExitStack) -> list[Process]:
    """Worker processes, each in a copy of its own."""
    places = [copy.with_name(f"{copy.name}-{index}") for index in range(number)]
    for place in places:
        shutil.copytree(copy, place, symlinks=True)
    return [
        stack.enter_context(Process(place, place.with_name(f"{place.name}-files")))
        for place in places
    ]


def print_survivors(found: Sequence[Entry]) -> None:
    """What no test noticed, in the order of rooms and files."""
    survivors = [entry for entry in found if not entry.is_noticed]
    for entry in sorted(survivors, key=lambda e: (list(ROOMS).index(e.room), e.path, e.line)):
        print(f"{entry.verdict}: {entry.room} {entry.path}:{entry.line}")
        print(f"    - {entry.before}\n    + {entry.after}")


def print_table(rooms: Sequence[str], found: Sequence[Entry], equal: Counter[str]) -> None:
    """One row a room, as markdown."""
    print("\n| room | tried | killed | by time | survived | unreached | equivalent | share |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for room in (*rooms, "all"):
        entries = [entry for entry in found if room in (entry.room, "all")]
        verdicts = Counter(entry.verdict for entry in entries)
        cells = (
            len(entries),
            verdicts["killed"] + verdicts["timeout"],
            verdicts["timeout"],
            verdicts["survived"] + verdicts["unreached"],
            verdicts["unreached"],
            equal.total() if room == "all" else equal[room],
            f"{100 * share(entries):.0f} %" if entries else "",
        )
        print(f"| {room} | " + " | ".join(map(str, cells)) + " |")
    survivors = [entry for entry in found if entry.verdict == "survived"]
    noticed = [entry for entry in found if entry.is_noticed]
    print()
    for title, entries in (("was killed", noticed), ("survived", survivors)):
        if entries:
            print(f"a mutant that {title} took {_mean_seconds(entries)}")


def _mean_seconds(entries: Sequence[Entry]) -> str:
    wall = sum(entry.seconds for entry in entries) / len(entries)
    used = sum(entry.cpu_seconds for entry in entries) / len(entries)
    return f"{wall:.1f} s, {used:.1f} s of a core"


def share(found: Sequence[Entry]) -> float:
    """The part of them that tests notice."""
    return sum(entry.is_noticed for entry in found) / len(found)


def print_remarks(run: Run, left: int, pool: Pool, equivalents: Sequence[Equivalent]) -> None:
    """What else there is to say about a run."""
    for test in sorted(run.failing):
        print(f"left out, for it fails without a mutant: {test}")
    if left:
        print(f"{left} did not run: the time was over")
    if set(pool.rooms) == set(ROOMS):
        everything = [mutant for found in pool.of_rooms.values() for mutant in found]
        for each in stale(equivalents, everything):
            print(f"listed as equivalent, but not there: {each.file}: {each.before!r}")


def _rooms(text: str) -> list[str]:
    rooms = text.split(",")
    if unknown := set(rooms) - set(ROOMS):
        raise argparse.ArgumentTypeError(f"no room {', '.join(unknown)}; there are {list(ROOMS)}")
    return rooms


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0, help="another seed, other mutants")
    parser.add_argument("--count", type=int, default=300, help="how many, over all rooms")
    parser.add_argument("--rooms", type=_rooms, default=list(ROOMS), help=",".join(ROOMS))
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop after these")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds, of one test")
    parser.add_argument("--least", type=float, default=0.0, help="share that must be noticed")
    parser.add_argument("--ledger", type=Path, default=ROOT / "out" / "mutants.jsonl")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
