"""Explanations of collectives and scopes."""

import json

import pytest

from flint.backends.summary.explain import (
    communication_rows,
    explain_collective,
    explain_scope,
    list_collectives,
)
from flint.errors import FlintError
from flint.ir.mesh import AxisRef, Group, Mesh, Route
from flint.ir.program import Collective, Kind, Phase, RegionKind
from tests.program_rows import ProgramBuilder

MESH = Mesh.parse("data=4,model=2")
RULE = "#sdy.op_sharding_rule<([i, k], [k, j])->([i, j]) {i=8, j=8, k=8} reduction={k}>"
CAUSE = f'[{{}}, {{"model"}}] -> [{{}}, {{}}] after stablehlo.dot_general {RULE}'


@pytest.fixture(scope="module")
def program():
    b = ProgramBuilder(MESH)
    w = b.add("parameter", Kind.PARAMETER, name="params['w']", dtype="f32", shape=(8, 4))
    b.begin_region(RegionKind.LOOP, 3, name="layers", location="model.py:20")
    carried = b.add("while.carry", Kind.VALUE, deps=[w], dtype="f32", shape=(8, 4))
    dot = b.add(
        "stablehlo.dot_general",
        deps=[carried],
        dtype="f32",
        shape=(8, 8),
        flops=1024,
        result_bytes=256,
        scope="layers/attention/wq",
        location="model.py:21",
        phase=Phase.FORWARD,
    )
    reduce = b.add(
        "sdy.all_reduce",
        Kind.COLLECTIVE,
        deps=[dot],
        dtype="f32",
        shape=(8, 8),
        result_bytes=256,
        collective=Collective.ALL_REDUCE,
        group=Group((AxisRef("model"),)),
        comm_bytes=2048,
        scope="layers/attention/wq",
        location="model.py:21",
        cause=CAUSE,
        phase=Phase.FORWARD,
    )
    seen = b.add("stablehlo.reshape", Kind.VALUE, deps=[reduce], dtype="f32", shape=(64,))
    out = b.add("stablehlo.exponential", deps=[seen], dtype="f32", shape=(64,), scope="layers/mlp")
    b.end_region([(carried, reduce)])
    b.add(
        "stablehlo.collective_permute",
        Kind.COLLECTIVE,
        deps=[out],
        dtype="f32",
        shape=(64,),
        collective=Collective.PERMUTE,
        route=Route((AxisRef("data"),), 1),
        comm_bytes=256,
        scope="loss",
    )
    built = b.build()
    built.verify()
    return built


def test_a_collective_is_explained_line_by_line(program):
    assert explain_collective(program, 0).to_text().split("\n") == [
        "#0 all_reduce  (%3 sdy.all_reduce)",
        "  over      model: 4 groups of 2 ranks",
        "  payload   2.00 KiB (2,048 B) from each rank",
        "  result    f32[8,8] on each rank",
        "  count     3 (layers x3), 6.00 KiB (6,144 B) per step",
        "  scope     layers/attention/wq",
        "  source    model.py:21",
        "  phase     forward",
        '  because   [{}, {"model"}] -> [{}, {}]',
        "            after stablehlo.dot_general",
        "            " + RULE,
        "  operands  %2 stablehlo.dot_general : f32[8,8]  layers/attention/wq  model.py:21",
        "  read by   %2 stablehlo.dot_general : f32[8,8]  layers/attention/wq  model.py:21",
        "            %5 stablehlo.exponential : f32[64]  layers/mlp",
    ]


def test_messages_have_a_route_and_no_groups(program):
    text = explain_collective(program, 1).to_text()
    assert "  over      data+1\n" in text
    assert "  count     1, 256 B per step" in text
    assert "  read by   nobody" in text


def test_numbers_count_communication_rows(program):
    assert communication_rows(program) == [3, 6]
    assert [(e.number, e.row) for e in list_collectives(program)] == [(0, 3), (1, 6)]


def test_a_number_that_is_not_there(program):
    with pytest.raises(FlintError) as caught:
        explain_collective(program, 2)
    assert str(caught.value).split("\n") == [
        "error[FL306]: there is no collective 2",
        "  help: they are 0 to 1",
    ]


