"""Prove that a set of traces runs to its end at any times, or name what stands in the way.

Simulators do not: they drop cycles silently, hang without a word, and exit with status 0.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flint.backends.chakra.checking.cohorts import Cohort, find_cohorts, match_collectives
from flint.backends.chakra.checking.findings import MAX_PER_CODE, CheckReport, Findings, Proved
from flint.backends.chakra.checking.listed_files import FileNumber, ListedFiles
from flint.backends.chakra.checking.liveness import Deadlock, Situation, examine, examine_unbuffered
from flint.backends.chakra.checking.messages import AllMessages, find_exchange, report_overtaking
from flint.backends.chakra.reading.kinds import ROOFLINE, GroupCodes, Remark
from flint.backends.chakra.reading.parser import TraceParser
from flint.backends.chakra.reading.reader import is_compressed, read_bytes, unpack
from flint.backends.chakra.reading.trace_class import AT, TraceClass
from flint.backends.chakra.reading.trace_files import (
    Membership,
    TraceSet,
    find_traces,
    group_file_names,
)
from flint.backends.chakra.writing.simulator_files import BANDWIDTHS, LATENCIES
from flint.backends.cost.astrasim.files import read_fabric
from flint.backends.cost.astrasim.ring import Dimension, Fabric
from flint.backends.cost.astrasim.run import require_modelled, run_traces
from flint.backends.cost.astrasim.step import NeverEndsError, Waiting
from flint.backends.cost.astrasim.traces import TraceReader
from flint.cluster.astrasim.files import read_system
from flint.cluster.astrasim.system import SystemFile
from flint.errors import FlintError
from flint.text import plural

#: Called with (ranks read, ranks in all).
Progress = Callable[[int, int], None]


def check(
    place: str | Path, *, comm_groups: str | Path | None = None, progress: Progress | None = None
) -> CheckReport:
    """Check the traces at `place`, a directory, a prefix (`dir/trace` for dir/trace.<rank>.et) or a file.

    They need not be Flint's. `comm_groups` is the communicator group file if it is neither
    comm_group.json beside them nor called as STAGE calls it. Proves what
    `flint.backends.chakra.checking.findings.CODES` lists. Raises FlintError FL601 (no traces), FL602
    (directory or group file cannot be read), FL605 (not a group file), FL606 (a manifest of Flint
    that cannot be used); a trace that cannot be read is a finding.
    """
    found = find_traces(Path(place), None if comm_groups is None else Path(comm_groups))
    run = _Check(found)
    for done, (rank, path) in enumerate(found.paths.items(), start=1):
        run.read(rank, path)
        if progress is not None and (done % 16 == 0 or done == len(found.paths)):
            progress(done, len(found.paths))
    return run.report()


class _Check:
    def __init__(self, traces: TraceSet) -> None:
        self.traces = traces
        self.findings = Findings()
        self.codes = GroupCodes()
        self.parser = TraceParser(self.codes, traces.has_roofline, traces.has_memory)
        self.membership = Membership(traces.world, traces.groups, traces.dimensions)
        self.listed = ListedFiles(traces.folder, traces.manifest, self.findings)
        self.present = set(traces.paths)
        self.unknown_groups = 0
        self.unbuffered: Deadlock | None = None
        #: Files with several names -> class and row of the rank that was read.
        self.linked: dict[FileNumber, tuple[TraceClass, int]] = {}

    def read(self, rank: int, path: Path) -> None:
        """Read one rank, unless its file is one that was read under another name."""
        number = _file_number(path)
        known = self.linked.get(number) if number else None
        if number and known and self.listed.compare_again(path.name, rank, number):
            known[0].repeat(rank, known[1])
            return
        try:
            found = self._load(rank, path, number)
        except FlintError as error:
            code = "no-metadata" if error.code == "FL604" else "unreadable"
            self.findings.add(code, rank, -1, error.message)
            self.present.discard(rank)
            return
        if number:
            self.linked[number] = found

    def _load(self, rank: int, path: Path, number: FileNumber | None) -> tuple[TraceClass, int]:
        raw = read_bytes(path)
        self.listed.compare(path.name, rank, raw, number)
        if is_compressed(raw):
            self.findings.add("unreadable", rank, -1, "the trace is compressed")
        trace_class, values = self.parser.load(unpack(raw, path.name), path.name)
        return trace_class, trace_class.add(rank, values)

    def report(self) -> CheckReport:
        """Compare the ranks with each other, then prove that they end."""
        traces = self.traces
        if not traces.partial:
            self._note_missing_ranks()
        self.listed.compare_others()
        self.listed.report_absent(traces.entries, traces.prefix, traces.partial)
        classes = [c for c in self.parser.classes if c.ranks]
        for each in classes:
            self.findings.add_collected(sorted(each.ranks), each.nodes.problems)
        notes = report_remarks(classes, self.findings)
        cohorts = [c for each in classes for c in self._cohorts(each)]
        self._note_missing_groups(classes)
        match_collectives(cohorts, self.membership, self.present, self.findings)
        exchange = find_exchange(cohorts)
        exchange.report(self.present, self.findings)
        complete = len(self.present) == traces.world and max(self.present) < traces.world
        # A file that was changed is examined as it is: the traces may be sound all the same, or not.
        examined = complete and set(self.findings.counts) <= {"changed-file", "missing-file"}
        proved, doubt = self._prove(cohorts, exchange) if examined else (Proved.NOTHING, "")
        return CheckReport(
            ranks=len(traces.paths),
            nodes=sum(len(c.ranks) * len(c.nodes.structure) for c in classes),
            groups=len(self.membership.members),
            partial=traces.partial,
            deadlock_examined=examined,
            proved=proved,
            doubt=doubt,
            findings=self.findings.sorted(),
            counts=self.findings.in_order(),
            notes=(*notes, *self._notes(classes)),
            compared_files=self.listed.compared,
        )

    def _cohorts(self, trace_class: TraceClass) -> list[Cohort]:
        return find_cohorts(trace_class, self.codes, self.membership, self.findings)

    def _note_missing_groups(self, classes: list[TraceClass]) -> None:
        """One finding for all groups that are named, if no file says who is in them."""
        if self.traces.groups is not None:
            return
        names = _named_groups(classes, self.codes)
        if not names:
            return
        self.unknown_groups = len(names)
        shown = ", ".join([*sorted(names)[:5], *["..."][: len(names) - 5]])
        places = ", ".join(group_file_names(self.traces.prefix)[:2])
        rank, node = min(names.values())
        sentence = (
            f"the traces name {plural(len(names), 'group')} ({shown}), but no file lists their "
            f"members: there is no {places}, nor another that --groups names"
        )
        self.findings.add("unknown-group", rank, node, sentence)

    def _notes(self, classes: list[TraceClass]) -> list[str]:
        """What could not be proved, and what was taken for granted."""
        notes = []
        if self.traces.group_file:
            notes.append(f"the groups come from {self.traces.group_file}")
        if self.unknown_groups:
            groups = plural(self.unknown_groups, "group")
            notes.append(f"collectives of {groups} were not matched: their members are unknown")
        nameless = 0 if self.traces.manifest else _count_nameless(classes, self.codes)
        if nameless:
            notes.append(
                f"{plural(nameless, 'collective')} without a group are taken as collectives of "
                f"all {plural(self.traces.world, 'rank')}, as in ASTRA-sim"
            )
        if self.unbuffered is not None:
            notes.append(
                "sends are taken to end before they are received, as in ASTRA-sim; where they wait, as in "
                f"NCCL, ranks wait for each other: {self.unbuffered.sentence}"
            )
        return [*notes, *self.listed.notes(self.traces.entries)]

    def _note_missing_ranks(self) -> None:
        left = self.traces.world - len(self.traces.paths)
        rank = 0
        while left > 0:
            if rank not in self.traces.paths:
                listed = self.findings.counts["missing-rank"] < MAX_PER_CODE - 1
                times = 1 if listed else left
                self.findings.add("missing-rank", rank, -1, "there is no trace for it", times)
                left -= times
            rank += 1

    def _prove(self, cohorts: list[Cohort], exchange: AllMessages) -> tuple[Proved, str]:
        """At which times the traces end, and why not at any."""
        report_overtaking(exchange, self.findings)
        members = self.membership.members
        situation = Situation(cohorts, exchange, members, self.traces.world)
        found = examine(situation)
        if found is None:
            self.unbuffered = examine_unbuffered(situation)
            return Proved.ANY_TIMES, ""
        if isinstance(found, Deadlock):
            return self._never_ends(found, "")
        try:
            run = run_at_their_times(self.traces)
        except FlintError as error:
            return Proved.NOTHING, f"{found.sentence}; Flint cannot run them: {error.message}"
        if run.deadlock is not None:
            return self._never_ends(run.deadlock, run.times)
        return Proved.THESE_TIMES, found.sentence + (f" (run at {run.times})" if run.times else "")

    def _never_ends(self, found: Deadlock, times: str) -> tuple[Proved, str]:
        code = "recv-before-send" if found.only_messages else "one-slot-deadlock"
        sentence = found.sentence + (f" (at {times})" if times else "")
        self.findings.add(code, found.rank, found.node, sentence)
        return Proved.NOTHING, ""


def _file_number(path: Path) -> FileNumber | None:
    """What is equal for the names of one file, None where it has one name only."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if status.st_nlink > 1 else None


