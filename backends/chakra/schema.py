"""The Chakra protobuf schema, built when it is first used.

Facts: `schema/protobuf/et_def.proto` of mlcommons/chakra, package ChakraProtoMsg, unchanged from
0.0.4 to 1.0.0.
"""

from __future__ import annotations

from enum import IntEnum
from functools import cache
from typing import Any, NamedTuple

from flint.messages import message_classes

#: Written into GlobalMetadata.version. No consumer reads it.
CHAKRA_VERSION = "1.0.0"


class NodeType(IntEnum):
    """Values of Node.type."""

    INVALID = 0
    METADATA = 1
    MEM_LOAD = 2
    MEM_STORE = 3
    COMP = 4
    COMM_SEND = 5
    COMM_RECV = 6
    COMM_COLL = 7


class CommType(IntEnum):
    """Values of the attribute comm_type (CollectiveCommType)."""

    ALL_REDUCE = 0
    REDUCE = 1
    ALL_GATHER = 2
    GATHER = 3
    SCATTER = 4
    BROADCAST = 5
    ALL_TO_ALL = 6
    REDUCE_SCATTER = 7
    REDUCE_SCATTER_BLOCK = 8
    BARRIER = 9


#: The collectives that ASTRA-sim simulates; it throws on the others or takes them as free.
SIMULATED_COLLECTIVES = frozenset(
    {CommType.ALL_REDUCE, CommType.ALL_GATHER, CommType.ALL_TO_ALL, CommType.REDUCE_SCATTER}
)

#: Value types of AttributeProto, in the order of their field numbers: `x_val` 3 and `x_list` 4 for
#: the first, 5 and 6 for the second, and so on.
_SCALARS = (
    "double",
    "float",
    "int32",
    "int64",
    "uint32",
    "uint64",
    "sint32",
    "sint64",
    "fixed32",
    "fixed64",
    "sfixed32",
    "sfixed64",
    "bool",
    "string",
    "bytes",
)

#: Field number of each value in AttributeProto's oneof.
VALUE_FIELDS: dict[str, int] = {
    f"{scalar}_{form}": 3 + 2 * i + j
    for i, scalar in enumerate(_SCALARS)
    for j, form in enumerate(("val", "list"))
}


class MessageTypes(NamedTuple):
    """The two message classes that stand in a file."""

    GlobalMetadata: Any
    Node: Any


def _value_field(name: str, number: int) -> str:
    """`int64_val` holds an int64, `int64_list` a message Int64List of them."""
    kind = name.removesuffix("_val")
    return f"{name} {number} {name.removesuffix('_list') + 'List' if kind == name else kind} value"


#: Fields of each message, as `flint.messages` reads them.
_MESSAGES = {
    **{f"{scalar}List": f"values 1 {scalar}*" for scalar in _SCALARS},
    "AttributeProto": "name 1 string, doc_string 2 string, "
    + ", ".join(_value_field(*field) for field in VALUE_FIELDS.items()),
    "IOInfo": "values 1 string, shapes 2 string, types 3 string",
    "GlobalMetadata": "version 1 string, attr 2 AttributeProto*",
    "Node": "id 1 uint64, name 2 string, type 3 int32, ctrl_deps 4 uint64*, data_deps 5 uint64*, "
    "start_time_micros 6 uint64, duration_micros 7 uint64, inputs 8 IOInfo, outputs 9 IOInfo, "
    "attr 10 AttributeProto*",
}


@cache
def messages() -> MessageTypes:
    """The message classes of this process, made once."""
    classes = message_classes("ChakraProtoMsg", _MESSAGES)
    return MessageTypes(classes["GlobalMetadata"], classes["Node"])
