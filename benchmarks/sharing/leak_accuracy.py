"""Write the measured part of docs/share.md: how much the known models tell, and how attacks do.

python -m benchmarks.sharing.leak_accuracy
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from benchmarks.accuracy_summary import between
from flint.tools.share.leaks.fingerprints import View
from flint.tools.share.leaks.known import Known, public_models

PAGE = Path(__file__).parents[2] / "docs/share.md"


def measured(known: Known) -> Iterator[str]:
    """The lines between the marks."""
    families = Counter(e.family for e in known.entries)
    counts = ", ".join(f"{name} {count}" for name, count in families.most_common())
    yield f"{len(known)} workloads of {len(known.models)} models: {counts}.\n"
    yield (
        "| nearest neighbour on | left out one by one | model by model | code by code "
        "| largest family always |"
    )
    yield "|---|--:|--:|--:|--:|"
    for view in View:
        found = known.measured.families[view]
        shares = (found.one_left_out, found.model_left_out, found.code_left_out)
        told = " | ".join(
            "" if s.right is None else f"{s.right:.0%} of {s.workloads}" for s in shares
        )
        yield f"| {view.value} | {told} | {found.largest_family:.0%} |"
    yield "\n| membership of | threshold | known ones, left out, that pass for another |"
    yield "|---|--:|--:|"
    for name, threshold in (
        ("a model", known.measured.models),
        ("a workload", known.measured.workloads),
    ):
        yield f"| {name} | {threshold.distance:.4f} | {threshold.false_positive_rate:.1%} |"


def main() -> None:
    """Replace what is between the marks."""
    table = "\n".join(measured(public_models()))
    PAGE.write_text(between(PAGE.read_text("utf-8"), "leaks", table), encoding="utf-8")


if __name__ == "__main__":
    main()
