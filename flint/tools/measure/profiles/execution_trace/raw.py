"""A node of a Chakra trace as its files say it, and the JSON that Chakra's own feeder reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from flint.backends.chakra.schema import NodeType
from flint.errors import Malformed
from flint.tools.measure.profiles.execution_trace.nodes import list_of, object_of
from flint.tools.measure.profiles.kineto.fields import integer
from flint.tools.measure.profiles.kineto.stream import JsonStream

#: The key of the list of nodes.
WORKLOAD_GRAPH = "workload_graph"
#: What nodes of communication have beside those of all.
_COMM = ("comm_type", "comm_size", "comm_src", "comm_dst", "comm_tag", "tensor_size", "pg_name")


@dataclass(frozen=True, slots=True)
class RawNode:
    """A node as every form of the file says it; times in microseconds."""

    number: int
    name: str
    kind: NodeType
    ctrl_deps: tuple[int, ...]
    data_deps: tuple[int, ...]
    start: int
    duration: int
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    attributes: Mapping[str, Any]


def graph_nodes(document: JsonStream) -> Iterator[RawNode]:
    """Nodes of a `workload_graph`, from which on the document is read.

    Raises Malformed for what is none.
    """
    for key in document.members():
        if key == WORKLOAD_GRAPH:
            yield from map(_graph_node, document.elements())
        else:
            document.value()


def _graph_node(document: object) -> RawNode:
    found = object_of(document)
    kind = found.get("NodeType")
    if type(kind) is not int or kind not in NodeType._value2member_map_:
        raise Malformed("it has no type of a node")
    named = {"is_cpu_op": found.get("is_cpu_op"), "num_ops": found.get("num_ops")}
    named |= {k: found.get(k) for k in (*_COMM, "stream")}
    return RawNode(
        identity(found.get("Id")), str(found.get("Name", "")), NodeType(kind),
        _identities(found, "ctrlDeps", "ctrl_deps"), _identities(found, "data_deps", "dataDeps"),
        0, max(0, integer(found.get("runtime"), 0)), {}, {},
        {k: v for k, v in named.items() if v is not None},
    )  # fmt: skip


def _identities(found: Mapping[str, Any], *keys: str) -> tuple[int, ...]:
    listed: object = next((found[k] for k in keys if k in found), [])
    return tuple(map(identity, list_of(listed)))


def identity(value: object) -> int:
    """An id, which is no negative number. Raises Malformed for what is none."""
    found = integer(value, -1)
    if found < 0:
        raise Malformed("an id is not a number")
    return found
