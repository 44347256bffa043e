"""manifest.json: what Flint wrote into a trace directory, every file with its size and digest.

The writer makes it, `check` compares files with it, and who replaces a directory learns from it
what is Flint's. Ranks of equal bytes are stated once. Traces carry a CRC-32, which costs a fifth of
writing them where SHA-256 would cost more than writing; the few other files carry SHA-256. Neither
is there against forgery: they find what was changed or broken.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import json
import math
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, Self, get_args, get_origin

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from flint.errors import FlintError, Malformed
from flint.io.bounded import FileKind, parse_json, read_bounded
from flint.ir.mesh import MOST_DEVICES

#: The file's name, and the version of what it says.
NAME = "manifest.json"
SCHEMA: Final = "flint.manifest/1"
#: What said "schema" before files had sizes and digests.
OLD_SCHEMA = "flint.chakra/1"
#: More keys than any object of a manifest has: axes of a mesh are the most.
_MOST_KEYS = 64
_HELP = "capture again to another directory, or restore the manifest from a copy"

_Count = Annotated[int, Field(ge=0, lt=1 << 63)]
_Name = Annotated[str, Field(max_length=255, pattern=r"^[^./\\\x00-\x1f][^/\\\x00-\x1f]*$")]
_Mesh = Annotated[
    dict[str, Annotated[int, Field(ge=1, le=MOST_DEVICES)]], Field(max_length=_MOST_KEYS)
]
_Digest = Annotated[str, Field(pattern=r"^(sha256:[0-9a-f]{64}|crc32:[0-9a-f]{8})$")]
_RANKS = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ListedFile(_Strict):
    """A file that is not a trace."""

    name: _Name
    size_bytes: _Count
    digest: _Digest


class ListedTraces(_Strict):
    """The trace files of ranks (`0-63,128`) that all hold the same bytes."""

    ranks: str
    size_bytes: _Count
    digest: _Digest

    @cached_property
    def ranges(self) -> tuple[range, ...]:
        """The ranks, ascending. Raises ValueError where the text is none."""
        found: list[range] = []
        for part in self.ranks.split(","):
            match = _RANKS.fullmatch(part)
            if match is None:
                raise ValueError(f"'{part[:40]}' is neither a rank nor a range")
            first, last = int(match[1]), int(match[2] or match[1])
            if last < first or (found and first < found[-1].stop):
                raise ValueError(f"ranks '{part}' are not ascending")
            found.append(range(first, last + 1))
        return tuple(found)


class ListedClass(_Strict):
    """A rank class: how many of its ranks were written, and their nodes and bytes."""

    name: str
    first_rank: _Count | None
    ranks: _Count
    nodes: _Count
    trace_bytes: _Count


class Options(_Strict):
    """What the writer was asked for."""

    granularity: str
    groups: str
    link: bool
    ranks: str
    tensor_size: str
    cluster: str | None = None


class Listed(NamedTuple):
    """What a file must be; None where the manifest does not say it."""

    size_bytes: int | None
    digest: str | None


class Manifest(_Strict):
    """All of manifest.json; `sha256` is that of the rest, so that an edit of it is found too.

    `traces` names the ranks whose files are `prefix`.<rank>.et, each rank once.
    """

    schema_: Literal["flint.manifest/1"] = Field(alias="schema", default=SCHEMA)
    mesh: _Mesh
    prefix: _Name
    options: Options
    ranks: _Count
    trace_bytes: _Count
    classes: tuple[ListedClass, ...]
    files: tuple[ListedFile, ...]
    traces: tuple[ListedTraces, ...]
    sha256: str = ""

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        """Ranks are named once and on the mesh, and the sums are those of the parts."""
        ranges = sorted((r for t in self.traces for r in t.ranges), key=lambda r: r.start)
        for one, other in itertools.pairwise(ranges):
            if other.start < one.stop:
                raise ValueError(f"rank {other.start} is named twice")
        if ranges and ranges[-1].stop > math.prod(self.mesh.values()):
            raise ValueError(f"the mesh has no rank {ranges[-1].stop - 1}")
        counts = [sum(map(len, t.ranges)) for t in self.traces]
        if math.prod(self.mesh.values()) > MOST_DEVICES:
            raise ValueError("no system has that many devices")
        total = sum(n * t.size_bytes for n, t in zip(counts, self.traces, strict=True))
        if (sum(counts), total) != (self.ranks, self.trace_bytes):
            raise ValueError("ranks or trace_bytes are not the sum of 'traces'")
        names = [f.name for f in self.files]
        if len(set(names)) < len(names) or NAME in names:
            raise ValueError("a file is named twice")
        return self

    def to_bytes(self) -> bytes:
        """The file: JSON with one line for each file, class and group of ranks."""
        return laid_out({**self._document(), "sha256": self._own_digest()}).encode()

    def is_whole(self) -> bool:
        """Whether nothing in the file was changed since it was written, except spaces."""
        return self.sha256 == self._own_digest()

    def _own_digest(self) -> str:
        return hashlib.sha256(json.dumps(self._document()).encode()).hexdigest()

    def _document(self) -> dict[str, Any]:
        return self.model_dump(by_alias=True, exclude={"sha256"}, exclude_none=True)

    @cached_property
    def listing(self) -> Listing:
        """File name -> size and digest of every file but the manifest itself."""
        others = {f.name: Listed(f.size_bytes, f.digest) for f in self.files}
        traces = ((r, Listed(t.size_bytes, t.digest)) for t in self.traces for r in t.ranges)
        return Listing(self.prefix, others, traces)


class OldClass(BaseModel):
    """What is read of a rank class of an old manifest."""

    first_rank: _Count | None
    sha256_of_first_rank: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]


class OldManifest(BaseModel):
    """A manifest without sizes and digests, of November 2026; it is read, and no longer written.

    `files` are names. A digest is known for the trace of each class's first rank only.
    """

    model_config = ConfigDict(frozen=True, strict=True)

    mesh: _Mesh
    prefix: _Name
    options: dict[str, Any]
    ranks: _Count
    trace_bytes: _Count
    files: tuple[_Name, ...]
    classes: tuple[OldClass, ...]

    @cached_property
    def listing(self) -> Listing:
        """File name -> what is known of it. Each rank of the mesh may have a trace, or not."""
        first = {
            f"{self.prefix}.{c.first_rank}.et": Listed(None, f"sha256:{c.sha256_of_first_rank}")
            for c in self.classes
            if c.sha256_of_first_rank
        }
        named = {name: Listed(None, None) for name in self.files if name != NAME}
        every = [(range(math.prod(self.mesh.values())), Listed(None, None))]
        return Listing(self.prefix, named | first, every)


class Listing(Mapping[str, Listed]):
    """File name -> what it must be, with one entry for each run of ranks and not for each rank."""

    def __init__(
        self, prefix: str, others: Mapping[str, Listed], traces: Iterable[tuple[range, Listed]]
    ) -> None:
        self._prefix, self._others = prefix, others
        self._traces = sorted(traces, key=lambda t: t[0].start)
        self._starts = [ranks.start for ranks, _ in self._traces]
        self._trace = re.compile(re.escape(prefix) + r"\.(0|[1-9]\d{0,8})\.et")

    def __getitem__(self, name: str) -> Listed:
        if name in self._others:
            return self._others[name]
        match = self._trace.fullmatch(name)
        if match is not None:
            rank = int(match[1])
            at = bisect.bisect_right(self._starts, rank) - 1
            if at >= 0 and rank in self._traces[at][0]:
                return self._traces[at][1]
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        yield from self._others
        traces = (f"{self._prefix}.{rank}.et" for ranks, _ in self._traces for rank in ranks)
        yield from (name for name in traces if name not in self._others)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def digest(kind: str, parts: Iterable[bytes | bytearray]) -> str:
    """The digest of `kind` ("sha256" or "crc32") of what the parts are together, as it is listed."""
    if kind == "sha256":
        hashed = hashlib.sha256()
        for part in parts:
            hashed.update(part)
        return f"sha256:{hashed.hexdigest()}"
    crc = 0
    for part in parts:
        crc = zlib.crc32(part, crc)
    return f"crc32:{crc:08x}"


def matches(listed: Listed, parts: Iterable[bytes | bytearray]) -> bool:
    """Whether content has the digest that is listed. True where none is."""
    if listed.digest is None:
        return True
    return listed.digest == digest(listed.digest.partition(":")[0], parts)


def ranks_text(ranks: Iterable[int]) -> str:
    """Ranks (at least one) as `ListedTraces.ranks` has them: 0-63,128."""
    found = np.sort(np.fromiter(ranks, dtype=np.int64))
    ends = np.flatnonzero(np.diff(found) != 1)
    firsts = found[np.concatenate(([0], ends + 1))].tolist()
    lasts = found[np.concatenate((ends, [len(found) - 1]))].tolist()
    pairs = zip(firsts, lasts, strict=True)
    return ",".join(f"{a}-{b}" if b > a else str(a) for a, b in pairs)


def read_manifest(folder: Path) -> Manifest | OldManifest | None:
    """The manifest of a trace directory; None if it has none, or one of another program.

    Raises FlintError FL606 if it is Flint's and cannot be used: it is not a regular file, is too
    large, or says what no writer of Flint says.
    """
    path = folder / NAME
    if not os.path.lexists(path):
        return None
    data = read_bounded(path, FileKind.MANIFEST, "FL606", _HELP)
    kind = _kind(data)
    if kind is None:
        return None
    try:
        found = kind.model_validate(_parsed(kind, parse_json(data)))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise _unusable(path, f"{where}: {first['msg']}") from error
    except Malformed as error:
        raise _unusable(path, str(error)) from error
    if isinstance(found, Manifest) and not found.is_whole():
        raise _unusable(path, "it was changed since it was written")
    return found


def _kind(data: bytes) -> type[Manifest | OldManifest] | None:
    """Whose manifest it is, by its first key: so that a broken one is not taken for foreign."""
    found = re.match(rb'\s*\{\s*"schema"\s*:\s*"([^"]{0,80})"', data)
    kinds: dict[bytes, type[Manifest | OldManifest]] = {
        SCHEMA.encode(): Manifest,
        OLD_SCHEMA.encode(): OldManifest,
    }
    return kinds.get(found[1]) if found else None


def _parsed(kind: type[Manifest | OldManifest], document: dict[str, Any]) -> dict[str, Any]:
    """The document with the entries of its lists validated one by one.

    pydantic collects what is wrong everywhere: in a list of a million entries that takes gigabytes.
    """
    crowded = (v for v in (document, *document.values()) if isinstance(v, dict))
    if max(map(len, crowded)) > _MOST_KEYS:
        raise Malformed(f"an object has more than {_MOST_KEYS} keys")
    parsed = dict(document)
    for name, field in kind.model_fields.items():
        if get_origin(field.annotation) is tuple and isinstance(document.get(name), list):
            entry = TypeAdapter(get_args(field.annotation)[0])
            parsed[name] = tuple(_entry(entry, name, value) for value in document[name])
    return parsed


def _entry(adapter: TypeAdapter[Any], name: str, value: object) -> Any:
    if isinstance(value, dict) and len(value) > _MOST_KEYS:
        raise Malformed(f"{name}: an object has more than {_MOST_KEYS} keys")
    try:
        return adapter.validate_python(value, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, (name, *first["loc"])))
        raise Malformed(f"{where}: {first['msg']}") from error


def _unusable(path: Path, why: str) -> FlintError:
    return FlintError("FL606", f"{path} cannot be used: {why}", help=_HELP)


def laid_out(document: Mapping[str, Any]) -> str:
    """JSON with each key on a line, and each entry of a list."""
    lines = []
    for key, value in document.items():
        text = json.dumps(value)
        if isinstance(value, list | tuple) and value:
            text = "[\n    " + ",\n    ".join(map(json.dumps, value)) + "\n  ]"
        lines.append(f"  {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"
