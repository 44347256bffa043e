"""The Chakra protobuf schema, built when it is first used.

No generated module is kept: generated code is tied to a range of protobuf versions, a descriptor
built at run time works with all of them. The pool is private, so that another package in the
same process (`mlc-chakra`) may register the same file. Facts: `schema/protobuf/et_def.proto` of
mlcommons/chakra, package ChakraProtoMsg, unchanged from 0.0.4 to 1.0.0.
"""

from __future__ import annotations

import importlib
from enum import IntEnum
from functools import cache
from typing import Any, NamedTuple

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


class Messages(NamedTuple):
    """The two message classes that stand in a file."""

    GlobalMetadata: Any
    Node: Any


@cache
def messages() -> Messages:
    """The message classes of this process, made once."""
    pool_module = importlib.import_module("google.protobuf.descriptor_pool")
    factory = importlib.import_module("google.protobuf.message_factory")
    pool = pool_module.DescriptorPool()
    pool.Add(_file())

    def message(name: str) -> Any:
        return factory.GetMessageClass(pool.FindMessageTypeByName(f"ChakraProtoMsg.{name}"))

    return Messages(message("GlobalMetadata"), message("Node"))


def _file() -> Any:
    pb = importlib.import_module("google.protobuf.descriptor_pb2")
    file = pb.FileDescriptorProto(
        name="flint/chakra_et_def.proto", package="ChakraProtoMsg", syntax="proto3"
    )
    for enum in (NodeType, CommType):
        added = file.enum_type.add(name=enum.__name__)
        for value in enum:
            # Values of an enumeration share their package's names: METADATA would clash.
            added.value.add(name=f"{enum.__name__}_{value.name}", number=int(value))
    for scalar in _SCALARS:
        _add_message(file, f"{scalar}List", [("values", 1, scalar, True)])
    _add_attribute(file)
    strings = [("values", 1, "string", False), ("shapes", 2, "string", False)]
    _add_message(file, "IOInfo", [*strings, ("types", 3, "string", False)])
    _add_message(
        file,
        "GlobalMetadata",
        [("version", 1, "string", False), ("attr", 2, ".AttributeProto", True)],
    )
    _add_message(
        file,
        "Node",
        [
            ("id", 1, "uint64", False),
            ("name", 2, "string", False),
            ("type", 3, "enum .NodeType", False),
            ("ctrl_deps", 4, "uint64", True),
            ("data_deps", 5, "uint64", True),
            ("start_time_micros", 6, "uint64", False),
            ("duration_micros", 7, "uint64", False),
            ("inputs", 8, ".IOInfo", False),
            ("outputs", 9, ".IOInfo", False),
            ("attr", 10, ".AttributeProto", True),
        ],
    )
    return file


def _add_attribute(file: Any) -> None:
    values = [
        (name, number, name[:-4] if name.endswith("_val") else f".{name[:-5]}List", False)
        for name, number in VALUE_FIELDS.items()
    ]
    texts = [("name", 1, "string", False), ("doc_string", 2, "string", False)]
    message = _add_message(file, "AttributeProto", texts + values)
    message.oneof_decl.add(name="value")
    for field in message.field[2:]:
        field.oneof_index = 0


def _add_message(file: Any, name: str, members: list[tuple[str, int, str, bool]]) -> Any:
    """Add a message of (name, number, type, repeated); `.X` is a message, `enum .X` an enum."""
    message = file.message_type.add(name=name)
    for field_name, number, type_name, repeated in members:
        field = message.field.add(name=field_name, number=number)
        field.label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
        what, _, reference = type_name.rpartition(".")
        if type_name == reference:
            field.type = getattr(field, f"TYPE_{type_name.upper()}")
        else:
            field.type = field.TYPE_ENUM if what else field.TYPE_MESSAGE
            field.type_name = f".ChakraProtoMsg.{reference}"
    return message
