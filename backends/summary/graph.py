"""A Program as a graph for other tools: networkx, JSON, GraphML and DOT."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from flint.ir.program import Flag, Kind, Program, Region, RegionKind, Row
from flint.text import format_bytes, one_line, printable, printable_json

if TYPE_CHECKING:
    import networkx

#: Version of the JSON form.
SCHEMA = "flint.graph/1"


def to_networkx(program: Program) -> networkx.DiGraph[int]:
    """The program as a directed graph: a node per row, an edge from a row to each that reads it.

    Values carried by a loop are edges too, with `carried=True`; they are the only edges that point
    back. Node attributes are plain numbers and strings, byte and flop counts are of one execution
    and `trips` says how often the row runs in a step. Regions are in `graph.graph["regions"]`.
    """
    import networkx

    graph: networkx.DiGraph[int] = networkx.DiGraph(
        mesh=str(program.mesh), regions=[_region(r) for r in program.regions]
    )
    for row in map(program.row, range(len(program))):
        graph.add_node(row.number, **_attributes(row, int(program.trips[row.number])))
    for source, target, carried in _edges(program):
        graph.add_edge(source, target, carried=carried)
    return graph


def to_json(program: Program) -> str:
    """The program as a JSON document (schema `flint.graph/1`): mesh, regions, nodes, edges."""
    rows = map(program.row, range(len(program)))
    document = {
        "schema": SCHEMA,
        "mesh": program.mesh.shape,
        "regions": [_region(r) for r in program.regions],
        "nodes": [
            {"id": r.number, **_attributes(r, int(program.trips[r.number])), "shape": r.shape}
            for r in rows
        ],
        "edges": [
            {"source": s, "target": t, **({"carried": True} if carried else {})}
            for s, t, carried in _edges(program)
        ],
    }
    return printable_json(json.dumps(document, indent=1, ensure_ascii=False)) + "\n"


def to_graphml(program: Program) -> str:
    """The program as GraphML, for Gephi, yEd, Cytoscape and networkx."""
    import networkx

    graph = to_networkx(program)
    graph.graph["regions"] = json.dumps(graph.graph["regions"])  # GraphML holds scalars only
    graph.graph["mesh"] = _xml(graph.graph["mesh"])
    for _, attributes in graph.nodes(data=True):
        attributes.update(_plain(attributes))
    first, *rest = networkx.generate_graphml(graph)
    return "\n".join([first, f"<!-- {SCHEMA} -->", *rest]) + "\n"


def to_dot(program: Program) -> str:
    """The program as Graphviz DOT: loops and branches are clusters, communication is filled."""
    lines = [
        f"// {SCHEMA}",
        "digraph program {",
        "  rankdir=TB;",
        '  node [shape=box, fontname="sans-serif"];',
    ]
    lines += _dot_rows(program, -1, 0, len(program), "  ")
    for source, target, carried in _edges(program):
        style = " [style=dashed, constraint=false]" if carried else ""
        lines.append(f"  n{source} -> n{target}{style};")
    return "\n".join([*lines, "}", ""])


#: Format names of `flint export`.
FORMATS: dict[str, Callable[[Program], str]] = {
    "json": to_json,
    "graphml": to_graphml,
    "dot": to_dot,
}


def _attributes(row: Row, trips: int) -> dict[str, Any]:
    """What a reader of a graph wants of a row, without what is empty."""
    values: dict[str, Any] = {
        "opcode": row.opcode,
        "kind": row.kind.name.lower(),
        "dtype": row.dtype,
        "shape": "x".join(map(str, row.shape)),
        "result_bytes": row.result_bytes,
        "operand_bytes": row.operand_bytes,
        "flops": row.flops,
        "trips": trips,
        "collective": row.collective.name.lower() if row.collective else "",
        "group": str(row.group) if row.group is not None else "",
        "route": str(row.route) if row.route is not None else "",
        "comm_bytes": row.comm_bytes if row.kind >= Kind.COLLECTIVE else None,
        "channel": row.channel if row.channel >= 0 else None,
        "stream": row.stream,
        "name": row.name,
        "scope": row.scope,
        "location": row.location,
        "cause": row.cause,
        "phase": row.phase.name.lower(),
        "flags": ",".join(f.name.lower() for f in Flag if f in row.flags and f.name),
        "alias": row.alias if row.alias >= 0 else None,
        "region": row.region if row.region >= 0 else None,
    }
    return {k: v for k, v in values.items() if v is not None and v != ""}


def _plain(attributes: dict[str, Any]) -> dict[str, Any]:
    """Texts without control characters: XML can hold none."""
    return {k: _xml(v) if isinstance(v, str) else v for k, v in attributes.items()}


def _xml(text: str) -> str:
    return one_line(text).replace("\ufffe", "\\ufffe").replace("\uffff", "\\uffff")


def _region(region: Region) -> dict[str, Any]:
    return {
        "kind": region.kind.name.lower(),
        "name": region.name,
        "start": region.start,
        "stop": region.stop,
        "trip_count": region.trip_count,
        "parent": region.parent,
        "location": region.location,
    }


def _edges(program: Program) -> Iterator[tuple[int, int, bool]]:
    for source, target in zip(program.deps.tolist(), program.dep_owner.tolist(), strict=True):
        yield source, target, False
    for region in program.regions:
        for carried, produced in region.carries:
            if carried != produced:
                yield produced, carried, True


def _dot_rows(program: Program, parent: int, start: int, stop: int, pad: str) -> list[str]:
    lines: list[str] = []
    inner = [(i, r) for i, r in enumerate(program.regions) if r.parent == parent]
    at = start
    for index, region in sorted(inner, key=lambda pair: pair[1].start):
        lines += [_dot_node(program.row(i), pad) for i in range(at, region.start)]
        label = _quote(f"{region.name or region.kind.name.lower()} x{region.trip_count}")
        if region.kind is RegionKind.BRANCH:
            label = _quote(f"branch {region.name}".strip())
        lines += [f"{pad}subgraph cluster_{index} {{", f"{pad}  label={label};"]
        lines += _dot_rows(program, index, region.start, region.stop, pad + "  ")
        lines.append(pad + "}")
        at = region.stop
    return lines + [_dot_node(program.row(i), pad) for i in range(at, stop)]


def _dot_node(row: Row, pad: str) -> str:
    label = row.opcode.removeprefix("stablehlo.")
    detail = f"{row.dtype}[{','.join(map(str, row.shape))}]" if row.dtype else ""
    style = ""
    if row.kind >= Kind.COLLECTIVE:
        where = row.group if row.group is not None else row.route
        detail = f"{where} {format_bytes(row.comm_bytes)}"
        style = ', style=filled, fillcolor="#f6c28b"'
    elif row.kind is Kind.PARAMETER:
        label, style = row.name or label, ', style=filled, fillcolor="#d5e3f0"'
    return f"{pad}n{row.number} [label={_quote(label, detail)}{style}];"


def _quote(*lines: str) -> str:
    flat = (printable(t.replace("\n", " ")) for t in lines if t)
    safe = (t.replace("\\", "\\\\").replace('"', '\\"') for t in flat)
    return '"' + "\\n".join(safe) + '"'
