"""Surviving strings: texts of a shared workload that are not of the public vocabulary."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import NamedTuple

from flint.io.documents import Unpublished
from flint.ir.program import Program
from flint.ir.workload import Workload
from flint.tools.share.leaks import vocabulary

# Words of a workload: what to look for in what is shared, also inside longer texts.

_RUN = re.compile(r"[^\W_]+")
#: Shorter words are compared whole: as parts they occur in texts of everybody.
LEAST_PART = 4
#: Longer words are compared by their first so many characters.
MOST_PART = 40


def runs(text: str) -> Iterator[str]:
    """Runs of letters and digits, in lower case: of `acme/v2_7B` acme, v2 and 7b."""
    return (found.casefold() for found in _RUN.findall(text))


def words_of(texts: Iterable[str]) -> frozenset[str]:
    """Words that tell texts from others: runs with a letter that are not of the public vocabulary.

    Runs of one character say nothing; those of two count if a digit is in them (`7b`).
    """
    found = {run for text in texts for run in runs(text)}
    return frozenset(run for run in found if _tells(run)) - public_words()


def words_in(text: str, words: frozenset[str]) -> tuple[str, ...]:
    """Those of `words` that a text holds, sorted: whole runs, and parts of four or more characters."""
    found: set[str] = set()
    for run in runs(text):
        if run in words:
            found.add(run)
        found |= words.intersection(_parts(run))
    return tuple(sorted(found))


@cache
def public_words() -> frozenset[str]:
    """Runs of every public opcode, type and word of Flint's: they tell nothing."""
    texts = [
        *vocabulary.public_operators(),
        *vocabulary.FLINT_OPCODES,
        *vocabulary.DTYPES,
        *vocabulary.METADATA_KEYS,
        *vocabulary.METADATA_VALUES,
        *vocabulary.NEUTRAL_WORDS,
    ]
    return frozenset(run for text in texts for run in runs(text))


def _tells(run: str) -> bool:
    has_letter, has_digit = not run.isdigit(), any(map(str.isdigit, run))
    return has_letter and len(run) >= (2 if has_digit else 3)


def _parts(run: str) -> Iterator[str]:
    run = run[: 4 * MOST_PART]
    for start in range(len(run) - LEAST_PART + 1):
        for stop in range(start + LEAST_PART, min(len(run), start + MOST_PART) + 1):
            yield run[start:stop]


# Every text that a reader of a workload gets, with the place where it stands.


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


def texts_of_json(value: object, where: str) -> Iterator[Text]:
    """Keys and texts of a JSON value, at any depth. `where` is its path."""
    if isinstance(value, str):
        yield Text(Place.METADATA_VALUE, where, value)
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield Text(Place.METADATA_KEY, where, str(name))
            yield from texts_of_json(inner, f"{where}.{name}")
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from texts_of_json(inner, f"{where}[{number}]")


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


@dataclass(frozen=True, slots=True)
class Survivor:
    """A text that may identify, in what was written."""

    place: Place  #: What kind of place has it: "mesh axis", "opcode", ...
    where: str  #: The first such place.
    text: str  #: The text itself.
    words: Unpublished[tuple[str, ...]] = ()
    """Words of the original that it holds, also as parts; without an original there are none."""


def surviving_strings(shared: Workload, original: Workload | None = None) -> tuple[Survivor, ...]:
    """Texts of a workload that are neither of the public vocabulary nor generated words.

    With the original at hand each says which of its words it holds. In the order of the workload.
    """
    return survivors_of((t for t in texts_of(shared) if not is_public(t)), original)


def survivors_of(texts: Iterable[Text], original: Workload | None = None) -> tuple[Survivor, ...]:
    """Texts that are not public as survivors: equal ones of one kind of place are one."""
    found: dict[tuple[Place, str], str] = {}
    for text in texts:
        found.setdefault((text.place, text.text), text.where)
    words = words_of(t.text for t in texts_of(original)) if found and original else frozenset()
    return tuple(
        Survivor(place, where, text, words_in(text, words))
        for (place, text), where in found.items()
    )
