"""Archives of numpy's arrays (`.npz`), believed as far as their bytes reach.

Sizes that entries declare are compared with bounds before anything is unpacked, and headers of
arrays with the bytes that are there before anything is allocated. Nothing is unpickled.
"""

from __future__ import annotations

import io
import math
import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from flint.io.malformed import Malformed

_ZIP_ENTRY = b"PK\x01\x02"  # what an entry of its directory begins with
_MOST_ENTRIES = 1 << 18
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # others may need gigabytes to unpack
HEADER_BYTES = 4096
#: What the file of an array begins with; numpy fills it up with blanks to 64 bytes.
_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '(?P<dtype>[<|>=][a-zA-Z0-9]{1,8})', "
    rb"'fortran_order': (?P<order>True|False), 'shape': \((?P<shape>(?:[0-9]{1,18},? ?){0,3})\), \}"
    rb" *\n",
    re.DOTALL,
)
#: Numbers, and text of a fixed length.
_DTYPE = re.compile(r"[<|](?:[fiu][1248]|b1|U[0-9]{1,6})")
#: What zipfile and zlib raise for a damaged archive.
_DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    LookupError,
    NotImplementedError,
    OSError,
    RuntimeError,
    ValueError,
)


@contextmanager
def archive_of(data: bytes, name: str) -> Iterator[zipfile.ZipFile]:
    """A zip file of bytes. Raises Malformed for what is none, and for one of too many entries."""
    if data.count(_ZIP_ENTRY) > _MOST_ENTRIES:
        raise Malformed(f"{name}: it has more than {_MOST_ENTRIES:,} entries")
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except _DAMAGED as error:
        raise Malformed(f"{name}: {error}") from error
    with archive:
        yield archive


def entry_of(archive: zipfile.ZipFile, name: str, most_bytes: int) -> bytes:
    """An entry, unpacked; not if it says that it is larger than `most_bytes`. Raises Malformed."""
    try:
        info = archive.getinfo(name)
    except KeyError:
        raise Malformed(f"it lacks {name}") from None
    if info.file_size > most_bytes:
        raise Malformed(
            f"{name}: {info.file_size:,} bytes unpacked, at most {most_bytes:,} are read"
        )
    if info.compress_type not in _METHODS:
        raise Malformed(f"{name}: compressed by method {info.compress_type}, deflate is needed")
    try:
        with archive.open(info) as file:  # `read(name)` would unpack more than it says
            data = file.read(info.file_size)
    except _DAMAGED as error:
        raise Malformed(f"{name}: {str(error)[:200]}") from error
    if len(data) < info.file_size:
        raise Malformed(f"{name}: {len(data):,} of {info.file_size:,} bytes are there")
    return data


def array_of(data: bytes, where: str, dtype: str | None = None) -> NDArray[Any]:
    """An array, of `dtype` if that is given. Its header is believed when the bytes for it are there.

    Only headers as numpy writes them are read: its own reader takes them for Python. Raises Malformed.
    """
    header = _HEADER.match(data[:HEADER_BYTES])
    if header is None:
        raise Malformed(f"{where}: it does not begin as an array of numpy does")
    said = header["dtype"].decode()
    if dtype is not None and said != np.dtype(dtype).str:
        raise Malformed(f"{where}: of type {said}, {np.dtype(dtype).str} is needed")
    if dtype is None and not _DTYPE.fullmatch(said):
        raise Malformed(f"{where}: of type {said}, which holds neither numbers nor text")
    kind = np.dtype(said)
    shape = tuple(int(n) for n in header["shape"].replace(b",", b" ").split())
    needed, there = math.prod(shape) * kind.itemsize, len(data) - header.end()
    if needed != there:
        raise Malformed(f"{where}: {shape} entries need {needed:,} bytes, {there:,} are there")
    order: Literal["F", "C"] = "F" if header["order"] == b"True" else "C"
    flat = np.frombuffer(data, kind, offset=header.end()) if there else np.zeros(0, kind)
    return flat.reshape(shape, order=order).copy()
