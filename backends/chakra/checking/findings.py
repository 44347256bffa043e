"""What `check` can find in traces, by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice, product
from typing import NamedTuple

from flint.ir.program import Int64s

#: Every code and what it means to the simulator. The order is that of a report.
CODES: dict[str, str] = {
    "unreadable": "the file is not a Chakra trace: truncated, compressed or foreign bytes",
    "no-metadata": "the first record is not GlobalMetadata; readers lose the node that it is",
    "missing-rank": "there is no file for a rank that the others expect",
    "missing-file": "the manifest lists a file that is not there",
    "changed-file": "a file is not what the manifest says: it was changed since it was written",
    "duplicate-id": "two nodes of a rank have one id; the simulator keeps the last",
    "unknown-dependency": "a node waits for an id that the file does not have",
    "repeated-dependency": "a node names a dependency twice; the older feeder never releases it",
    "dependency-cycle": "nodes wait for each other; the simulator drops them silently",
    "invalid-node": "a node has no type; it never wakes the nodes that wait for it",
    "metadata-node": "a node of type METADATA; ASTRA-sim aborts",
    "unsupported-node": "a load or store of remote memory, which memory.json does not have",
    "cpu-op": "a node is marked is_cpu_op but is not measured host work; ASTRA-sim's statistics throw",
    "attribute-type": "an attribute has another type than feeders read; reported once for all "
    "nodes where ASTRA-sim converts it, because the older feeder reads 0",
    "attribute-missing": "an attribute that the simulator requires is not there",
    "zero-tensor-size": "a computation moves no bytes; with the roofline on it is skipped, and what "
    "waits for it may never start",
    "zero-num-ops": "a computation has no operations; with the roofline on it never ends, and what "
    "waits for it never starts",
    "zero-comm-size": "a communication has no bytes; it hangs or is skipped",
    "unsupported-collective": "a collective that ASTRA-sim does not simulate",
    "unknown-group": "pg_name is not in the communicator group file",
    "bad-dimensions": "involved_dim does not have one entry per network dimension",
    "rank-not-in-group": "a rank uses a group that does not list it",
    "group-of-one": "a collective over one rank; it never ends",
    "negative-tag": "comm_tag is negative; the simulator asserts",
    "wrong-rank": "comm_src of a send or comm_dst of a receive is not the rank itself, or the "
    "other end is not a rank",
    "send-to-self": "a rank sends to itself; the simulator throws",
    "missing-participant": "a member of a group issues none of its collectives",
    "collective-count": "members of a group issue different numbers of collectives",
    "collective-order": "members of a group issue the same collectives in different orders",
    "collective-kind": "members of a group issue different kinds at one place",
    "collective-size": "members of a group issue different comm_size at one place",
    "message-size": "a send and its receive differ in comm_size",
    "message-tag": "a send and a receive between two ranks differ in comm_tag",
    "recv-without-send": "nothing is sent to a receive; the rank hangs silently",
    "send-without-recv": "nothing receives a send",
    "message-order": "a rank receives first what another can only send second",
    "wrong-result": "a chunk of a written collective's result is never written, or another's",
    "missing-contribution": "a chunk of its result lacks what a rank contributes",
    "repeated-contribution": "a chunk of its result counts what a rank contributes more than once",
    "recv-before-send": "ranks wait for messages that are sent only after their own arrive",
    "one-slot-deadlock": "ranks hold their one communication slot while they wait for each other",
}


class Finding(NamedTuple):
    """One thing that is wrong: `rank` and `node` (id) are -1 where it has none."""

    code: str
    rank: int
    node: int
    sentence: str

    def __str__(self) -> str:
        where = "" if self.rank < 0 else f" rank {self.rank}"
        where += "" if self.node < 0 else f" node {self.node}"
        return f"{self.code}{where}: {self.sentence}"


class Proved(StrEnum):
    """At which times traces are proved to end."""

    ANY_TIMES = "any-times"
    THESE_TIMES = "these-times"
    NOTHING = "nothing"


@dataclass(frozen=True)
class CheckReport:
    """What `check` examined and found.

    Of each code the first MAX_PER_CODE findings by rank and node are kept, `counts` has all.
    `ranks` are the files read; `partial` is true where only some ranks of the mesh were written, so
    that nothing could be said about the others; `deadlock_examined` is false where earlier findings
    or absent ranks leave nothing to prove. `proved` says that the traces end whatever computations and
    messages last, or at the times that they have; why not at any says `doubt`. `notes` are sentences about what is not a fault, and
    about what could not be proved. `compared_files` were held against the manifest.
    """

    ranks: int
    nodes: int
    groups: int
    partial: bool
    deadlock_examined: bool
    findings: tuple[Finding, ...]
    counts: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    compared_files: int = 0
    proved: Proved = Proved.NOTHING
    doubt: str = ""

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings


#: Findings kept of each code: one fault in a program shows on every rank.
MAX_PER_CODE = 20


class Collected:
    """Problems of one file, the same for every rank that has it: those of the least ids are kept."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._kept: dict[str, list[tuple[int, str]]] = {}

    def add(self, code: str, node: int, sentence: str) -> None:
        """Note one problem of the node with this id."""
        self.counts[code] += 1
        kept = self._kept.setdefault(code, [])
        kept.append((node, sentence))
        if len(kept) > 8 * MAX_PER_CODE:
            self._kept[code] = sorted(kept)[:MAX_PER_CODE]

    def add_many(
        self, code: str, places: Int64s, describe: Callable[[int], tuple[int, str]]
    ) -> None:
        """Note a problem at each of `places`; only the first are described: (node, sentence)."""
        for at in places[:MAX_PER_CODE].tolist():
            self.add(code, *describe(at))
        if len(places) > MAX_PER_CODE:
            self.counts[code] += len(places) - MAX_PER_CODE

    def kept(self, code: str) -> list[tuple[int, str]]:
        """(node, sentence) of the first problems of this code."""
        return sorted(self._kept[code])[:MAX_PER_CODE]

    def key(self) -> tuple[object, ...]:
        """Equal for equal problems."""
        return tuple((code, n, *self.kept(code)) for code, n in sorted(self.counts.items()))


