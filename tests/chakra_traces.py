"""Small programs to write, and traces made message by message with protobuf, as others make them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flint.backends.chakra.schema import NodeType, messages
from flint.backends.chakra.writing.encode import varint
from flint.ir.mesh import AxisRef, Group, Mesh, Route
from flint.ir.program import Collective, Kind, Program, RegionKind
from tests.program_rows import ProgramBuilder

KINDS = {
    "is_cpu_op": "bool_val",
    "num_ops": "int64_val",
    "tensor_size": "uint64_val",
    "comm_type": "int64_val",
    "comm_size": "int64_val",
    "comm_src": "int32_val",
    "comm_dst": "int32_val",
    "comm_tag": "int32_val",
    "pg_name": "string_val",
    "involved_dim": "bool_list",
}


def node(id: int, type: NodeType, deps: tuple[int, ...] = (), **attributes: Any) -> Any:
    """A protobuf Node. An attribute is a value of its usual kind, or (kind, value)."""
    message = messages().Node(id=id, name=f"{type.name}_NODE {id}", type=int(type))
    message.data_deps.extend(deps)
    for name, value in attributes.items():
        kind, value = value if isinstance(value, tuple) else (KINDS[name], value)
        attribute = message.attr.add(name=name)
        if kind.endswith("_list"):
            getattr(attribute, kind).values.extend(value)
        else:
            setattr(attribute, kind, value)
    return message


def comp(id: int, deps: tuple[int, ...] = (), **changes: Any) -> Any:
    return node(id, NodeType.COMP, deps, **{"num_ops": 10, "tensor_size": 20} | changes)


def coll(id: int, group: str, deps: tuple[int, ...] = (), **changes: Any) -> Any:
    values = {"comm_type": 0, "comm_size": 64, "comm_tag": 0, "pg_name": group}
    return node(id, NodeType.COMM_COLL, deps, **values | changes)


def send(id: int, rank: int, to: int, deps: tuple[int, ...] = (), **changes: Any) -> Any:
    values = {"comm_size": 64, "comm_tag": 7, "comm_src": rank, "comm_dst": to}
    return node(id, NodeType.COMM_SEND, deps, **values | changes)


def recv(id: int, rank: int, source: int, deps: tuple[int, ...] = (), **changes: Any) -> Any:
    values = {"comm_size": 64, "comm_tag": 7, "comm_src": source, "comm_dst": rank}
    return node(id, NodeType.COMM_RECV, deps, **values | changes)


def trace_bytes(nodes: list[Any], *, metadata: bool = True) -> bytes:
    """A file: the metadata record and one record per node."""
    first = [messages().GlobalMetadata(version="1.0.0")] if metadata else []
    records = [m.SerializeToString(deterministic=True) for m in [*first, *nodes]]
    return b"".join(varint(len(r)) + r for r in records)


def put_traces(
    folder: Path, ranks: list[list[Any]], groups: dict[str, list[int]] | None = None
) -> Path:
    """Traces of ranks 0, 1, ... and their group file."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, nodes in enumerate(ranks):
        (folder / f"t.{rank}.et").write_bytes(trace_bytes(nodes))
    (folder / "comm_group.json").write_text(json.dumps(groups or {}))
    return folder


def over(*names: str) -> Group:
    """The group over whole axes."""
    return Group(tuple(AxisRef(n) for n in names))


def layered_program(mesh: Mesh | str = "data=4,model=2", layers: int = 3) -> Program:
    """A scanned stack of layers with every communication that the writer knows."""
    b = ProgramBuilder(Mesh.parse(mesh))
    x = b.add("param", Kind.PARAMETER, result_bytes=256, name="x")
    b.begin_region(RegionKind.LOOP, layers, name="layers")
    h = b.add("carry", Kind.VALUE, deps=[x])
    dot = b.add(
        "stablehlo.dot_general",
        deps=[h],
        flops=4096,
        result_bytes=512,
        operand_bytes=1024,
        scope="layers/attention",
    )
    reduced = b.add(
        "sdy.all_reduce",
        Kind.COLLECTIVE,
        deps=[dot],
        collective=Collective.ALL_REDUCE,
        group=over("model"),
        comm_bytes=512,
    )
    moved = b.add(
        "sdy.collective_permute",
        Kind.COLLECTIVE,
        deps=[reduced],
        collective=Collective.PERMUTE,
        route=Route((AxisRef("data"),), 1),
        comm_bytes=128,
    )
    b.end_region([(h, moved)])
    told = b.add(
        "broadcast",
        Kind.COLLECTIVE,
        deps=[moved],
        collective=Collective.BROADCAST,
        group=over("data", "model"),
        comm_bytes=100,
    )
    shifted = b.add(
        "shift",
        Kind.COLLECTIVE,
        deps=[told],
        collective=Collective.PERMUTE,
        route=Route((AxisRef("data"),), 1, wrap=False),
        comm_bytes=32,
    )
    b.add("stablehlo.add", deps=[shifted], flops=1, result_bytes=4, operand_bytes=8)
    program = b.build()
    program.verify()
    return program
