"""Every text that a reader of a workload gets, with the place where it stands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import NamedTuple

from flint.ir.program import Program
from flint.ir.workload import Workload
from flint.tools.share.leaks import vocabulary


class Place(StrEnum):
    """Where a text stands in what is shared."""

    MESH_AXIS = "mesh axis"
    OPCODE = "opcode"
    DTYPE = "element type"
    PRODUCT = "type of a product"
    STREAM = "stream"
    STRING = "string of rows"
    REGION_NAME = "region's name"
    REGION_LOCATION = "region's location"
    GROUP_AXIS = "axis of a group"
    ROUTE_AXIS = "axis of a route"
    CLASS_NAME = "rank class"
    CLASS_AXIS = "axis of a rank class"
    METADATA_KEY = "metadata key"
    METADATA_VALUE = "metadata value"
    FILE_NAME = "name of a file"
    TRACE_TEXT = "text of a trace"
    FILE_TEXT = "text of a file"


class Text(NamedTuple):
    """A text, its place, and where exactly (`program 0`, `compiler.version`, a file's name)."""

    place: Place
    where: str
    text: str


def texts_of(workload: Workload) -> Iterator[Text]:
    """Every text of a workload: of its mesh, programs, rank classes and metadata.

    Tables are walked whole: what no row uses is in the file too.
    """
    for name in workload.mesh.names:
        yield Text(Place.MESH_AXIS, "mesh", name)
    for number, program in enumerate(workload.programs):
        yield from _texts_of_program(program, f"program {number}")
    for number, one in enumerate(workload.classes):
        yield Text(Place.CLASS_NAME, f"class {number}", one.name)
        yield from (Text(Place.CLASS_AXIS, f"class {number}", axis) for axis in one.where)
    yield from texts_of_json(workload.metadata, "metadata")


def is_public(text: Text) -> bool:
    """Whether the text is of the public vocabulary, or generated, as its place allows."""
    return _RULES[text.place](text.text)


def texts_of_json(
    value: object,
    where: str,
    key: Place = Place.METADATA_KEY,
    leaf: Place = Place.METADATA_VALUE,
) -> Iterator[Text]:
    """Keys and texts of a JSON value, at any depth. `where` is its path."""
    if isinstance(value, str):
        yield Text(leaf, where, value)
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield Text(key, where, str(name))
            yield from texts_of_json(inner, f"{where}.{name}", key, leaf)
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from texts_of_json(inner, f"{where}[{number}]", key, leaf)


def _texts_of_program(program: Program, where: str) -> Iterator[Text]:
    tables = (
        (Place.MESH_AXIS, program.mesh.names),
        (Place.OPCODE, program.opcodes),
        (Place.DTYPE, program.dtypes),
        (Place.PRODUCT, program.products),
        (Place.STREAM, program.streams),
        (Place.STRING, program.strings),
        (Place.REGION_NAME, [r.name for r in program.regions]),
        (Place.REGION_LOCATION, [r.location for r in program.regions]),
        (Place.GROUP_AXIS, [a.name for g in program.groups for a in g.axes]),
        (Place.ROUTE_AXIS, [a.name for r in program.routes for a in r.axes]),
    )
    for place, texts in tables:
        for text in dict.fromkeys(texts):
            yield Text(place, where, text)


#: For each place, what may stand there. Texts of files have rules of their own (`files.py`).
_RULES: dict[Place, Callable[[str], bool]] = {
    Place.OPCODE: vocabulary.is_public_opcode,
    Place.DTYPE: vocabulary.is_public_dtype,
    Place.PRODUCT: vocabulary.is_public_product,
    Place.METADATA_KEY: vocabulary.is_public_key,
    Place.METADATA_VALUE: vocabulary.is_public_value,
    **dict.fromkeys(
        (
            *(Place.MESH_AXIS, Place.STREAM, Place.STRING, Place.REGION_NAME),
            *(Place.REGION_LOCATION, Place.GROUP_AXIS, Place.ROUTE_AXIS),
            *(Place.CLASS_NAME, Place.CLASS_AXIS),
        ),
        vocabulary.is_neutral_name,
    ),
}
