"""What `check` can find in traces, by name."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

#: Every code and what it means to the simulator. The order is that of a report.
CODES: dict[str, str] = {
    "unreadable": "the file is not a Chakra trace: truncated, compressed or foreign bytes",
    "no-metadata": "the first record is not GlobalMetadata; readers lose the node that it is",
    "missing-rank": "there is no file for a rank that the others expect",
    "duplicate-id": "two nodes of a rank have one id; the simulator keeps the last",
    "unknown-dependency": "a node waits for an id that the file does not have",
    "repeated-dependency": "a node names a dependency twice; the older feeder never releases it",
    "dependency-cycle": "nodes wait for each other; the simulator drops them silently",
    "invalid-node": "a node has no type; it never wakes the nodes that wait for it",
    "metadata-node": "a node of type METADATA; ASTRA-sim aborts",
    "unsupported-node": "a node type that ASTRA-sim runs only with remote memory",
    "cpu-op": "a node is marked is_cpu_op; ASTRA-sim's statistics throw",
    "attribute-type": "an attribute is stored as another type than feeders read",
    "attribute-missing": "an attribute that the simulator requires is not there",
    "zero-tensor-size": "a computation moves no bytes; the rank hangs with the roofline on",
    "zero-num-ops": "a computation has no operations; the rank hangs with the roofline on",
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
    "recv-without-send": "nothing is sent to a receive; the rank hangs without a word",
    "send-without-recv": "nothing receives a send",
    "message-order": "a rank receives first what another can only send second",
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


@dataclass(frozen=True)
class CheckReport:
    """What `check` examined and found.

    Of each code the first MAX_PER_CODE findings are kept, `counts` has all. `ranks` are the files
    read; `partial` is true where only some ranks of the mesh were written, so that nothing could
    be said about the others; `deadlock_examined` is false where earlier findings or absent ranks
    make a simulation meaningless.
    """

    ranks: int
    nodes: int
    groups: int
    partial: bool
    deadlock_examined: bool
    findings: tuple[Finding, ...]
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings


#: Findings kept of each code: one fault in a program shows on every rank.
MAX_PER_CODE = 20


class Findings:
    """Collects findings while a check runs."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._kept: list[Finding] = []

    def add(self, code: str, rank: int, node: int, sentence: str, times: int = 1) -> None:
        """Note one finding, or the first of `times` alike. `code` is one of CODES."""
        assert code in CODES, f"unknown finding {code}"
        if self.counts[code] < MAX_PER_CODE:
            self._kept.append(Finding(code, rank, node, sentence))
        self.counts[code] += times

    def sorted(self) -> tuple[Finding, ...]:
        """Findings in the order of CODES, then rank and node."""
        order = {code: i for i, code in enumerate(CODES)}
        return tuple(sorted(self._kept, key=lambda f: (order[f.code], f.rank, f.node, f.sentence)))

    def __bool__(self) -> bool:
        return bool(self._kept)
