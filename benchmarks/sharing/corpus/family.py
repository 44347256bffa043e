"""What a family of models is to the corpus."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from benchmarks.sharing.corpus.run import Model, Run
from benchmarks.sharing.corpus.sizes import Options

#: Styles of models that are cut over the batch and over widths.
WIDTH_STYLES = ("dp", "fsdp", "fsdp", "tp", "fsdp+tp", "fsdp+tp")
#: Those, and ways that cut the length.
LENGTH_STYLES = (*WIDTH_STYLES, "tp+sp", "fsdp+tp+sp", "cp", "fsdp+cp", "tp+cp")


@dataclass(frozen=True, slots=True)
class Example:
    """A model file of the repository that the family has, too: its settings and the sizes that its second axis may have."""

    model: str
    second: tuple[int, ...]
    settings: Callable[[Random], dict[str, str]]


@dataclass(frozen=True, slots=True)
class Family:
    """Models of one architecture: `draw` options, `build` the model that they say for a run.

    `inference` is the share of forward passes; `example` takes the place of `build` in a fifth of draws.
    """

    name: str
    draw: Callable[[Random], Options]
    build: Callable[[Options, Run], Model]
    styles: tuple[str, ...] = WIDTH_STYLES
    inference: float = 0.2
    example: Example | None = None
