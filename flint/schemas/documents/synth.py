"""What `flint synth` and `flint learn` say."""

from __future__ import annotations

from typing import Any, Literal

from typing_extensions import TypedDict


class SampleDocument(TypedDict):
    """One workload that was made."""

    path: str
    """The file, or the directory of traces, that was written."""
    seed: int
    """The seed that makes it again, with the same model and conditions."""
    asked: dict[str, Any]
    """Totals that were asked for, of one device in one step; null or absent where nothing was."""
    found: dict[str, Any]
    """Totals that it has."""


class SynthDocument(TypedDict):
    """Workloads that were made. They follow all strict rules of captured programs."""

    schema: Literal["flint.synth/1"]
    """Kind and version of this document."""
    output: str
    """The directory that was written."""
    model: str
    """The file of the model, or "default"."""
    samples: list[SampleDocument]
    """One for each workload, in order."""


class LearnDocument(TypedDict):
    """A generator that was trained."""

    schema: Literal["flint.learn/1"]
    """Kind and version of this document."""
    output: str
    """The file that was written."""
    captures: int
    """Captures that were learned from."""
    left_out: int
    """Captures that were not: of several programs, recorded, without one rule for most rows."""
    templates: int
    """Kinds of steps that the generator knows."""
    steps: int
    """Steps of training."""
    seed: int
    """The seed of the training."""
    num_bytes: int
    """Bytes of the file."""
