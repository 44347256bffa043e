"""Comparisons of small programs by hand: totals, verdicts, budgets, and what is printed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flint.errors import FlintError
from flint.ir.mesh import AxisRef, Group, Mesh
from flint.ir.op_class import OpClass
from flint.ir.program import Collective, Flag, Kind, Phase, Region, RegionKind
from flint.ir.rank_class import RankClass
from flint.ir.workload import Workload
from flint.tools.change.diff import show
from flint.tools.change.diff.budgets import broken, parse_budgets
from flint.tools.change.diff.cause import CauseKind
from flint.tools.change.diff.causes import causes
from flint.tools.change.diff.difference import Difference, Side, compare
from flint.tools.change.diff.document import document, snapshot_of_estimate
from flint.tools.change.diff.match import Action
from flint.tools.change.diff.snapshot import facts, family, whole_shape
from flint.tools.change.project.records import snapshot_from, snapshot_record
from flint.tracing import Trace
from tests.program_rows import ProgramBuilder

MESH = Mesh.parse("data=4,model=2")


def program(
    *names: str, rows: int = 512, scope: str = "mlp", gathers: int = 0, location: str = "m.py:3"
) -> Any:
    """A product for each weight, and gathers of the last result over `data`."""
    b = ProgramBuilder(MESH)
    x = b.add("parameter", Kind.PARAMETER, name="x", dtype="bf16", shape=(rows, 64), result_bytes=rows * 128)  # fmt: skip
    weights = [
        b.add("parameter", Kind.PARAMETER, name=n, dtype="bf16", shape=(64, 64), result_bytes=8192)
        for n in names
    ]
    for w in weights:
        x = b.add(
            "stablehlo.dot_general",
            deps=[x, w],
            op=OpClass.MATMUL,
            dtype="bf16",
            shape=(rows, 64),
            result_bytes=rows * 128,
            operand_bytes=rows * 128 + 8192,
            flops=2 * rows * 64 * 64,
            dims=(1, rows, 64, 64),
            phase=Phase.FORWARD,
            scope=scope,
            location=location,
        )
    for number in range(gathers):
        b.add(
            "stablehlo.all_gather",
            Kind.COLLECTIVE,
            deps=[x],
            dtype="bf16",
            shape=(rows * 4, 64),
            result_bytes=rows * 512,
            comm_bytes=rows * 128,
            collective=Collective.ALL_GATHER,
            group=Group((AxisRef("data"),)),
            phase=Phase.FORWARD,
            location=f"m.py:{30 + number}",
        )
    return b.build()


def side(p: Any, cluster: str | None = None) -> Side:
    workload = p if isinstance(p, Workload) else Workload.single(p, {"name": "by hand"})
    return Side.of(workload, None if cluster is None else Trace(workload).estimate(cluster))


def diff(a: Any, b: Any, cluster: str | None = None) -> Difference:
    return compare(side(a, cluster), side(b, cluster))


def test_equal_programs_are_equal_in_one_line() -> None:
    found = diff(program("a", "b"), program("a", "b"), "h100-dgx")
    assert found.is_equal and not found.changes and found.same == 2
    assert show.text(found) == "equal: by hand on data=4 x model=2"
    assert show.markdown(found, title="it:") == "**it:** equal: by hand on data=4 x model=2\n"


def test_facts_of_a_program_by_hand() -> None:
    """Two products and two gathers on each device. Communication counts what is put in."""
    found = facts(Workload.single(program("a", "b", gathers=2), {"name": "by hand"}))
    x, weight = 512 * 128, 8192
    assert (found.kernels, found.flops) == (2 + 2, 2 * (2 * 512 * 64 * 64))
    assert found.argument_bytes == x + 2 * weight
    assert found.bytes == 2 * (x + weight + x)
    assert found.comm_bytes == 2 * x
    (products,) = found.operations
    assert (products.op, products.phase, products.rows) == ("matmul", "forward", 2)
    assert (products.executions, products.flops, products.bytes) == (2, found.flops, found.bytes)
    (collectives,) = found.collectives
    assert (collectives.kind, collectives.over, collectives.source) == (
        "all_gather", "data", "program",
    )  # fmt: skip
    assert (collectives.comm_bytes, collectives.executions) == (x, 2)
    shapes = [(a.name, a.shape, a.count, a.device_bytes) for a in found.arguments]
    assert shapes == [
        ("x", (512, 64), 1, x), ("a", (64, 64), 1, weight), ("b", (64, 64), 1, weight),
    ]  # fmt: skip


def test_facts_of_two_classes_are_means_over_devices() -> None:
    """Six devices have one product, two have two: 10 of 8 devices."""
    one, two = program("a", gathers=1), program("a", "b")
    classes = (
        RankClass("most", 0, where={"data": (0, 1, 2)}),
        RankClass("last", 1, where={"data": (3,)}),
    )
    found = facts(Workload(MESH, (one, two), classes, {"name": "by hand"}))
    each, x = 2 * 512 * 64 * 64, 512 * 128
    assert found.flops == each * 10 // 8
    assert found.kernels == 2  # a product and a gather, or two products
    assert found.comm_bytes == x * 6 // 8
    (collectives,) = found.collectives
    assert (collectives.comm_bytes, collectives.executions) == (x, 6 / 8)
    assert found.argument_bytes == x + 8192 * 10 // 8


def test_names_are_counted_and_are_no_difference() -> None:
    a, b = program("a", "b"), program("up", "b", scope="ffn", location="m.py:9")
    found = diff(a, b)
    assert found.is_equal and found.renamed == (("a", "up"),)
    assert show.text(found) == (
        "equal: by hand on data=4 x model=2 (1 argument renamed, 2 kernels at another line or scope)"
    )


def test_an_added_collective_is_named_with_its_bytes_and_line() -> None:
    found = diff(program("a"), program("a", gathers=2))
    (cause,) = found.causes
    assert cause.kind is CauseKind.COLLECTIVES
    assert cause.text == "forward all_gather over data: none -> 2 of 128 KiB"
    gathered = [(c.action, c.kind, c.over, c.source, c.delta.comm_bytes) for c in found.changes]
    assert gathered == [
        (Action.ADDED, "all_gather", "data", "m.py:30", 65536),
        (Action.ADDED, "all_gather", "data", "m.py:31", 65536),
    ]


def test_collectives_of_the_partitioner_follow_from_a_sharding() -> None:
    """They are no cause of their own, but their costs are those of the sharding."""
    b = program("a", gathers=1)
    flags = b.flags.copy()
    flags[b.kind == Kind.COLLECTIVE] |= int(Flag.PARTITIONED)
    strings = (*b.strings, '[{"model"}, {}]')
    cause = b.cause.copy()
    cause[1] = len(strings) - 1
    shape = b.shape.copy()
    shapes = (*b.shapes, (32, 64))
    shape[1] = len(shapes) - 1
    a = program("a")
    one = a.cause.copy()
    one[1] = len(a.strings)
    before = a.with_rows(cause=one, strings=(*a.strings, "[{}, {}]"))
    found = diff(before, b.with_rows(flags=flags, cause=cause, strings=strings, shape=shape, shapes=shapes))  # fmt: skip
    assert [(c.kind, c.text) for c in found.causes] == [
        (CauseKind.SHARDING, '[{}, {}] -> [{"model"}, {}] of a')
    ]
    assert found.costs[CauseKind.SHARDING].comm_bytes == 65536


def test_donation_that_is_lost_or_gained_is_named() -> None:
    kept = program("a", "b")
    donated = replace(kept, flags=(kept.kind == Kind.PARAMETER) * np.uint16(Flag.DONATED))
    (lost,), (gained,) = diff(donated, kept).causes, diff(kept, donated).causes
    assert (lost.kind, lost.text) == (
        CauseKind.DONATION,
        "x, a and 1 other argument no longer donated",
    )
    assert gained.text == "x, a and 1 other argument donated now"


def test_records_from_before_donation_was_kept_name_none() -> None:
    donated = program("a")
    donated = replace(donated, flags=donated.flags | np.uint16(Flag.DONATED))
    other = program("a", gathers=1)
    before, after = side(donated), side(other)
    record = snapshot_record(before.snapshot)
    for argument in record["program"]["arguments"]:
        del argument["is_donated"]
    found = causes(snapshot_from(record), after.snapshot)
    assert [c.kind for c in found.found] == [CauseKind.COLLECTIVES]


def test_a_rank_class_without_a_partner_counts_whole() -> None:
    p = program("a", gathers=1)
    halves = (RankClass("one", 0, {"data": (0, 1)}), RankClass("two", 0, {"data": (2, 3)}))
    two = Workload(MESH, (p,), halves, {"name": "by hand"})
    q = program("a", "b", gathers=1)
    three = Workload(MESH, (p, q), (*halves[:1], RankClass("new", 1, {"data": (2, 3)})), {})
    found = diff(two, three)
    assert found.costs[CauseKind.ARGUMENTS].flops == pytest.approx(2 * 512 * 64 * 64 / 2)
    total = found.after.program.flops - found.before.program.flops  # type: ignore[union-attr]
    assert sum(c.delta.flops for c in found.changes) == pytest.approx(total)


def test_other_constants_for_the_same_program_are_a_difference() -> None:
    a = side(program("a"), "h100-dgx")
    facts = a.snapshot.estimates["h100-dgx"]
    other = replace(facts, step_time_ns=facts.step_time_ns * 1.1)
    b = replace(a.snapshot, estimates={"h100-dgx": other})
    found = compare(Side(a.snapshot), Side(b))
    assert [c.text for c in found.causes] == [
        "h100-dgx gives other numbers for the same program: its constants changed"
    ]
    reordered = replace(facts, step_time_ns=facts.step_time_ns * 1.0001)  # as by other names
    c = replace(a.snapshot, estimates={"h100-dgx": reordered})
    assert compare(Side(a.snapshot), Side(c)).is_equal


def test_a_broken_memory_budget_says_what_grew_at_the_peak() -> None:
    a = side(program("a"), "h100-dgx").snapshot
    facts = a.estimates["h100-dgx"]
    held = {**facts.memory_bytes, "saved_activations": 1 << 30}
    fuller = replace(facts, peak_bytes=facts.peak_bytes + (1 << 30), memory_bytes=held)
    found = compare(Side(a), Side(replace(a, estimates={"h100-dgx": fuller})))
    told = broken(found, parse_budgets("memory=+1%"))
    assert show.text(found, told).splitlines()[2].endswith("memory=+1%: saved activations")


def test_another_cluster_is_a_cause() -> None:
    found = compare(side(program("a"), "h100-dgx"), side(program("a"), "a100-80-dgx"))
    assert found.causes[0].kind is CauseKind.CLUSTER
    assert found.causes[0].text.startswith("h100-dgx -> a100-80-dgx, chip ")
    assert found.costs[CauseKind.CLUSTER].path_ns > 0


def test_saved_estimates_are_compared_by_their_numbers() -> None:
    """As `flint estimate --json` prints them; they equal what is kept of the estimate itself."""
    trace = Trace(Workload.single(program("a", gathers=1), {"name": "by hand"}))
    estimate = trace.estimate("h100-dgx")
    saved = snapshot_of_estimate(json.loads(json.dumps(estimate.to_json())))
    own = side(trace.workload, "h100-dgx").snapshot.estimates["h100-dgx"]
    kept = saved.estimates["h100-dgx"]
    assert replace(kept, chip=own.chip) == own
    slower = replace(saved, estimates={"h100-dgx": replace(kept, step_time_ns=2 * kept.step_time_ns)})  # fmt: skip
    assert broken(compare(Side(saved), Side(slower)), parse_budgets("step-time=+50%"))
    told = [str(c.kind) for c in compare(Side(saved), Side(slower)).causes]
    assert told == ["estimate"] and compare(Side(saved), Side(saved)).is_equal


@pytest.mark.parametrize(
    ("budgets", "holds"),
    [
        ("bytes=+64KiB", True), ("bytes=+65535", False), ("bytes:data=+0", False),
        ("bytes:model=+0", True), ("bytes=70kB", True), ("bytes=60kB", False), ("flops=+0", True),
        ("kernels=+99%", False), ("kernels=+100%", True), ("collectives=0", False),
        ("collectives=1", True), ("arguments=+0", True),
    ],
)  # fmt: skip
def test_budgets(budgets: str, holds: bool) -> None:
    found = diff(program("a"), program("a", gathers=1))
    assert bool(broken(found, parse_budgets(budgets))) is not holds


def test_a_broken_budget_says_which_line_broke_it() -> None:
    found = diff(program("a"), program("a", gathers=1), "h100-dgx")
    told = broken(found, parse_budgets("step-time=+2%,exposed-time=+1us,memory=+1GiB,mfu=+0"))
    assert [b.budget.name for b in told] == ["step-time", "exposed-time", "mfu"]
    cause, first, *_ = show.text(found, told).splitlines()[1:]
    assert cause.startswith("collectives: ")
    assert first.startswith("over budget: step time ")
    assert first.endswith("budget step-time=+2%: forward all_gather over data at m.py:30")


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("step-time", "FL720", "has no limit"),
        ("steptime=+2%", "FL720", "unknown budget 'steptime'; did you mean 'step-time'?"),
        ("flops:data=+2%", "FL720", "not split by mesh axis"),
        ("bytes=+2xB", "FL720", "bytes=+2xB is not a limit"),
        ("bytes=2%", "FL720", "bytes=2% is not a limit"),
        ("step-time=+1", "FL720", "step-time=+1 is not a limit"),
        ("bytes=-1", "FL720", "is not a limit"),
        ("bytes=+1e999", "FL720", "is not a limit"),
        ("bytes:dta=+0", "FL721", "the mesh has no axis 'dta'; did you mean 'data'?"),
        ("step-time=+0", "FL721", "step time is not known on both sides"),
    ],
)
def test_budgets_that_cannot_be_used(text: str, code: str, message: str) -> None:
    with pytest.raises(FlintError) as error:
        broken(diff(program("a"), program("a", gathers=1)), parse_budgets(text))
    assert error.value.code == code and message in error.value.message


def test_markdown_stays_short_and_takes_no_markup_from_names() -> None:
    names = [f"w{n}" for n in range(60)]
    hostile = "a|b`*<img src=x>@team\n\x1b[31m"
    a = program(*names[:30], scope="s")
    b = program(*names, hostile, scope=hostile, gathers=20)
    text = show.markdown(diff(a, b), title=hostile)
    assert len(text.splitlines()) <= 60
    assert "<img" not in text and "@team" not in text
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len({line.replace("\\|", "").count("|") for line in rows}) <= 2  # two tables


def test_html_and_json_say_the_same() -> None:
    found = diff(program("a"), program("a", gathers=1), "h100-dgx")
    assert "all_gather" in found._repr_html_() and "<script" not in found._repr_html_()
    whole = json.loads(json.dumps(found.to_json()))
    assert whole["equal"] is False and whole["causes"][0]["kind"] == "collectives"
    step = next(n for n in whole["numbers"] if n["name"] == "step-time")
    added = sum(c["after"]["path_ns"] - c["before"]["path_ns"] for c in whole["changes"])
    assert added + whole["shifted_ns"] == pytest.approx(step["after"] - step["before"], abs=1)


def test_names_with_numbers_are_one_family() -> None:
    assert family("params['layers'][12]['w1']") == "params['layers'][*]['w1']"
    assert family("model.layers.3.mlp.w2") == "model.layers.*.mlp.w2"


@pytest.mark.parametrize(
    ("sharding", "whole"),
    [
        ('[{"data"}, {}]', (32, 6)),
        ('[{"data", "model"}, {}]', (64, 6)),
        ('[{}, {"data":(1)2}]', (8, 12)),
        ("", (8, 6)),
        ("[{}]", (8, 6)),
    ],
)
def test_whole_shapes(sharding: str, whole: tuple[int, ...]) -> None:
    assert whole_shape((8, 6), sharding, {"data": 4, "model": 2}) == whole


def test_changes_of_one_line_are_one_row_and_add_up() -> None:
    found = diff(program("a", "b"), program("a", "b", rows=1024))
    (products,) = [c for c in found.changes if c.kind == "gemm"]
    assert products.kernels == 2
    flops = 2 * 512 * 64 * 64
    assert (products.before.flops, products.after.flops) == (2 * flops, 4 * flops)
    assert (products.before.executions, products.after.executions) == (2, 2)


def test_a_broken_budget_says_in_json_what_it_allows() -> None:
    found = diff(program("a", gathers=1), program("a", gathers=3))
    (told,) = broken(found, parse_budgets("bytes=+50%"))
    said = document(found, [told])["broken"][0]
    assert (said["before"], said["after"], said["most"]) == (65536, 3 * 65536, 1.5 * 65536)
    assert said["worst"] is not None and said["worst"].kind == "all_gather"
    assert said["memory_kind"] == ""


def test_the_same_operations_of_other_sizes_are_told_by_what_they_calculate() -> None:
    """Without other arguments: a stride, a window, a slice."""
    a, b = program("a"), program("a")
    flops = b.flops.copy()
    flops[flops > 0] //= 4
    (cause,) = diff(a, b.with_rows(flops=flops)).causes
    assert (cause.kind, cause.text) == (CauseKind.OPERATIONS, "other sizes: matmul -75.0% FLOPs")


def test_sums_of_large_steps_are_exact() -> None:
    """A row's FLOPs times its executions leave the range of int64."""
    p = program("a")
    flops = p.flops.copy()
    flops[flops > 0] = 1 << 61
    loop = Region(RegionKind.LOOP, 2, 3, 1000)
    region = p.region.copy()
    region[2] = 0
    found = side(p.with_rows(flops=flops, region=region, regions=(loop,))).snapshot.program
    assert found is not None and found.flops == found.operations[0].flops == 1000 << 61
