"""Shared libraries of 64-bit Linux on x86: what one takes from others, and one made of nothing.

The format is that of the System V ABI (object files, dynamic linking), with the symbol versions of
the Linux Standard Base.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Final, NamedTuple, Self

_PAGE: Final = 0x1000
_LOAD, _DYNAMIC, _STACK = 1, 2, 0x6474E551  #: kinds of segments
_NEEDED, _HASH, _STRINGS, _SYMBOLS, _SONAME = 1, 4, 5, 6, 14  #: tags of the dynamic section
_STRINGS_SIZE, _SYMBOL_SIZE = 10, 11
_GNU_HASH, _VERSIONS_OF = 0x6FFFFEF5, 0x6FFFFFF0
_DEFINED_VERSIONS, _NEEDED_VERSIONS = 0x6FFFFFFC, 0x6FFFFFFE  #: their numbers are the next tags
_READ, _WRITE, _EXECUTE = 4, 2, 1
_GLOBAL: Final = 1
#: mov eax, 1; ret. 1 is an error of HIP, RCCL, rocBLAS, MIOpen and most libraries of C.
_FAILS: Final = b"\xb8\x01\x00\x00\x00\xc3"


class Symbol(NamedTuple):
    """What another library has. Only a symbol with a version says which `library` that is."""

    name: str
    version: str = ""
    library: str = ""


@dataclass(frozen=True, slots=True)
class Needs:
    """What a library takes from others: their names, and what has to be there to load it."""

    libraries: tuple[str, ...]
    symbols: tuple[Symbol, ...]

    @classmethod
    def of(cls, path: Path) -> Self:
        """Those of a file. Raises ValueError for one that is no such library, and OSError."""
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                image = _Image(data)
                return cls(tuple(image.libraries()), tuple(image.symbols()))
            except (struct.error, KeyError) as error:
                raise ValueError(f"{path.name} is no shared library of Linux on x86-64") from error


class _Image:
    """A library as it lies in its file."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        if data[:6] != b"\x7fELF\2\1" or self._at("<H", 18) != (62,):
            raise KeyError("another format or machine")
        (start,), (size, count) = self._at("<Q", 32), self._at("<HH", 54)
        segments = [self._at("<IIQQQQ", start + size * n) for n in range(count)]
        self._loads = [(s[3], s[2], s[5]) for s in segments if s[0] == _LOAD]
        offset, length = {s[0]: (s[2], s[5]) for s in segments}[_DYNAMIC]
        words = self._at(f"<{length // 8}Q", offset)
        self._entries = list(zip(words[::2], words[1::2], strict=False))
        self._tags = dict(self._entries)

    def libraries(self) -> Iterator[str]:
        return (self._text(value) for tag, value in self._entries if tag == _NEEDED)

    def symbols(self) -> Iterator[Symbol]:
        """Those that are not here and have to be: they stand before what the hash table knows."""
        table, versions = self._place(_SYMBOLS), dict(self._versions())
        _, end = self._at("<II", self._place(_GNU_HASH))
        for number in range(1, end):
            name, kind, _, section = self._at("<IBBH", table + 24 * number)
            if not section and kind >> 4 == _GLOBAL:
                (version,) = self._at("<H", self._place(_VERSIONS_OF) + 2 * number)
                yield Symbol(self._text(name), *versions.get(version & 0x7FFF, ()))

    def _versions(self) -> Iterator[tuple[int, tuple[str, str]]]:
        """By number: the version, and the library that has it."""
        at = following = self._place(_NEEDED_VERSIONS)
        while following:
            _, count, file, first, following = self._at("<HHIII", at)
            each = at + first
            for _ in range(count):
                _, _, number, name, step = self._at("<IHHII", each)
                yield number & 0x7FFF, (self._text(name), self._text(file))
                each += step
            at += following

    def _place(self, tag: int) -> int:
        """Where in the file the table of a tag begins."""
        address = self._tags[tag]
        for start, offset, size in self._loads:
            if start <= address < start + size:
                return offset + address - start
        raise KeyError(f"an address of no segment: {address}")

    def _text(self, offset: int) -> str:
        start = self._place(_STRINGS) + offset
        return self._data[start : self._data.find(b"\0", start)].decode()

    def _at(self, layout: str, offset: int) -> tuple[int, ...]:
        return struct.unpack_from(layout, self._data, offset)


