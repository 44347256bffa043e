"""Files of profilers as streams of bytes: regular files, unpacked a piece at a time, bounded."""

from __future__ import annotations

import contextlib
import gzip
import zlib
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from flint.errors import FlintError
from flint.io.files import open_regular

GIB = 1 << 30
#: Unpacked. A recording of 64 GiB has more events than a Profile holds (see builder.MOST_ROWS).
MOST_BYTES = 64 * GIB
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_HEAD_BYTES = 1 << 16


class Bytes(Protocol):
    """Where the bytes of a profile come from."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes, none at the end."""


class Unpacked:
    """A profile's bytes, counted. What breaks on the way is a FlintError that says how far it came."""

    def __init__(self, path: Path, source: Bytes) -> None:
        self.path = path
        self.num_bytes = 0
        self._source = source

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes. Raises FlintError FL803 (damaged), FL801 (unreadable), FL806."""
        try:
            piece = self._source.read(size)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise self._damaged(error) from error
        except OSError as error:
            raise unreadable(self.path, error) from error
        except Exception as error:  # zstandard has an exception of its own
            if type(error).__module__.partition(".")[0] not in ("zstandard", "compression"):
                raise
            raise self._damaged(error) from error
        self.num_bytes += len(piece)
        if self.num_bytes > MOST_BYTES:
            raise too_large(self.path, f"it unpacks to more than {MOST_BYTES >> 30} GiB")
        return piece

    def _damaged(self, error: Exception) -> FlintError:
        return FlintError(
            "FL803",
            f"{self.path} is cut or damaged: {self.num_bytes:,} bytes could be unpacked, then: {error}",
            help="copy the whole file again; a killed profiler does not finish its file",
        )


@contextlib.contextmanager
def open_profile(path: Path) -> Iterator[Unpacked]:
    """The bytes of a file, unpacked if it is packed with gzip (or zstd, with a library for it).

    Raises FlintError FL801 for what cannot be opened, is not a regular file, or is packed with zstd
    where nothing unpacks it.
    """
    try:
        with open_regular(path) as file:
            start = file.read(4)
            file.seek(0)
            yield Unpacked(path, _unpacked(path, file, start))
    except OSError as error:
        raise unreadable(path, error) from error


def _unpacked(path: Path, file: BinaryIO, start: bytes) -> Bytes:
    if start.startswith(_GZIP):
        return cast(Bytes, gzip.GzipFile(fileobj=file))
    return _unpacked_zstd(path, file) if start == _ZSTD else file


def _unpacked_zstd(path: Path, file: BinaryIO) -> Bytes:
    if find_spec("zstandard"):
        return cast(Bytes, import_module("zstandard").ZstdDecompressor().stream_reader(file))
    raise FlintError(
        "FL801",
        f"{path} is compressed with zstd, which cannot be unpacked here",
        help="pip install zstandard, or unpack it: zstd -d FILE",
    )


def head_of(path: Path) -> bytes:
    """The first 64 KiB, unpacked. Raises what `open_profile` and `Unpacked.read` raise."""
    with open_profile(path) as source:
        return source.read(_HEAD_BYTES)


def unreadable(path: Path, error: OSError) -> FlintError:
    """The FlintError FL801 for an error of the operating system."""
    return FlintError("FL801", f"cannot read {path}: {error.strerror or error}")


def too_large(path: Path | None, what: str) -> FlintError:
    """The FlintError FL806 for a recording that is more than a Profile holds."""
    return FlintError(
        "FL806",
        f"{path or 'the profile'} is too large: {what}",
        help="record fewer steps (schedule(wait=1, warmup=1, active=2)), without stacks",
    )


def whole_profile(path: Path, most_bytes: int) -> bytes:
    """All bytes of a file, unpacked. Raises FlintError FL801, FL803, and FL806 above `most_bytes`."""
    found = bytearray()
    with open_profile(path) as source:
        while piece := source.read(1 << 24):
            found += piece
            if len(found) > most_bytes:
                raise too_large(path, f"it unpacks to more than {most_bytes >> 20} MiB")
    return bytes(found)


# Files of profilers that Flint does not read, with what to give instead.

_ROCPROF = (b'"Kind","Agent_Id"', b'"Domain","Function"')
_SUFFIXES = {
    ".nsys-rep": ("a report of Nsight Systems", "nsys export --type sqlite REPORT.nsys-rep"),
    ".qdrep": ("a report of Nsight Systems", "nsys export --type sqlite REPORT.qdrep"),
    ".ncu-rep": ("a report of Nsight Compute", "it has counters of single kernels; use nsys"),
    ".pftrace": (
        "a Perfetto protobuf trace",
        "give the profiler's own file: Kineto JSON, xplane.pb, an nsys export",
    ),
    ".perfetto-trace": (
        "a Perfetto protobuf trace",
        "give the profiler's own file: Kineto JSON, xplane.pb, an nsys export",
    ),
}


def foreign(path: Path, head: bytes) -> FlintError | None:
    """The FlintError FL828 for a file of a known kind that is not read, else None."""
    if head.startswith(_ROCPROF) or b'"rocprofiler-sdk-tool"' in head[:4096]:
        return no_rocprof(path)
    known = _SUFFIXES.get(path.suffix)
    if known is None:
        return None
    return FlintError("FL828", f"{path} is {known[0]}, which Flint does not read", help=known[1])


def no_rocprof(path: Path) -> FlintError:
    """The FlintError FL828 for what rocprofv3 wrote."""
    return FlintError(
        "FL828",
        f"{path} was written by rocprofv3, which Flint does not read",
        help="profile through PyTorch (torch.profiler, which uses rocprofiler itself) or JAX",
    )
