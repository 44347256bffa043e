"""What a pass over a Program is, and the driver that runs passes."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from flint.ir.program import Program


@dataclass(frozen=True)
class Pass(ABC):
    """A pure function from Program to Program. Its options are the fields of the dataclass."""

    name: ClassVar[str]

    @abstractmethod
    def apply(self, program: Program) -> Program:
        """Return the rewritten program; the input is not changed."""


#: Called after each pass with (pass, program before, program after, seconds).
PassCallback = Callable[[Pass, Program, Program, float], None]


def run_passes(
    program: Program, passes: Sequence[Pass], after: PassCallback | None = None
) -> Program:
    """Apply `passes` in order and verify the program after each.

    A pass that breaks an invariant raises AssertionError naming the pass: a bug of ours.
    """
    for p in passes:
        started = time.perf_counter()
        result = p.apply(program)
        seconds = time.perf_counter() - started
        try:
            result.verify()
        except AssertionError as error:
            raise AssertionError(f"after pass {p.name}: {error}") from error
        if after is not None:
            after(p, program, result, seconds)
        program = result
    return program
