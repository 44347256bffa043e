"""Graph views of a program."""

import json

import networkx
import pytest

from flint.backends.summary.graph import FORMATS, to_dot, to_graphml, to_json, to_networkx
from flint.ir.mesh import AxisRef, Group, Mesh
from flint.ir.program import Collective, Flag, Kind, RegionKind
from tests.program_rows import ProgramBuilder

MESH = Mesh.parse("data=4,model=2")


@pytest.fixture(scope="module")
def program():
    b = ProgramBuilder(MESH)
    w = b.add(
        "parameter",
        Kind.PARAMETER,
        name='params["w"]',
        dtype="f32",
        shape=(8, 4),
        flags=Flag.DONATED,
    )
    b.begin_region(RegionKind.LOOP, 3, name="layers")
    c = b.add("while.carry", Kind.VALUE, deps=[w], dtype="f32", shape=(8, 4))
    d = b.add("stablehlo.dot_general", deps=[c, w], dtype="f32", shape=(8, 8), flops=1024)
    r = b.add(
        "sdy.all_reduce",
        Kind.COLLECTIVE,
        deps=[d],
        collective=Collective.ALL_REDUCE,
        group=Group((AxisRef("model"),)),
        comm_bytes=2048,
    )
    b.end_region([(c, r)])
    b.add("stablehlo.add", deps=[r, w], dtype="f32", flags=Flag.IN_PLACE, alias=w)
    built = b.build()
    built.verify()
    return built


def test_networkx_has_rows_dependencies_and_carries(program):
    graph = to_networkx(program)
    assert list(graph) == [0, 1, 2, 3, 4]
    edges = {(s, t): d["carried"] for s, t, d in graph.edges(data=True)}
    assert edges == {
        (0, 1): False,
        (0, 2): False,
        (1, 2): False,
        (2, 3): False,
        (0, 4): False,
        (3, 4): False,
        (3, 1): True,
    }
    assert graph.nodes[3]["group"] == "model"
    assert (graph.nodes[3]["trips"], graph.nodes[3]["region"]) == (3, 0)
    assert graph.nodes[0]["flags"] == "donated"
    assert "comm_bytes" not in graph.nodes[2]
    assert (graph.nodes[4]["alias"], graph.nodes[4]["flags"]) == (0, "in_place")
    assert "alias" not in graph.nodes[2]


def test_without_carried_edges_the_graph_is_acyclic(program):
    graph = to_networkx(program)
    graph.remove_edges_from([(s, t) for s, t, c in graph.edges(data="carried") if c])
    assert networkx.is_directed_acyclic_graph(graph)


def test_json_document(program):
    document = json.loads(to_json(program))
    assert document["schema"] == "flint.graph/1"
    assert document["mesh"] == {"data": 4, "model": 2}
    assert [n["id"] for n in document["nodes"]] == [0, 1, 2, 3, 4]
    assert document["nodes"][2]["shape"] == [8, 8]
    assert document["edges"][-1] == {"source": 3, "target": 1, "carried": True}
    assert document["regions"][0]["trip_count"] == 3


def test_graphml_is_read_back_by_networkx(program):
    graph = networkx.parse_graphml(to_graphml(program), node_type=int)
    assert set(graph.edges) == set(to_networkx(program).edges)
    assert graph.nodes[2]["flops"] == 1024
    assert graph.nodes[0]["name"] == 'params["w"]'
    assert json.loads(graph.graph["regions"])[0]["name"] == "layers"


def test_dot_line_by_line(program):
    assert to_dot(program).split("\n") == [
        "// flint.graph/1",
        "digraph program {",
        "  rankdir=TB;",
        '  node [shape=box, fontname="sans-serif"];',
        '  n0 [label="params[\\"w\\"]\\nf32[8,4]", style=filled, fillcolor="#d5e3f0"];',
        "  subgraph cluster_0 {",
        '    label="layers x3";',
        '    n1 [label="while.carry\\nf32[8,4]"];',
        '    n2 [label="dot_general\\nf32[8,8]"];',
        '    n3 [label="sdy.all_reduce\\nmodel 2.00 KiB", style=filled, fillcolor="#f6c28b"];',
        "  }",
        '  n4 [label="add\\nf32[]"];',
        "  n0 -> n1;",
        "  n0 -> n2;",
        "  n1 -> n2;",
        "  n2 -> n3;",
        "  n0 -> n4;",
        "  n3 -> n4;",
        "  n3 -> n1 [style=dashed, constraint=false];",
        "}",
        "",
    ]


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_an_empty_program_is_a_graph_too(name):
    assert FORMATS[name](ProgramBuilder(MESH).build()).endswith("\n")
