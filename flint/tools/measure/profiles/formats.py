"""Formats of profilers, told apart by what is in the file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from flint.errors import FlintError
from flint.plugins import READERS, blamed, left_out, load, registered, usable
from flint.tools.measure.profiles import execution_trace, kineto, nsight, xplane
from flint.tools.measure.profiles.profile import Profile
from flint.tools.measure.profiles.source import foreign, head_of


@dataclass(frozen=True, slots=True)
class ProfileFormat:
    """One way of writing profiles: `recognizes` looks at the first 64 KiB, unpacked.

    Packages register others (`flint.readers`).
    """

    name: str
    recognizes: Callable[[bytes], bool]
    read: Callable[[Path], tuple[Profile, ...]]


#: The first that recognizes a file reads it. Kineto's takes any JSON, so it is the last of all.
FORMATS: tuple[ProfileFormat, ...] = (
    ProfileFormat("JAX and XLA (xplane.pb)", xplane.recognizes, xplane.read),
    ProfileFormat("JAX and XLA (Chrome JSON)", xplane.recognizes_chrome, xplane.read_chrome),
    ProfileFormat("Nsight Systems (SQLite export)", nsight.recognizes, nsight.read),
    ProfileFormat(
        "PyTorch execution trace (JSON)", execution_trace.recognizes, execution_trace.read
    ),
    ProfileFormat(
        "Chakra execution trace (.et, JSON)",
        execution_trace.recognizes_chakra,
        execution_trace.read_chakra,
    ),
    ProfileFormat("PyTorch profiler (Kineto JSON)", kineto.recognizes, kineto.read),
)


@cache
def others() -> Mapping[str, ProfileFormat]:
    """Those of other packages, by their names."""
    return usable(READERS, registered(READERS), _registered)


def _registered(name: str) -> ProfileFormat:
    found: ProfileFormat = load(READERS, name, ProfileFormat)
    return found


def formats() -> tuple[ProfileFormat, ...]:
    """Flint's own, and then those of other packages."""
    return (*FORMATS, *others().values())


def read_profiles(path: Path) -> tuple[Profile, ...]:
    """Profiles of a file, one for each rank that it holds.

    Raises FlintError: FL801 (no profile, or it cannot be read), FL802 (a trace of another kind),
    FL803 (cut or damaged), FL804 (nothing of a device), FL805 (absurd numbers), FL806 (too large).
    """
    return format_of(path).read(path)


def holds_profile(path: Path) -> bool:
    """Whether a file says itself that it is a profile, among files that may hold anything else.

    Kineto's takes any JSON, so that its own keys are looked for.
    """
    head = head_of(path) if path.is_file() else b""
    return _own(head) is not None or _of_others(head) is not None


def format_of(path: Path) -> ProfileFormat:
    """How a file is written. Raises FlintError FL801 if nothing here reads it, FL828 if it is known.

    What a file says of itself comes first, then what other packages recognize, then any JSON.
    """
    head = head_of(path)
    error = foreign(path, head)
    found = (None if error else _own(head)) or _of_others(head)
    if found is None and error:
        raise error
    if found is None and kineto.recognizes(head):
        found = FORMATS[-1]
    if found is not None:
        return found
    what = "it is empty" if not head else f"it begins with {head[:16]!r}"
    raise FlintError(
        "FL801",
        f"{path} is not a profile that Flint reads: {what}",
        help="what is read: " + ", ".join(form.name for form in formats()),
    )


def _own(head: bytes) -> ProfileFormat | None:
    """Flint's format of a file that says of itself what it is."""
    says_kineto = b'"traceEvents"' in head or b"schemaVersion" in head
    for form in FORMATS if says_kineto else FORMATS[:-1]:
        if form.recognizes(head):
            return form
    return None


def _of_others(head: bytes) -> ProfileFormat | None:
    """The first format of other packages that recognizes a file."""
    for name, form in others().items():
        with left_out(READERS, name, "recognize a file"):
            if form.recognizes(head):
                return replace(form, read=partial(_read, name))
    return None


def _read(name: str, path: Path) -> tuple[Profile, ...]:
    with blamed(READERS, name, f"read {path.name}"):
        return others()[name].read(path)
