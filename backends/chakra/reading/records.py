"""What a check needs of a node but for its id and dependencies, and what is wrong with it alone.

Nodes of a loop, and those of ranks of one class, differ in little else: so each kind of record is
decoded and examined once, and a trace is an array of numbers of kinds.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from flint.backends.chakra.reading.reader import TraceNode
from flint.backends.chakra.schema import SIMULATED_COLLECTIVES, CommType, NodeType

#: How feeders read an attribute; another kind reads as 0 or throws. docs/chakra.md
ATTRIBUTE_KINDS: dict[str, str] = {
    "is_cpu_op": "bool_val",
    "num_ops": "int64_val",
    "tensor_size": "uint64_val",
    "comm_type": "int64_val",
    "comm_size": "int64_val",
    "comm_priority": "int32_val",
    "comm_src": "int32_val",
    "comm_dst": "int32_val",
    "comm_tag": "int32_val",
    "pg_name": "string_val",
    "involved_dim": "bool_list",
}
#: Kinds between which ASTRA-sim's feeder converts.
_INTEGERS = frozenset(
    f"{kind}_val"
    for kind in (
        *("int32", "int64", "uint32", "uint64", "sint32", "sint64"),
        *("fixed32", "fixed64", "sfixed32", "sfixed64", "bool"),
    )
)
_REQUIRED = {
    NodeType.COMM_COLL: ("comm_type", "comm_size"),
    NodeType.COMM_SEND: ("comm_size", "comm_tag", "comm_dst"),
    NodeType.COMM_RECV: ("comm_size", "comm_tag", "comm_src"),
}
#: What the roofline divides by each other, and the finding where it is below 1.
_ROOFLINE = {"num_ops": "zero-num-ops", "tensor_size": "zero-tensor-size"}
#: ASTRA-sim matches messages by their tag modulo this.
TAG_MODULUS = 500_000_000


class Remark(NamedTuple):
    """What is said once for all nodes that have it. `code` is that of the finding, "" for a note.

    `text` follows the attribute's name in a sentence; `stored` is the kind where it is about that.
    """

    code: str
    attribute: str
    text: str
    stored: str = ""


class Record(NamedTuple):
    """A kind of node. `group` is pg_name or a tuple of involved dimensions.

    `label` is the node's name, "" where it has none; `name` the same of a send or receive, "" of
    others. `problems` are (code, what follows the label in a sentence).
    """

    type: NodeType
    kind: int
    comm_bytes: int
    group: str | tuple[bool, ...]
    source: int
    target: int
    tag: int
    label: str
    name: str
    problems: tuple[tuple[str, str], ...]
    remarks: tuple[Remark, ...]


def examine(node: TraceNode, has_roofline: bool | None) -> Record:
    """A node's kind, and everything that is wrong with it on its own.

    `has_roofline` is what the simulator's configuration says, None where there is none.
    """
    problems: list[tuple[str, str]] = []
    remarks: list[Remark] = []
    _examine_attributes(node, problems, remarks)
    _examine_type(node, problems)
    _examine_sizes(node, problems)
    if node.type is NodeType.COMP:
        _examine_work(node, has_roofline, problems, remarks)

    def number(name: str, default: int) -> int:
        value = node.attributes.get(name, ("", default))[1]
        return signed64(value) if isinstance(value, int) else default

    involved = node.attributes.get("involved_dim", ("", None))[1]
    name = node.attributes.get("pg_name", ("", ""))[1]
    group: str | tuple[bool, ...] = str(name) if name else ""
    if not group and isinstance(involved, tuple):
        group = tuple(bool(v) for v in involved)
    return Record(
        node.type,
        number("comm_type", 0),
        number("comm_size", 0),
        group,
        number("comm_src", -1),
        number("comm_dst", -1),
        number("comm_tag", 0),
        node.name,
        node.name if node.type in (NodeType.COMM_SEND, NodeType.COMM_RECV) else "",
        tuple(problems),
        tuple(remarks),
    )


def signed64(value: int) -> int:
    """The 64 bits of an unsigned number read as a signed one, which a column can hold."""
    return value if value < 1 << 63 else value - (1 << 64)


def _examine_attributes(
    node: TraceNode, problems: list[tuple[str, str]], remarks: list[Remark]
) -> None:
    for name, (kind, value) in node.attributes.items():
        expected = ATTRIBUTE_KINDS.get(name, kind)
        if kind == expected:
            continue
        if kind in _INTEGERS and expected in _INTEGERS:
            # The older feeder reads 0, which is right where 0 is what is stored.
            code = "attribute-type" if value else ""
            remarks.append(Remark(code, name, f"as {kind}, not {expected}", kind))
        else:
            what = f"stores {name} as {kind or 'nothing'}, not {expected}"
            problems.append(("attribute-type", what))
    for name in _REQUIRED.get(node.type, ()):
        if name not in node.attributes:
            problems.append(("attribute-missing", f"has no {name}"))


def _examine_type(node: TraceNode, problems: list[tuple[str, str]]) -> None:
    wrong = {
        NodeType.INVALID: "invalid-node",
        NodeType.METADATA: "metadata-node",
        NodeType.MEM_LOAD: "unsupported-node",
        NodeType.MEM_STORE: "unsupported-node",
    }.get(node.type)
    if wrong:
        problems.append((wrong, f"has type {node.type.name}"))
    if node.attributes.get("is_cpu_op", ("", False))[1]:
        problems.append(("cpu-op", "is marked is_cpu_op"))


def _number(node: TraceNode, name: str) -> Any:
    found = node.attributes.get(name, ("", None))[1]
    return found if isinstance(found, int | float) else None


def _examine_work(
    node: TraceNode,
    has_roofline: bool | None,
    problems: list[tuple[str, str]],
    remarks: list[Remark],
) -> None:
    """Work of a computation, which only the roofline reads."""
    for name, zero in _ROOFLINE.items():
        value = _number(node, name)
        if name not in node.attributes:
            if has_roofline:
                problems.append(("attribute-missing", f"has no {name}"))
            else:
                remarks.append(Remark("", name, "is missing"))
        elif value is not None and value < 1:
            if has_roofline is False:
                remarks.append(Remark("", name, "is below 1"))
            else:
                problems.append((zero, f"has {name} {value}"))


def _examine_sizes(node: TraceNode, problems: list[tuple[str, str]]) -> None:
    if node.type not in (NodeType.COMM_COLL, NodeType.COMM_SEND, NodeType.COMM_RECV):
        return
    size, tag, kind = (_number(node, n) for n in ("comm_size", "comm_tag", "comm_type"))
    if size is not None and size < 1:
        problems.append(("zero-comm-size", f"has comm_size {size}"))
    if tag is not None and tag < 0:
        problems.append(("negative-tag", f"has comm_tag {tag}"))
    if node.type is NodeType.COMM_COLL and kind is not None and kind not in SIMULATED_COLLECTIVES:
        known = CommType._value2member_map_.get(kind)
        word = known.name if isinstance(known, CommType) else f"comm_type {kind}"
        problems.append(("unsupported-collective", f"is a {word}"))
