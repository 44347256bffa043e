"""What a pass over a Program is, and the driver that runs passes."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from flint.errors import FlintError
from flint.ir.program import MOST_INT64, Program
from flint.ir.verify import QUANTITIES, exact_sum

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

    A pass that breaks an invariant raises AssertionError naming the pass: a bug of ours. Raises
    FlintError FL407 where the numbers of the program are so large that what it adds up is beyond int64.
    """
    started = time.perf_counter()
    try:
        with np.errstate(over="ignore"):
            result = one.apply(program)
        seconds = time.perf_counter() - started
        result.verify()
    except (AssertionError, OverflowError) as error:
        _refuse_huge(one, program)
        raise AssertionError(f"after pass {one.name}: {error}") from error
    _log.debug("%s: %d rows became %d in %.3f s", one.name, len(program), len(result), seconds)
    return Applied(result, seconds)


def _refuse_huge(one: Pass, program: Program) -> None:
    """Raise FlintError FL407 if a number of the program has no room to grow 256 times."""
    sums = {name: exact_sum(getattr(program, name)) for name in QUANTITIES}
    sums["dims"] = int(program.dims.max(initial=0))
    name, largest = max(sums.items(), key=lambda item: item[1])
    if largest > MOST_INT64 >> 8:
        raise FlintError(
            "FL407",
            f"{name.replace('_', ' ')} of up to {largest:.3g} are too large for the pass "
            f"{one.name}: its result is beyond 2^63",
            help="is a size wrong by orders of magnitude?",
        )


def run_passes(program: Program, passes: Sequence[Pass]) -> Program:
    """Apply `passes` in order, and verify the program after each as `apply_pass` does."""
    for one in passes:
        program = apply_pass(one, program).program
    return program
