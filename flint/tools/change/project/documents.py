"""What `flint verify` and `flint run` say, and what flint.lock holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from typing_extensions import TypedDict

from flint.tools.change.diff.document import DiffDocument
from flint.tools.change.diff.snapshot import EstimateFacts, ProgramFacts, Snapshot


class VerdictDocument(TypedDict):
    """One capture against the lock, on one cluster."""

    capture: str  #: Name of the capture.
    cluster: str  #: Name of the cluster; "" where the capture names none.
    fails: bool  #: Whether a budget does not hold, or something changed that has no budgets.
    note: str  #: What else is to be known of it; "" for nothing.
    difference: DiffDocument  #: What differs from flint.lock.


class VerifyDocument(TypedDict):
    """The captures of flint.toml against flint.lock."""

    schema: Literal["flint.verify/1"]  #: Kind and version of this document.
    fails: bool  #: Whether any verdict fails: then the exit status is 1.
    verdicts: list[VerdictDocument]  #: One for each capture and cluster.


class RanCaptureDocument(TypedDict):
    """A capture of flint.toml."""

    cached: bool  #: Whether nothing had changed, and it was not captured again.
    lock: str  #: new, equal or changed: what it is to flint.lock.
    accepted: bool  #: Whether it was written into flint.lock.
    traces: str | None  #: Where traces were written; null where none were.
    warnings: list[str]  #: What could not be captured as asked for: sentences.
    snapshot: Snapshot  #: What it is now.


class RunDocument(TypedDict):
    """The captures of flint.toml, as `flint run` made them."""

    schema: Literal["flint.run/1"]  #: Kind and version of this document.
    captures: dict[str, RanCaptureDocument]  #: By name.


class LockedDocument(TypedDict):
    """What a capture was when somebody last accepted it."""

    made_with: dict[str, str]  #: Versions of what made it.
    name: str  #: Name of the program.
    program: ProgramFacts | None  #: What it is; null for a saved estimate.
    estimates: Mapping[str, EstimateFacts]  #: Estimates by the cluster's name.


class LockDocument(TypedDict):
    """The file flint.lock."""

    schema: Literal["flint.lock/1"]  #: Kind and version of this document.
    captures: dict[str, LockedDocument]  #: By name.