def _named_groups(classes: list[TraceClass], codes: GroupCodes) -> dict[str, tuple[int, int]]:
    """Names of groups that a file must list, each with the first rank and node that use it."""
    found: dict[str, tuple[int, int]] = {}
    for each in classes:
        table, lines = each.table(), each.nodes.collectives
        slots, first = np.unique(each.group_slots, return_index=True)
        for slot, at in zip(slots.tolist(), first.tolist(), strict=True):
            node = each.nodes.id_at(int(lines[at, AT]))
            values, rows = np.unique(table[:, slot], return_index=True)
            for code, row in zip(values.tolist(), rows.tolist(), strict=True):
                name = codes.name(code)
                if isinstance(name, str) and name not in ("", "0"):
                    place = (each.ranks[row], node)
                    found[name] = min(found.get(name, place), place)
    return found


def _count_nameless(classes: list[TraceClass], codes: GroupCodes) -> int:
    """Collectives that say neither a group nor dimensions."""
    code = codes.code("")
    return sum(int((each.table()[:, each.group_slots] == code).sum()) for each in classes)


# What many nodes have in common is said once, with how many they are.


def report_remarks(classes: Sequence[TraceClass], findings: Findings) -> list[str]:
    """Note the remarks that are findings; the sentences of those that are not."""
    counts: Counter[Remark] = Counter()
    first: dict[Remark, tuple[int, int, str]] = {}
    for each in classes:
        rank = min(each.ranks)
        for remark, count in each.nodes.remarks.items():
            counts[remark] += count * len(each.ranks)
            found = (rank, *each.nodes.first_of[remark])
            first[remark] = min(first.get(remark, found), found)
    for remark in sorted(counts):
        if remark.code:
            rank, node, label = first[remark]
            findings.add(remark.code, rank, node, _sentence(remark, label, counts[remark]))
    return [_note(remark, counts[remark]) for remark in sorted(counts) if not remark.code]


