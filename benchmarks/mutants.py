"""Spoil one token of the product at a time, and count the spoilt ones that a test notices.

    python -m benchmarks.mutants --seed 0 --count 300
    python -m benchmarks.mutants --rooms pipeline,mesh --count 40 --minutes 30 --least 0.85

A mutant is one token replaced (`<` by `<=`, `and` by `or`, 1 by 2, `min` by `max`, `[0]` by `[-1]`,
...) in a copy of this checkout. Docstrings, annotations, messages and assertions are left alone.
Each room of the house (`mutation/rooms.py`) gets an equal share of --count; which of its mutants is
decided by --seed, and a change to one file leaves the choice in all others as it was. The tests of
the room run until one fails, the likely ones first. A test that takes too long counts as having
noticed; one that fails without the mutant is left out and named. Linux only.

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

from benchmarks.mutation.copies import Process, copy_checkout
from benchmarks.mutation.ledger import Entry, Equivalent, Ledger, digest, read_equivalents, stale
from benchmarks.mutation.rooms import ROOMS, Plan
from benchmarks.mutation.tokens import Mutant, mutants
from benchmarks.mutation.worker import Outcome, Task

ROOT = Path(__file__).resolve().parents[1]
EQUIVALENT = Path(__file__).parent / "data" / "mutants_equivalent.toml"


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
    def tests_digest(self) -> dict[str, str]:
        """Room -> digest of its tests and of what they share."""
        shared = [str(s.path) for s in self.plan.tests if len(s.path.parts) == 2]
        return {
            room: digest(self.texts[path] for path in (*shared, *self.plan.tests_of(room)))
            for room in self.rooms
        }


def _rank(seed: int, mutant: Mutant) -> str:
    return hashlib.sha256(f"{seed} {mutant.key}".encode()).hexdigest()


class Run:
    """Takes mutants through the tests, in as many processes as asked for."""

    def __init__(self, pool: Pool, ledger: Ledger, limit_seconds: float) -> None:
        self._pool, self._ledger = pool, ledger
        self._limit_seconds = limit_seconds
        self._passing: dict[str, float] = {}  # tests that can pass, and seconds that they took
        self.failing: set[str] = set()  # tests that fail without any mutant
        self._lock = threading.Lock()
        self.errors: list[BaseException] = []

    def work(self, process: Process, waiting: Iterator[tuple[str, Mutant]], end: float) -> None:
        """Until nothing is waiting or the time is over; what stops this thread is kept."""
        try:
            while time.monotonic() < end:
                with self._lock:
                    room, mutant = next(waiting, ("", None))
                if mutant is None:
                    return
                self._note(room, mutant, self._outcome(process, room, mutant))
        except BaseException as error:  # noqa: BLE001 - raised again by the main thread
            self.errors.append(error)

    def _outcome(self, process: Process, room: str, mutant: Mutant) -> Outcome:
        """What the tests of its room say, but for those that fail without it too."""
        path = mutant.path
        with self._lock:
            killers = self._ledger.killers(path)
            tests = self._pool.plan.ordered(room, path, killers, self._file_seconds())
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
    pool = Pool(Plan.of(ROOT), options.rooms)
    ledger = Ledger(options.ledger)
    equivalents = read_equivalents(EQUIVALENT)
    chosen = list(pool.chosen(options.seed, options.count))
    equal = [(room, m) for room, m in chosen if any(each.means(m) for each in equivalents)]
    counting = [each for each in chosen if each not in equal]
    run = Run(pool, ledger, options.timeout)
    waiting = [(room, m) for room, m in counting if not known(ledger, pool, room, m)]
    if waiting:
        run_all(run, waiting, options)
    found = [entry for room, m in counting if (entry := known(ledger, pool, room, m))]
    print_survivors(found)
    print_table(options.rooms, found, Counter(room for room, _ in equal))
    print_remarks(run, len(counting) - len(found), pool, equivalents)
    return int(not found or share(found) < options.least)


def known(ledger: Ledger, pool: Pool, room: str, mutant: Mutant) -> Entry | None:
    """What an earlier run, or this one, found and still holds."""
    source = digest([pool.texts[mutant.path]])
    return ledger.known(mutant.key, source, pool.tests_digest[room])


def run_all(run: Run, waiting: list[tuple[str, Mutant]], options: argparse.Namespace) -> None:
    """Every process in a copy of its own, and a thread for each, until the minutes are over."""
    end = time.monotonic() + 60 * options.minutes
    shared = iter(waiting)
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="flint-mutants-")))
        processes = [stack.enter_context(p) for p in _processes(place, options.processes)]
        threads = [threading.Thread(target=run.work, args=(p, shared, end)) for p in processes]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join(min(max(0.0, end - time.monotonic()), threading.TIMEOUT_MAX))
        except KeyboardInterrupt:
            print("interrupted: what was found so far", file=sys.stderr)
        stopped = any(thread.is_alive() for thread in threads)
        for process in processes:
            process.stop()
        for thread in threads:
            thread.join()
    if run.errors and not stopped:
        raise run.errors[0]


def _processes(place: Path, number: int) -> Iterator[Process]:
    """Worker processes, each in a copy of this checkout."""
    first = place / "copy-0"
    copy_checkout(ROOT, first)
    for index in range(number):
        copy = place / f"copy-{index}"
        if index:
            shutil.copytree(first, copy, symlinks=True)
        yield Process(copy, place / f"scratch-{index}")


def print_survivors(found: Sequence[Entry]) -> None:
    """What no test noticed, in the order of rooms and files."""
    survivors = [entry for entry in found if entry.verdict == "survived"]
    for entry in sorted(survivors, key=lambda e: (list(ROOMS).index(e.room), e.path, e.line)):
        print(f"survived: {entry.room} {entry.path}:{entry.line}")
        print(f"    - {entry.before}\n    + {entry.after}")


def print_table(rooms: Sequence[str], found: Sequence[Entry], equal: Counter[str]) -> None:
    """One row a room, as markdown."""
    print("\n| room | tried | killed | of them by time | survived | equivalent | share |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for room in (*rooms, "all"):
        entries = [entry for entry in found if room in (entry.room, "all")]
        verdicts = Counter(entry.verdict for entry in entries)
        cells = (
            len(entries),
            len(entries) - verdicts["survived"],
            verdicts["timeout"],
            verdicts["survived"],
            equal.total() if room == "all" else equal[room],
            f"{100 * share(entries):.0f} %" if entries else "",
        )
        print(f"| {room} | " + " | ".join(map(str, cells)) + " |")
    survivors = [entry for entry in found if entry.verdict == "survived"]
    noticed = [entry for entry in found if entry.verdict != "survived"]
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
    return sum(entry.verdict != "survived" for entry in found) / len(found)


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
