"""Kinds of records, each decoded once, as rows of a table of numbers.

`places` says where in a record the values stand in which ranks of one class differ, so that the
file of another rank need not be decoded at all (see `parser.References`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from flint.backends.chakra.reading.reader import Decoder, TraceNode
from flint.backends.chakra.schema import SIMULATED_COLLECTIVES, VALUE_FIELDS, CommType, NodeType
from flint.ir.program import Int64s

# What a check needs of a node except its id and dependencies, and what is wrong with it alone.
#
# Nodes of a loop, and those of ranks of one class, differ in little else: so each kind of record is
# decoded and examined once, and a trace is an array of numbers of kinds.

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
    NodeType.MEM_LOAD: ("tensor_size",),
    NodeType.MEM_STORE: ("tensor_size",),
}
_MEMORY = (NodeType.MEM_LOAD, NodeType.MEM_STORE)
_REMOTE = "is loaded or stored: ASTRA-sim stops unless its memory file has some"
#: What the roofline divides by each other, and the finding where it is below 1.
ROOFLINE = {"num_ops": "zero-num-ops", "tensor_size": "zero-tensor-size"}
#: How nodes begin that are what a host was measured to do.
_HOST_NODE = "COMP_NODE host."
_OF_HOST = (
    "is true: the host's own time, which ASTRA-sim runs beside kernels, without its statistics"
)
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


def examine(node: TraceNode, has_roofline: bool | None, has_memory: bool | None) -> Record:
    """A node's kind, and everything that is wrong with it on its own.

    `has_roofline` and `has_memory` (remote memory) are what the simulator's configuration says, None
    where there is none.
    """
    problems: list[tuple[str, str]] = []
    remarks: list[Remark] = []
    _examine_attributes(node, problems, remarks)
    _examine_type(node, problems, remarks)
    if node.type in _MEMORY:
        _examine_memory(node, has_memory, problems, remarks)
    _examine_sizes(node, problems)
    if node.type is NodeType.COMP:
        _examine_work(node, has_roofline, problems, remarks)

    def number(name: str, default: int) -> int:
        value = node.attributes.get(name, ("", default))[1]
        return signed64(value) if isinstance(value, int) else default

    involved = node.attributes.get("involved_dim", ("", None))[1]
    name = node.attributes.get("pg_name", ("", ""))[1]
    group: str | tuple[bool, ...] = str(name) if name else ""
    if group in ("", "0") and isinstance(involved, tuple):
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


def _examine_type(node: TraceNode, problems: list[tuple[str, str]], remarks: list[Remark]) -> None:
    wrong = {
        NodeType.INVALID: "invalid-node",
        NodeType.METADATA: "metadata-node",
    }.get(node.type)
    if wrong:
        problems.append((wrong, f"has type {node.type.name}"))
    if node.attributes.get("is_cpu_op", ("", False))[1]:
        if node.type is NodeType.COMP and node.name.startswith(_HOST_NODE):
            remarks.append(Remark("", "is_cpu_op", _OF_HOST))
        else:
            problems.append(("cpu-op", "is marked is_cpu_op"))


def _examine_memory(
    node: TraceNode,
    has_memory: bool | None,
    problems: list[tuple[str, str]],
    remarks: list[Remark],
) -> None:
    """A node of remote memory, at which ASTRA-sim stops where its configuration has none."""
    if has_memory is False:
        problems.append(
            ("unsupported-node", f"is a {node.type.name}, but memory.json has no remote memory")
        )
    elif has_memory is None:
        remarks.append(Remark("", "remote memory", _REMOTE))


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
    for name, zero in ROOFLINE.items():
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


#: Columns of a table of kinds. GROUP is a code of `GroupCodes`; X_AT counts bytes from the end of
#: a record to the value of X, X_WIDTH its bytes, 0 where it is not a plain number.
COLUMNS = (
    "type",
    "kind",
    "comm_bytes",
    "tag",
    "name",
    "group",
    "source",
    "target",
    "is_flagged",
    "group_at",
    "group_width",
    "source_at",
    "source_width",
    "target_at",
    "target_width",
)
TYPE, KIND, COMM_BYTES, TAG, NAME, GROUP, SOURCE, TARGET, IS_FLAGGED = range(9)
GROUP_AT, GROUP_WIDTH, SOURCE_AT, SOURCE_WIDTH, TARGET_AT, TARGET_WIDTH = range(9, 15)

#: Kinds that are kept; a trace in which every node is of its own kind has no use for more.
_MOST_KINDS = 1 << 16
#: Digits of a group's number that stand in its code.
_MOST_DIGITS = 9
#: A rank of more bytes than this is not patched.
_MOST_RANK_BYTES = 4
_GROUP_NUMBER = re.compile(r"[0-9]{1,9}")

GroupName = str | tuple[bool, ...]
#: Attribute name -> (bytes from the value to the end of the record, width).
Places = dict[str, tuple[int, int]]


class GroupCodes:
    """A group's name as one number, equal for equal names.

    Decimal names are their number and how many digits it has; all others are numbered below 0.
    """

    def __init__(self) -> None:
        self._others: list[GroupName] = []
        self._numbers: dict[GroupName, int] = {}

    def code(self, name: GroupName) -> int:
        """The code of `name`."""
        if isinstance(name, str) and _GROUP_NUMBER.fullmatch(name):
            return int(name) << 4 | len(name)
        number = self._numbers.setdefault(name, len(self._others))
        if number == len(self._others):
            self._others.append(name)
        return -1 - number

    def name(self, code: int) -> GroupName:
        """The name that has this code."""
        return self._others[-1 - code] if code < 0 else f"{code >> 4:0{code & 15}d}"


class KindTable:
    """Numbers kinds of records. `has_roofline` and `has_memory` are for `examine`."""

    def __init__(
        self, groups: GroupCodes, has_roofline: bool | None, has_memory: bool | None = None
    ) -> None:
        self.records: list[Record] = []
        self._groups = groups
        self._configured = has_roofline, has_memory
        self._decoder = Decoder()
        self._numbers: dict[bytes, int] = {}
        self._names: dict[str, int] = {}
        self._rows = np.zeros((1024, len(COLUMNS)), dtype=np.int64)

    @property
    def rows(self) -> Int64s:
        """One line per kind, COLUMNS across."""
        return self._rows[: len(self.records)]

    def shrink(self) -> None:
        """Forget all kinds if they are many. Numbers that were given out mean nothing any more."""
        if max(len(self.records), len(self._numbers)) > _MOST_KINDS:
            self.records.clear()
            self._numbers.clear()

    def number(self, left: bytes) -> int:
        """The kind of a record of which id, dependencies and times were taken out.

        -1 where it is written in an unusual way, so that what was taken out may be wrong.
        """
        known = self._numbers.get(left)
        if known is None:
            node = self._decoder.plain_node(left)
            known = self._numbers[left] = -1 if node is None else self._add(node, _places(left))
        return known

    def decode(self, record: bytes, source: str, offset: int) -> tuple[TraceNode, int]:
        """A whole record, and its kind, which is not looked up again.

        Raises FlintError FL603 for bytes that are no node.
        """
        node = self._decoder.node(record, source, offset)
        return node, self._add(node, {})

    def check_metadata(self, record: bytes, source: str) -> None:
        """Raise FlintError FL603 or FL604 if the first record is not GlobalMetadata."""
        self._decoder.metadata(record, source)

    def _add(self, node: TraceNode, places: Places) -> int:
        record = examine(node, *self._configured)
        number = len(self.records)
        if number == len(self._rows):
            self._rows = np.concatenate((self._rows, np.zeros_like(self._rows)))
        self.records.append(record)
        self._rows[number] = (
            int(record.type),
            record.kind,
            record.comm_bytes,
            record.tag % TAG_MODULUS,
            self._names.setdefault(record.name, len(self._names)),
            self._groups.code(record.group),
            record.source,
            record.target,
            int(bool(record.problems or record.remarks)),
            *(places.get("pg_name", (0, 0)) if isinstance(record.group, str) else (0, 0)),
            *places.get("comm_src", (0, 0)),
            *places.get("comm_dst", (0, 0)),
        )
        return number


def _places(record: bytes) -> Places:
    """Where pg_name, comm_src and comm_dst stand, if once and as Flint writes them."""
    found: dict[str, list[tuple[int, int]]] = {}
    for field, start, stop in _fields(record, 0, len(record)):
        if field == 10:
            name, at, width = _place(record, start, stop)
            found.setdefault(name, []).append((len(record) - at, width))
    return {name: place for name, (place, *again) in found.items() if not again and place[1]}


def _place(record: bytes, start: int, stop: int) -> tuple[str, int, int]:
    """Name of an attribute, start and width of its value; width 0 where it is another's."""
    name, values = "", list[tuple[int, int, int]]()
    for field, at, end in _fields(record, start, stop):
        if field == 1:
            name = record[at:end].decode(errors="replace")
        else:
            values.append((field, at, end))
    if len(values) != 1:
        return name, 0, 0
    field, at, end = values[0]
    is_text = name == "pg_name" and field == VALUE_FIELDS["string_val"]
    is_rank = name in ("comm_src", "comm_dst") and field == VALUE_FIELDS["int32_val"]
    if is_text and 0 < end - at <= _MOST_DIGITS and record[at:end].isdigit():
        return name, at, end - at
    return name, at, end - at if is_rank and end - at <= _MOST_RANK_BYTES else 0


#: Bytes of a value of these wire types.
_FIXED = {1: 8, 5: 4}


def _fields(data: bytes, at: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Number, start and stop of each field of a message that is known to be whole."""
    while at < stop:
        key, at = _varint(data, at)
        wire = key & 7
        if wire == 0:
            end = _varint(data, at)[1]
        elif wire == 2:
            size, at = _varint(data, at)
            end = at + size
        else:
            end = at + _FIXED[wire]
        yield key >> 3, at, end
        at = end


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
