"""The summary of a workload: numbers, and their three renderings."""

import json

import pytest

from flint.backends.summary.summary import CollectiveTotal, summarize
from flint.ir.mesh import AxisRef, Group, Mesh, Route
from flint.ir.program import Collective, Flag, Kind, RegionKind
from flint.ir.rank_class import RankClass
from flint.ir.workload import Workload
from tests.program_rows import ProgramBuilder

MESH = Mesh.parse("data=4,model=2")
MODEL = Group((AxisRef("model"),))
DATA = Group((AxisRef("data"),))


def _program(builder=None):
    b = builder or ProgramBuilder(MESH)
    w = b.add("parameter", Kind.PARAMETER, name="w", dtype="f32", shape=(8, 8), result_bytes=256)
    b.begin_region(RegionKind.LOOP, 3, name="layers")
    c = b.add("stablehlo.tuple", Kind.VALUE, deps=[w])
    d = b.add("stablehlo.dot_general", deps=[c], flops=1024, dims=(1, 8, 8, 8), result_bytes=256)
    r = b.add(
        "sdy.all_reduce",
        Kind.COLLECTIVE,
        deps=[d],
        collective=Collective.ALL_REDUCE,
        group=MODEL,
        comm_bytes=256,
    )
    b.end_region([(c, r)])
    g = b.add(
        "sdy.all_gather",
        Kind.COLLECTIVE,
        deps=[r],
        collective=Collective.ALL_GATHER,
        group=DATA,
        comm_bytes=4096,
    )
    p = b.add(
        "stablehlo.collective_permute",
        Kind.COLLECTIVE,
        deps=[g],
        collective=Collective.PERMUTE,
        route=Route((AxisRef("data"),), 1),
        comm_bytes=16,
    )
    b.add("stablehlo.custom_call", deps=[p], flags=Flag.UNPRICED, result_bytes=4)
    return b.build()


@pytest.fixture
def summary():
    workload = Workload.single(_program(), {"name": "train", "source": "model.py"})
    workload.verify()
    return summarize(workload)


def test_loops_multiply_counts_bytes_and_flops(summary):
    (one,) = summary.classes
    assert (one.ranks, one.ops, one.executions) == (8, 5, 3 * 2 + 3)
    assert (one.flops, one.matmul_flops, one.parameter_bytes) == (3072, 3072, 256)


def test_collectives_are_added_by_kind_and_axes_largest_first(summary):
    assert summary.classes[0].collectives == (
        CollectiveTotal("all_gather", "data", 4, 1, 4096),
        CollectiveTotal("all_reduce", "model", 2, 3, 768),
        CollectiveTotal("permute", "data+1", 0, 1, 16),
    )


def test_text_is_whole_and_says_what_is_unpriced(summary):
    assert summary.to_text().split("\n") == [
        "program  train (model.py)",
        "mesh     data=4 x model=2",
        "devices  8",
        "",
        "ops                         5 (9 executed per step)",
        "FLOPs per device            3.07 kFLOP (3.07 kFLOP in matmuls)",
        "parameter bytes per device  256 B",
        "unpriced ops                stablehlo.custom_call x1 (FLOPs are a lower bound)",
        "",
        "collective  over    ranks  count     bytes",
        "all_gather  data        4      1  4.00 KiB",
        "all_reduce  model       2      3     768 B",
        "permute     data+1      -      1      16 B",
    ]


def test_json_holds_exact_numbers(summary):
    document = json.loads(json.dumps(summary.to_json()))
    assert document["mesh"] == {"data": 4, "model": 2}
    assert document["classes"][0]["unpriced"] == {"stablehlo.custom_call": 1}
    assert document["classes"][0]["collectives"][1] == {
        "collective": "all_reduce",
        "over": "model",
        "group_size": 2,
        "count": 3,
        "comm_bytes": 768,
    }


def test_rich_form_says_the_same_as_text():
    from rich.console import Console

    summary = summarize(Workload.single(_program(), {"name": "f[bold]", "source": "m.py"}))
    console = Console(width=200)
    with console.capture() as capture:
        console.print(summary.to_rich())
    rich_words = [w for w in capture.get().split() if set(w) != {"─"}]
    assert rich_words == summary.to_text().split()


def test_html_escapes_names():
    workload = Workload.single(_program(), {"name": "a<b>", "source": "m.py"})
    shown = summarize(workload)._repr_html_()
    assert "a&lt;b&gt;" in shown and "<b>" not in shown
    assert '<td>all_gather</td><td>data</td><td class="number">4</td>' in shown


def test_each_rank_class_has_its_part():
    silent = ProgramBuilder(MESH)
    silent.add("stablehlo.add", flops=1, result_bytes=4)
    workload = Workload(
        MESH,
        (_program(), silent.build()),
        (RankClass("first", 0, {"data": (0,)}), RankClass("rest", 1, {"data": (1, 2, 3)})),
    )
    workload.verify()
    found = summarize(workload)
    assert [(c.name, c.ranks, c.flops) for c in found.classes] == [
        ("first", 2, 3072),
        ("rest", 6, 1),
    ]
    assert "class rest" in found.to_text() and "communication" in found.to_text()
    assert "<h4>class rest</h4>" in found._repr_html_()
