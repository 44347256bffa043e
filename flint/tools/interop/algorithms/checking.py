"""`flint check ALGO.xml`: whether an algorithm ends, and is the collective that it says it is."""

from __future__ import annotations

from pathlib import Path

from flint.backends.chakra.checking.findings import CheckReport, Proved
from flint.errors import FlintError
from flint.text import plural
from flint.tools.interop.algorithms.graph import AlgorithmGraph
from flint.tools.interop.algorithms.reading import read_algorithm


def check_algorithm(path: Path) -> CheckReport:
    """Check an algorithm of MSCCL. Raises FlintError FL607 to FL609 for what is none."""
    graph = AlgorithmGraph(read_algorithm(path))
    graph.prove()
    a, found = graph.algorithm, graph.findings
    said = f"{a.kind} of {plural(a.ranks, 'rank')} in {plural(a.chunks, 'chunk')}"
    return CheckReport(
        ranks=a.ranks,
        nodes=len(a.steps),
        groups=1,
        partial=False,
        deadlock_examined=True,
        findings=found.sorted(),
        counts=found.in_order(),
        notes=(said, "sends are taken to end before they are received"),
        proved=Proved.NOTHING if found else Proved.ANY_TIMES,
    )


def proved_algorithm(path: Path) -> AlgorithmGraph:
    """An algorithm that `check_algorithm` finds nothing wrong with. Raises FlintError FL611 for others, and as it does."""
    graph = AlgorithmGraph(read_algorithm(path))
    graph.prove()
    for first in graph.findings.sorted():
        raise FlintError(
            "FL611",
            f"{path} is no {graph.algorithm.kind} of {graph.algorithm.ranks} ranks: {first}",
            help=f"flint check {path} lists what is wrong with it",
        )
    return graph
