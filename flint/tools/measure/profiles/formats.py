"""Formats of profilers, told apart by what is in the file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from flint.errors import FlintError
from flint.plugins import READERS, load, registered
from flint.tools.measure.profiles import execution_trace, kineto, nsight, xplane
from flint.tools.measure.profiles.foreign import foreign
from flint.tools.measure.profiles.profile import Profile
from flint.tools.measure.profiles.source import head_of


@dataclass(frozen=True, slots=True)
class ProfileFormat:
    """One way of writing profiles: `recognizes` looks at the first 64 KiB, unpacked.

    Packages register others (`flint.readers`).
    """

    name: str
    recognizes: Callable[[bytes], bool]
    read: Callable[[Path], tuple[Profile, ...]]


#: The first that recognizes a file reads it. Kineto's takes any JSON, so it is the last.
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


def formats() -> tuple[ProfileFormat, ...]:
    """Those of other packages, by their names, and then Flint's own."""
    return (*(load(READERS, name) for name in registered(READERS)), *FORMATS)


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
    says_kineto = b'"traceEvents"' in head or b"schemaVersion" in head
    return any(f.recognizes(head) and (f.read is not kineto.read or says_kineto) for f in formats())


def format_of(path: Path) -> ProfileFormat:
    """How a file is written. Raises FlintError FL801 if nothing here reads it, FL828 if it is known."""
    head = head_of(path)
    if error := foreign(path, head):
        raise error
    for form in formats():
        if form.recognizes(head):
            return form
    what = "it is empty" if not head else f"it begins with {head[:16]!r}"
    raise FlintError(
        "FL801",
        f"{path} is no profile that Flint reads: {what}",
        help="what is read: " + ", ".join(form.name for form in formats()),
    )