@pytest.mark.parametrize(
    ("pattern", "ops"),
    [
        ("layers/attention/wq", 6),
        ("attention", 6),
        ("attention/wq", 6),
        ("layers/*", 9),
        ("*mlp", 3),
        ("loss", 1),
    ],
)
def test_scope_patterns(program, pattern, ops):
    assert explain_scope(program, pattern).ops == ops


@pytest.mark.parametrize("pattern", ["atten", "layers?attention", "wq/attention", ""])
def test_scope_patterns_match_whole_parts(program, pattern):
    with pytest.raises(FlintError) as caught:
        explain_scope(program, pattern)
    assert caught.value.code == "FL306"


def test_a_scope_that_is_not_there_names_the_nearest(program):
    with pytest.raises(FlintError, match="did you mean 'attention'"):
        explain_scope(program, "atention")
    with pytest.raises(FlintError, match="did you mean 'layers/attention/wq'"):
        explain_scope(program, "layers/attention/wk")


def test_a_scope_adds_up_with_trip_counts(program):
    found = explain_scope(program, "layers/attention/wq")
    assert (found.flops, found.result_bytes) == (3 * 1024, 3 * 512)
    assert found.phases == {"forward": 6}
    assert found.locations == ("model.py:21",)
    assert [c.number for c in found.collectives] == [0]
    assert found.to_text().startswith(
        "scope layers/attention/wq\n  matches   layers/attention/wq\n"
    )


def test_json_is_plain(program):
    one = json.loads(json.dumps(explain_collective(program, 0).to_json()))
    assert " ".join(one["cause"]) == CAUSE
    assert (len(one["cause"]), one["parameters"]) == (3, [])
    assert one["loops"] == [{"name": "layers", "trip_count": 3, "location": "model.py:20"}]
    assert json.loads(json.dumps(explain_scope(program, "loss").to_json()))["ops"] == 1


def test_branches_are_said_to_be_conditional():
    b = ProgramBuilder(MESH)
    b.begin_region(RegionKind.BRANCH, 1, choice=0)
    b.add(
        "sdy.all_gather",
        Kind.COLLECTIVE,
        collective=Collective.ALL_GATHER,
        group=Group((AxisRef("data"),)),
        comm_bytes=8,
    )
    b.end_region()
    assert "1, if its branch is taken, 8 B" in explain_collective(b.build(), 0).to_text()


def test_operands_name_parameters_through_rows_without_work():
    b = ProgramBuilder(MESH)
    w = b.add(
        "parameter", Kind.PARAMETER, name="params['w']", dtype="f32", shape=(8,), cause='[{"data"}]'
    )
    v = b.add("stablehlo.reshape", Kind.VALUE, deps=[w], dtype="f32", shape=(2, 4))
    b.add(
        "sdy.all_gather",
        Kind.COLLECTIVE,
        deps=[v],
        collective=Collective.ALL_GATHER,
        group=Group((AxisRef("data"),)),
        comm_bytes=8,
    )
    assert [str(o) for o in explain_collective(b.build(), 0).operands] == [
        "%0 parameter params['w'] : f32[8]  [{\"data\"}]"
    ]


def test_a_collective_names_the_parameters_that_it_moves():
    b = ProgramBuilder(MESH)
    stacked = b.add("parameter", Kind.PARAMETER, name="params['w']")
    scale = b.add("parameter", Kind.PARAMETER, name="scale")
    carried = b.add("while.carry", Kind.VALUE, deps=[stacked])
    layer = b.add("stablehlo.dynamic_slice", deps=[carried])
    computed = b.add("stablehlo.multiply", deps=[layer, scale])
    common = {
        "collective": Collective.ALL_GATHER,
        "group": Group((AxisRef("data"),)),
        "comm_bytes": 8,
    }
    b.add("sdy.all_gather", Kind.COLLECTIVE, deps=[layer], **common)
    b.add("sdy.all_gather", Kind.COLLECTIVE, deps=[computed], **common)
    moved, made = list_collectives(b.build())
    assert (moved.parameters, made.parameters) == (("params['w']",), ())
    assert "  moves     params['w']\n" in moved.to_text()
