"""The summary of a capture says what the files say: counts and bytes, after profiles and granularities."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from flint.backends.chakra import read
from flint.backends.chakra.schema import CommType, NodeType
from flint.ir.mesh import Mesh
from flint.ir.program import Collective, Kind, RegionKind
from flint.ir.workload import Workload
from flint.tracing import Trace
from tests.chakra_traces import layered_program, over
from tests.program_rows import ProgramBuilder

#: What a node of these types is called in a summary; a broadcast is an all-gather of parts.
_NAMES = {
    CommType.ALL_REDUCE: "all_reduce",
    CommType.ALL_GATHER: "all_gather",
    CommType.REDUCE_SCATTER: "reduce_scatter",
    CommType.ALL_TO_ALL: "all_to_all",
}


def reductions() -> Workload:
    """A loop of products whose all-reduces are sliced: reduce-scatters after XLA's rewrites."""
    b = ProgramBuilder(Mesh.parse("data=2,model=4"))
    whole: dict[str, Any] = {"dtype": "bfloat16", "shape": (512, 512), "result_bytes": 2 * 512**2}
    x = b.add("parameter", Kind.PARAMETER, name="x", **whole)
    b.begin_region(RegionKind.LOOP, 5)
    carry = b.add("while.carry", Kind.VALUE, deps=[x], **whole)
    y = b.add(
        "stablehlo.dot_general",
        deps=[carry, x],
        operand_bytes=4 * 512**2,
        flops=2 * 512**3,
        dims=(1, 512, 512, 512),
        **whole,
    )
    told: dict[str, Any] = {"group": over("model"), "comm_bytes": 2 * 512**2}
    part = {**whole, "shape": (128, 512), "result_bytes": 2 * 128 * 512}
    r = b.add(
        "sdy.all_reduce",
        Kind.COLLECTIVE,
        deps=[y],
        collective=Collective.ALL_REDUCE,
        **told,
        **whole,
    )
    s = b.add("sdy.all_slice", deps=[r], group=over("model"), **part)
    told["comm_bytes"] = part["result_bytes"]
    g = b.add(
        "sdy.all_gather",
        Kind.COLLECTIVE,
        deps=[s],
        collective=Collective.ALL_GATHER,
        **told,
        **whole,
    )
    b.end_region([(carry, g)])
    return Workload.single(b.build())


def in_files(folder: Path) -> Counter[tuple[str, str]]:
    """Nodes and bytes of each kind in the trace of rank 0."""
    found: Counter[tuple[str, str]] = Counter()
    for node in read(folder / "trace.0.et").nodes:
        values = {name: value for name, (_, value) in node.attributes.items()}
        if node.type is NodeType.COMM_COLL:
            name = _NAMES[values["comm_type"]]
        elif node.type is NodeType.COMM_SEND:
            name = "permute"
        else:
            continue
        found[name, "count"] += 1
        found[name, "bytes"] += values["comm_size"]
    return found


def in_summary(trace: Trace, written: Workload) -> Counter[tuple[str, str]]:
    """The same as the summary says it."""
    found: Counter[tuple[str, str]] = Counter()
    for total in trace.summary(written).classes[0].collectives:
        name, comm_bytes = total.collective, total.comm_bytes
        if name == "broadcast":
            name, comm_bytes = "all_gather", -(-total.comm_bytes // total.group_size)
        found[name, "count"] += total.count
        found[name, "bytes"] += comm_bytes
    return found


def layered() -> Workload:
    """Permutations and a broadcast."""
    return Workload.single(layered_program())


@pytest.mark.parametrize(
    ("make", "profile", "options"),
    [
        (layered, "none", {"granularity": "op"}),
        (layered, "xla-gpu", {"granularity": "kernel"}),
        (reductions, "none", {"granularity": "op"}),
        (reductions, "none", {"granularity": "kernel"}),
        (reductions, "xla-gpu", {"granularity": "op"}),
        (reductions, "xla-gpu", {"granularity": "kernel"}),
        (reductions, "xla-tpu", {"granularity": "kernel"}),
        (reductions, "none", {"cluster": "h100-dgx"}),
        (reductions, "xla-tpu", {"cluster": "v5p"}),
        (reductions, "inductor", {"cluster": "h100-dgx"}),
    ],
)
def test_the_summary_says_what_the_files_say(
    make: Any, profile: str, options: dict[str, Any], tmp_path: Path
) -> None:
    trace = Trace(make())
    trace = trace if profile == "none" else trace.rewritten(profile)
    report = trace.save(tmp_path / "out", **options)
    assert in_summary(trace, report.written) == in_files(tmp_path / "out")
    assert in_files(tmp_path / "out")["all_gather", "count"] > 0


def test_a_cluster_brings_rewrites_that_the_summary_shows(tmp_path: Path) -> None:
    """XLA for GPUs makes reduce-scatters of sliced all-reduces, and the files hold those."""
    trace = Trace(reductions())
    before = {c.collective for c in trace.summary().classes[0].collectives}
    report = trace.save(tmp_path / "out", cluster="h100-dgx")
    after = {c.collective for c in trace.summary(report.written).classes[0].collectives}
    assert (before, after) == ({"all_reduce", "all_gather"}, {"reduce_scatter", "all_gather"})
