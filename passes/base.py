"""What a pass over a Program is, and the driver that runs passes."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from flint.ir.program import Program

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pass(ABC):
    """A pure function from Program to Program.

    A subclass is a frozen dataclass with a `name`; its options are its fields. Name, options and
    docstring are what `flint opt` shows and takes: see `flint.passes.pass_list`.
    """

    name: ClassVar[str]

    @abstractmethod
    def apply(self, program: Program) -> Program:
        """Return the rewritten program; the input is not changed."""


class Applied(NamedTuple):
    """What a pass made of a program, verified, and how long it took."""

    program: Program
    seconds: float


def apply_pass(one: Pass, program: Program) -> Applied:
    """Apply a pass and verify what it made.

    A pass that breaks an invariant raises AssertionError naming the pass: a bug of ours.
    """
    started = time.perf_counter()
    result = one.apply(program)
    seconds = time.perf_counter() - started
    _log.debug("%s: %d rows became %d in %.3f s", one.name, len(program), len(result), seconds)
    try:
        result.verify()
    except AssertionError as error:
        raise AssertionError(f"after pass {one.name}: {error}") from error
    return Applied(result, seconds)


def run_passes(program: Program, passes: Sequence[Pass]) -> Program:
    """Apply `passes` in order, and verify the program after each as `apply_pass` does."""
    for one in passes:
        program = apply_pass(one, program).program
    return program
