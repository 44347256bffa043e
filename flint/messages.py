"""Protobuf messages that are declared at run time, for every protobuf from 3.20 to 7.

No generated module is kept: generated code needs a protobuf that is at least as new as the compiler
that wrote it, so that Flint would choose the version for all that is installed beside it. Messages
live in a pool of their own: another package in the process may register the same names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
from importlib import import_module  # protobuf has no type stubs of its own
from typing import Any, cast

#: Values of FieldDescriptorProto.Type, by the words that .proto files use.
_SCALARS = {
    "double": 1,
    "float": 2,
    "int64": 3,
    "uint64": 4,
    "int32": 5,
    "fixed64": 6,
    "fixed32": 7,
    "bool": 8,
    "string": 9,
    "bytes": 12,
    "uint32": 13,
    "sfixed32": 15,
    "sfixed64": 16,
    "sint32": 17,
    "sint64": 18,
}
_MESSAGE = 11
_OPTIONAL, _REPEATED = 1, 3


def message_classes(
    package: str, messages: Mapping[str, str], *, syntax: str = "proto3"
) -> dict[str, Any]:
    """The classes of `messages`: a name to its fields, `name number type`, separated by commas.

    A type is a scalar or a message of the table, with `*` behind it where it is repeated. A fourth
    word names the oneof that the field is in. Enumerations are int32: their bytes are the same.
    `syntax` is "proto2" where fields that are set to 0 are written.
    """
    file = import_module("google.protobuf.descriptor_pb2").FileDescriptorProto(
        name=f"flint/{package}.proto", package=package, syntax=syntax
    )
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field in fields.split(", "):
            _add_field(message, package, *field.split())
    pool = import_module("google.protobuf.descriptor_pool").DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    make = _class_maker(pool)
    return {name: make(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages}


def _add_field(
    message: Any, package: str, name: str, number: str, kind: str, oneof: str = ""
) -> None:
    field = message.field.add(name=name, number=int(number))
    field.label = _REPEATED if kind.endswith("*") else _OPTIONAL
    kind = kind.rstrip("*")
    field.type = _SCALARS.get(kind, _MESSAGE)
    if kind not in _SCALARS:
        field.type_name = f".{package}.{kind}"
    if oneof:
        known = [declared.name for declared in message.oneof_decl]
        if oneof not in known:
            message.oneof_decl.add(name=oneof)
            known.append(oneof)
        field.oneof_index = known.index(oneof)


def _class_maker(pool: Any) -> Any:
    """Descriptor -> class. A function since protobuf 4.22, before a method of a factory."""
    factory = import_module("google.protobuf.message_factory")
    newer = getattr(factory, "GetMessageClass", None)
    return newer or factory.MessageFactory(pool).GetPrototype


def decode_error() -> type[Exception]:
    """What protobuf raises for bytes that are not the message."""
    error: type[Exception] = import_module("google.protobuf.message").DecodeError
    return error


def unknown_fields() -> Callable[[Any], Sized]:
    """A function from a message to the fields in its bytes that its class does not have."""
    try:
        module = import_module("google.protobuf.unknown_fields")
    except ModuleNotFoundError:  # protobuf 3
        return lambda message: cast(Sized, message.UnknownFields())
    return cast(Callable[[Any], Sized], module.UnknownFieldSet)