def _sentence(remark: Remark, label: str, count: int) -> str:
    others = f", and so do {plural(count - 1, 'other node')}" if count > 1 else ""
    return (
        f"{label} stores {remark.attribute} {remark.text}{others}; ASTRA-sim converts it, but "
        "the older feeder reads 0"
    )


def _note(remark: Remark, count: int) -> str:
    nodes = plural(count, "node")
    if remark.stored:
        return f"{remark.attribute} is stored {remark.text} ({nodes}); it is 0, as all feeders read"
    matters = ", which matters only with the roofline on" if remark.attribute in ROOFLINE else ""
    return f"{remark.attribute} {remark.text} ({nodes}){matters}"


# Whether traces end at the times that they have: a run by the rules of ASTRA-sim, with the network.yml and
# system.json beside them, or made-up ones where there are none.


@dataclass(frozen=True)
class TimedRun:
    """What became of ranks at certain times. `times` says whose these are, "" for those of the files.

    `deadlock` is None if all ended.
    """

    deadlock: Deadlock | None
    times: str


def run_at_their_times(traces: TraceSet) -> TimedRun:
    """Run the traces to their end, or until ranks wait for each other.

    Raises FlintError FL602 to FL605, or FL707 where Flint has no rules for a node or a setting.
    """
    fabric, system, times = _hardware(traces)
    try:
        run_traces(TraceReader(traces, fabric.sizes, system), traces, fabric, system, name="")
    except NeverEndsError as error:
        return TimedRun(_explain(error.stuck, error.waiting), times)
    return TimedRun(None, times)


def _hardware(traces: TraceSet) -> tuple[Fabric, SystemFile, str]:
    """Network and settings beside the traces, or made-up ones and why."""
    network, settings = traces.folder / "network.yml", traces.folder / "system.json"
    try:
        fabric, system = read_fabric(network), read_system(settings)
    except FlintError as error:
        why = error.message
    else:
        if fabric.world == traces.world:
            require_modelled(settings, system, fabric)
            return fabric, system, ""
        why = f"network.yml is for {fabric.world} ranks"
    sizes = traces.dimensions or (traces.world,)
    links = tuple(Dimension(BANDWIDTHS[-1], LATENCIES[-1]) for _ in sizes)
    made_up = SystemFile.model_validate({"peak-perf": 1, "local-mem-bw": 1})
    return Fabric(("Switch",) * len(sizes), sizes, links), made_up, f"made-up times, for {why}"


def _explain(stuck: Sequence[int], waiting: Sequence[Waiting]) -> Deadlock:
    """Follow who waits for whom from the first rank that does not end, until it repeats."""
    first_of: dict[int, Waiting] = {}
    for each in sorted(waiting, key=lambda w: (w.is_message, w.rank, w.node)):
        first_of.setdefault(each.rank, each)
    path: list[Waiting] = []
    rank = stuck[0]
    while (found := first_of.get(rank)) and found not in path and found.absent:
        path.append(found)
        rank = found.absent[0]
    cycle = path[path.index(found) :] if found in path else path
    if not cycle:
        return Deadlock(stuck[0], -1, False, f"rank {stuck[0]} never ends")
    shown = [_waits(w) for w in cycle]
    if len(shown) > 6:
        shown = [*shown[:5], f"... {len(shown) - 5} more"]
    only_messages = all(w.is_message for w in cycle)
    return Deadlock(cycle[0].rank, cycle[0].node, only_messages, "; ".join(shown))


def _waits(waiting: Waiting) -> str:
    rank, node, other = waiting.rank, waiting.node, waiting.absent[0]
    if waiting.is_message:
        return f"rank {rank} waits in node {node} for a message of rank {other}"
    return f"rank {rank} holds its slot for node {node} until rank {other} joins"
