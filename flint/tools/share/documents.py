"""What `flint anonymize`, `grow`, `synth` and `learn` say with `--json`."""

from __future__ import annotations

from typing import Any, Literal

from typing_extensions import TypedDict

from flint.tools.share.growing.known import SizeEntry
from flint.tools.share.leaks.strings import Survivor
from flint.tools.share.shapes.perturb import Moves
from flint.tools.share.totals import Change


class SampleDocument(TypedDict):
    """One workload that was made."""

    path: str  #: The file, or the directory of traces, that was written.
    seed: int  #: The seed that makes it again, with the same model and conditions.
    asked: dict[str, Any]
    """Totals that were asked for, of one device in one step; null or absent where nothing was. `found` has them within 10 %."""
    found: dict[str, Any]  #: Totals that it has.


class SynthDocument(TypedDict):
    """Workloads that were made. They follow all strict rules of captured programs."""

    schema: Literal["flint.synth/1"]  #: Kind and version of this document.
    output: str  #: The directory that was written.
    model: str  #: The folder of remembered programs, or "default".
    samples: list[SampleDocument]  #: One for each workload, in order.


class LearnDocument(TypedDict):
    """Programs that were remembered."""

    schema: Literal["flint.learn/2"]  #: Kind and version of this document.
    output: str  #: The folder that was written.
    captures: int  #: Captures that were read.
    remembered: int
    """Programs that were remembered. Left out are captures of several programs, recorded or compiled ones, profiles, and what differs from another capture in sizes alone."""
    rows: list[int]  #: Rows of each remembered program.


class GrowDocument(TypedDict):
    """Variables of a workload, what they became, and how totals moved."""

    schema: Literal["flint.grow/1"]  #: Kind and version of this document.
    output: str | None  #: The file or directory that was written; null where nothing was.
    files: int  #: How many files were written.
    mesh: dict[str, int]  #: Axes with sizes, of the grown workload.
    old_mesh: dict[str, int]  #: Axes with sizes, of the original.
    rows: list[int]  #: Rows of each program of the grown workload.
    variables: tuple[SizeEntry, ...]  #: All variables of the original.
    changes: tuple[Change, ...]
    """Totals before and after; empty where nothing was asked for."""
    assumed: list[str]  #: What was taken for granted, in sentences.


class MovedTotalDocument(TypedDict):
    """A total of the step, or what an estimate says of it, before and after."""

    name: str  #: What it is: "FLOPs", "bytes over axis0", "step time on h100-dgx" (ns), ...
    before: float  #: Of the original.
    after: float  #: Of what was written.
    share: float  #: after / before - 1.


class AnonymizeDocument(TypedDict):
    """What was written, and what still identifies it. It names what it finds: keep it to yourself."""

    schema: Literal["flint.anonymize/1"]  #: Kind and version of this document.
    level: str  #: What was given up: "names" or "shapes".
    promise: str  #: What the level promises, in a sentence.
    output: str  #: The file or directory that was written.
    files: int  #: How many files were written.
    mesh: dict[str, int]  #: Axes with sizes; empty for traces without a workload.
    rows: list[int]  #: Rows of each program; empty for traces without a workload.
    changes: list[MovedTotalDocument]
    """Totals before and after; empty for the level "names", which moves none."""
    moves: Moves | None  #: How far sizes moved; null for the level "names".
    rewired: None  #: Always null: no level changes structure.
    survivors: tuple[Survivor, ...]
    """Texts that are neither of the public vocabulary nor generated; exit status 1 if there is one."""
    leaks: dict[str, Any] | None  #: The leak report; null for traces without a workload.
