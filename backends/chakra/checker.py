"""Prove that a set of traces runs to its end, or name what stands in the way.

Simulators do not: they drop cycles silently, hang without a word, and exit with status 0.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from flint.backends.chakra.deadlock import Operation, RankWork, find_deadlock
from flint.backends.chakra.findings import MAX_PER_CODE, CheckReport, Findings
from flint.backends.chakra.matching import CollectiveMatcher, MessageMatcher, check_peers
from flint.backends.chakra.membership import Membership
from flint.backends.chakra.overtaking import report_overtaking
from flint.backends.chakra.reader import is_compressed, read_bytes, unpack
from flint.backends.chakra.records import RecordTable
from flint.backends.chakra.references import (
    COMM_BYTES,
    GROUP,
    HAS_PROBLEM,
    ID,
    KIND,
    SHAPE,
    SOURCE,
    TAG,
    TARGET,
    TYPE,
)
from flint.backends.chakra.schema import NodeType
from flint.backends.chakra.structure import Structure, build_structure
from flint.backends.chakra.trace_files import TraceSet, find_traces
from flint.errors import FlintError
from flint.program import Int64s

#: Called with (ranks read, ranks in all).
Progress = Callable[[int, int], None]


def check(
    place: str | Path,
    *,
    comm_groups: str | Path | None = None,
    progress: Progress | None = None,
) -> CheckReport:
    """Check the traces at `place`, a directory or a prefix (`dir/trace` for dir/trace.<rank>.et).

    They need not be Flint's. `comm_groups` is the communicator group file if it is not
    comm_group.json beside them. Proves what `flint.backends.chakra.findings.CODES` lists. Raises
    FlintError FL601 (no traces), FL602 (directory or group file cannot be read), FL605 (not a
    group file); a trace that cannot be read is a finding.
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
        self.table = RecordTable()
        self.membership = Membership(traces.world, traces.groups, traces.dimensions)
        self.collectives = CollectiveMatcher()
        self.messages = MessageMatcher()
        self.structures: dict[bytes, Structure] = {}
        self.work: dict[int, RankWork] = {}
        self.operations: dict[tuple[int, ...], Operation] = {}
        self.nodes = 0
        self.present = set(traces.paths)

    def read(self, rank: int, path: Path) -> None:
        """Read and examine one rank."""
        try:
            raw = read_bytes(path)
            if is_compressed(raw):
                self.findings.add("unreadable", rank, -1, "the trace is compressed")
            numbers, columns, _ = self.table.load(unpack(raw, path.name), path.name)
        except FlintError as error:
            code = "no-metadata" if error.code == "FL604" else "unreadable"
            self.findings.add(code, rank, -1, error.message)
            self.present.discard(rank)
            return
        self.nodes += len(numbers)
        structure = self._structure(rank, numbers, columns)
        order = structure.order
        numbers, columns = numbers[order], columns[order]
        for at in np.flatnonzero(columns[:, HAS_PROBLEM]).tolist():
            record = self.table.records[numbers[at]]
            for code, sentence in record.problems:
                self.findings.add(code, rank, record.id, sentence)
        operations = self._communication(rank, columns)
        self.work[rank] = RankWork(structure, operations, columns[:, ID].tolist())

    def _structure(self, rank: int, numbers: Int64s, columns: Int64s) -> Structure:
        key = columns[:, SHAPE].tobytes()
        structure = self.structures.get(key)
        if structure is None:
            records = self.table.records
            structure = build_structure([records[n] for n in numbers.tolist()])
            self.structures[key] = structure
        for code, node, sentence in structure.problems:
            self.findings.add(code, rank, node, sentence)
        return structure

    def _communication(self, rank: int, columns: Int64s) -> dict[int, Operation]:
        """Examine a rank's communication; what each position does, for the simulation."""
        operations: dict[int, Operation] = {}
        types = columns[:, TYPE]
        where = np.flatnonzero(types == NodeType.COMM_COLL)
        groups = self._groups(rank, columns[where])
        where, groups = where[groups >= 0], groups[groups >= 0]
        self.collectives.add(rank, groups, columns[where])
        kinds = columns[where][:, (KIND, COMM_BYTES)].tolist()
        for at, group, kind in zip(where.tolist(), groups.tolist(), kinds, strict=True):
            operations[at] = self._operation(NodeType.COMM_COLL, group, *kind)
        for node_type in (NodeType.COMM_SEND, NodeType.COMM_RECV):
            where = np.flatnonzero(types == node_type)
            if len(where):
                ends = self._messages(rank, columns[where], node_type)
                for at, key in zip(where.tolist(), ends, strict=True):
                    operations[at] = self._operation(node_type, -1, *key)
        return operations

    def _operation(self, node_type: NodeType, group: int, *key: int) -> Operation:
        """Equal operations are one object: there are many more nodes than kinds of them."""
        name = (int(node_type), group, *key)
        found = self.operations.get(name)
        if found is None:
            found = self.operations[name] = (node_type, group, key)
        return found

    def _groups(self, rank: int, columns: Int64s) -> Int64s:
        """Number of the group of each collective; -1 where it has none that holds the rank."""
        names = list(self.table.groups)
        result = np.full(len(columns), -1, dtype=np.int64)
        for index in np.unique(columns[:, GROUP]).tolist():
            where = columns[:, GROUP] == index
            node = int(columns[where][0, ID])
            number = self.membership.resolve(names[index], rank)
            if isinstance(number, str):
                code = "unknown-group" if isinstance(names[index], str) else "bad-dimensions"
                self.findings.add(code, rank, node, number)
                continue
            members, label = self.membership.members[number], self.membership.labels[number]
            if rank not in members:
                sentence = f"it uses {label}, which does not list it"
                self.findings.add("rank-not-in-group", rank, node, sentence)
                continue
            if len(members) == 1:
                self.findings.add("group-of-one", rank, node, f"{label} is the rank alone")
            result[where] = number
        return result

    def _messages(self, rank: int, columns: Int64s, node_type: NodeType) -> list[tuple[int, ...]]:
        """Examine and note a rank's sends or receives; their (tag, source, target, size)."""
        sends, ids = node_type is NodeType.COMM_SEND, columns[:, ID]
        world = self.traces.world
        columns, sound = check_peers(rank, columns, ids, world, sends, self.findings)
        add = self.messages.add_sends if sends else self.messages.add_receives
        add(columns[sound], ids[sound])
        keys: list[list[int]] = columns[:, (TAG, SOURCE, TARGET, COMM_BYTES)].tolist()
        return [tuple(key) for key in keys]

    def report(self) -> CheckReport:
        """Compare the ranks with each other, then simulate."""
        if not self.traces.partial:
            self._note_missing_ranks()
        self.collectives.report(self.membership, self.present, self.findings)
        self.messages.report(self.present, self.findings)
        complete = len(self.present) == self.traces.world
        examined = complete and not self.findings
        if examined:
            self._simulate()
        return CheckReport(
            ranks=len(self.traces.paths),
            nodes=self.nodes,
            groups=len(self.membership.members),
            partial=self.traces.partial,
            deadlock_examined=examined,
            findings=self.findings.sorted(),
            counts=dict(self.findings.counts),
        )

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

    def _simulate(self) -> None:
        report_overtaking(self.messages.sends, self.messages.receives, self.work, self.findings)
        deadlock = find_deadlock(self.work, self.membership.members)
        if deadlock is not None:
            code = "recv-before-send" if deadlock.only_messages else "one-slot-deadlock"
            self.findings.add(code, deadlock.rank, deadlock.node, deadlock.sentence)