class Findings:
    """Collects findings while a check runs."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._kept: dict[str, list[Finding]] = {}

    def add(self, code: str, rank: int, node: int, sentence: str, times: int = 1) -> None:
        """Note one finding, or the first of `times` alike. `code` is one of CODES."""
        assert code in CODES, f"unknown finding {code}"
        self.counts[code] += times
        kept = self._kept.setdefault(code, [])
        kept.append(Finding(code, rank, node, sentence))
        if len(kept) > 8 * MAX_PER_CODE:
            self._kept[code] = sorted(kept)[:MAX_PER_CODE]

    def add_collected(self, ranks: Sequence[int], collected: Collected) -> None:
        """Note the problems of a file that all of `ranks`, ascending, have."""
        for code, count in collected.counts.items():
            problems = collected.kept(code)
            pairs = product(ranks[:MAX_PER_CODE], problems)
            shown = list(islice(pairs, min(MAX_PER_CODE, count * len(ranks))))
            for rank, (node, sentence) in shown:
                self.add(code, rank, node, sentence)
            self.counts[code] += count * len(ranks) - len(shown)

    def sorted(self) -> tuple[Finding, ...]:
        """Findings in the order of CODES, then rank and node."""
        return tuple(
            finding for code in CODES for finding in sorted(self._kept.get(code, ()))[:MAX_PER_CODE]
        )

    def in_order(self) -> dict[str, int]:
        """How many there are of each code, in the order of CODES."""
        return {code: self.counts[code] for code in CODES if self.counts[code]}

    def __bool__(self) -> bool:
        return bool(self._kept)