def failing_library(name: str, symbols: Mapping[str, str]) -> bytes:
    """A library whose functions do nothing and return 1: `symbols` to their versions, "" for none."""
    versions = sorted(set(symbols.values()) - {""})
    texts = [f"{text}\0".encode() for text in (name, *versions, *symbols)]
    places = list(accumulate(map(len, texts), initial=1))  # byte 0 is the empty text
    defined, functions = places[: 1 + len(versions)], places[1 + len(versions) : -1]
    numbers = {"": 1, **{version: n for n, version in enumerate(versions, 2)}}
    parts = {
        _SYMBOLS: bytes(24 * (1 + len(functions))),  # it holds the address of what comes last
        _VERSIONS_OF: struct.pack(f"<{1 + len(symbols)}H", 0, *map(numbers.get, symbols.values())),
        _DEFINED_VERSIONS: _definitions([name, *versions], defined),
        _HASH: _hash_table(list(symbols)),
        _STRINGS: b"\0" + b"".join(texts),
    }
    *starts, code = accumulate((_rounded(len(p), 16) for p in parts.values()), initial=64 + 4 * 56)
    entry = (0x12, 0, 1, code, len(_FAILS))  # a global function of a section that is not told
    parts[_SYMBOLS] = bytes(24) + b"".join(struct.pack("<IBBHQQ", f, *entry) for f in functions)
    body = b"".join(part.ljust(_rounded(len(part), 16), b"\0") for part in parts.values()) + _FAILS
    tags = {**dict(zip(parts, starts, strict=True)), _SONAME: 1, _STRINGS_SIZE: places[-1]}
    tags |= {_SYMBOL_SIZE: 24, _DEFINED_VERSIONS + 1: len(defined), 0: 0}
    return _file(body, b"".join(struct.pack("<QQ", *tag) for tag in tags.items()))


def _file(body: bytes, dynamic: bytes) -> bytes:
    """The headers, what is read and run, and on a page of its own what the loader writes to."""
    head = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 3, 62, 1, 0, 64, 0, 0, 64, 56, 4, 64, 0, 0
    )
    end = len(head) + 4 * 56 + len(body)
    start = _rounded(end, _PAGE)
    segments = [
        (_LOAD, _READ | _EXECUTE, 0, end, _PAGE),
        (_LOAD, _READ | _WRITE, start, len(dynamic), _PAGE),
        (_DYNAMIC, _READ | _WRITE, start, len(dynamic), 8),
        (_STACK, _READ | _WRITE, 0, 0, 16),  # without it the loader wants a stack that runs code
    ]
    for kind, flags, at, size, alignment in segments:
        head += struct.pack("<IIQQQQQQ", kind, flags, at, at, at, size, size, alignment)
    return (head + body).ljust(start, b"\0") + dynamic


def _definitions(texts: list[str], names: list[int]) -> bytes:
    """The versions that a library has; the first is the library itself."""
    found = b""
    for number, (text, name) in enumerate(zip(texts, names, strict=True), 1):
        step = 28 if number < len(texts) else 0
        found += struct.pack("<4H5I", 1, number == 1, number, 1, _hash(text), 20, step, name, 0)
    return found


def _hash_table(names: list[str]) -> bytes:
    """As many chains as symbols, and number 0, which is none."""
    size = 1 + len(names)
    first, following = [0] * size, [0] * size
    for number, name in enumerate(names, 1):
        chain = _hash(name) % size
        following[number], first[chain] = first[chain], number
    return struct.pack(f"<II{2 * size}I", size, size, *first, *following)


def _hash(text: str) -> int:
    """The ABI's own hash of a name."""
    value = 0
    for byte in text.encode():
        value = (value << 4) + byte
        value = (value ^ (value >> 24 & 0xF0)) & 0x0FFFFFFF
    return value


def _rounded(size: int, step: int) -> int:
    return -(-size // step) * step
