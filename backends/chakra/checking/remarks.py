"""What many nodes have in common is said once, with how many they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from flint.backends.chakra.checking.findings import Findings
from flint.backends.chakra.reading.records import Remark
from flint.backends.chakra.reading.trace_class import TraceClass
from flint.units import plural


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
        f"{label} stores {remark.attribute} {remark.text}{others}; "
        "ASTRA-sim converts it, the older feeder reads 0"
    )


def _note(remark: Remark, count: int) -> str:
    nodes = plural(count, "node")
    if remark.stored:
        return f"{remark.attribute} is stored {remark.text} ({nodes}); it is 0, as all feeders read"
    return f"{remark.attribute} {remark.text} ({nodes}), which matters with the roofline on only"
