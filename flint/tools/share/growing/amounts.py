"""New sizes as users write them: `8192`, or a factor, `2x`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from flint.errors import FlintError

_FACTOR = re.compile(r"(\d+(?:\.\d+)?|\d+/\d+)x")


@dataclass(frozen=True, slots=True)
class Amount:
    """A size, or a factor of what it was."""

    value: Fraction
    is_factor: bool = False

    @classmethod
    def parse(cls, option: str, given: object) -> Amount:
        """Read `8192`, `2x`, `0.5x` or `1/2x`. Raises FlintError FL920 for anything else."""
        text = str(given).strip().replace("_", "").replace(",", "")
        if found := _FACTOR.fullmatch(text):
            factor = Fraction(found[1]) if "/0" not in found[1] else Fraction(0)
            if factor > 0:
                return cls(factor, is_factor=True)
        elif text.isdecimal() and int(text) > 0:
            return cls(Fraction(int(text)))
        raise FlintError(
            "FL920",
            f"{option} cannot be '{given}'",
            help="give a whole number (8192), or a factor of what it was (2x)",
        )

    def of(self, before: int, what: str) -> int:
        """The new size of what was `before`. Raises FlintError FL922 if it is no whole number."""
        value = self.value * before if self.is_factor else self.value
        if value.denominator != 1 or value < 1:
            raise FlintError(
                "FL922",
                f"{what} of {before:,} cannot be {float(self.value):g} times as large",
                help="give a factor that makes a whole number",
            )
        return int(value)


def pairs_of(option: str, texts: tuple[str, ...]) -> dict[str, str]:
    """`d7=4096` by name. Raises FlintError FL920."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = (word.strip() for word in text.partition("="))
        if not (name and equals and value) or name in found:
            raise FlintError(
                "FL920",
                f"{option} cannot be '{text}'",
                help=f"give it as {option} d7=4096, each variable once"
                if option == "--set"
                else f"give it as {option} d7=model, or d7=data+model, each variable once",
            )
        found[name] = value
    return found
