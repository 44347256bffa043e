"""A rule: which rows it is about, and for which of those it holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flint.ir.arrays import Mask
from flint.tools.share.rules.view import View


@dataclass(frozen=True, slots=True)
class Told:
    """What a rule says of a program: the rows that it is about, and those for which it holds."""

    about: Mask
    holds: Mask

    @property
    def broken(self) -> Mask:
        """Rows that break the rule."""
        return self.about & ~self.holds


@dataclass(frozen=True, slots=True)
class Rule:
    """What each row of a captured program keeps, in words and as a function of the program."""

    name: str
    says: str
    tell: Callable[[View], Told]


@dataclass(frozen=True, slots=True)
class Broken:
    """A row that breaks a rule: `row` of `program`, -1 for what is of no single row."""

    rule: str
    program: int
    row: int
    message: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.message}"
