"""Which compiled call of the program runs, and whether a CUDA graph replays it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple


class CompiledCall(NamedTuple):
    """What an operator was part of.

    `number` counts the calls of compiled functions from 1; 0 is what runs eagerly. `replayed` says
    that a CUDA graph launches the operator.
    """

    number: int = 0
    replayed: bool = False


#: What runs eagerly.
EAGER = CompiledCall()


class CompiledCalls:
    """Follows a program into its compiled calls, and out of them.

    A compiled function inside another is part of it, as it is traced with it.
    """

    def __init__(self) -> None:
        self.made = 0  #: calls so far
        self._stack: list[CompiledCall | None] = []

    @property
    def current(self) -> CompiledCall:
        return (self._stack[-1] if self._stack else None) or EAGER

    @property
    def is_outside(self) -> bool:
        """Whether what runs is kept out of compiled calls, whatever called it."""
        return bool(self._stack) and self._stack[-1] is None

    @contextmanager
    def call(self, *, fuses: bool = True, replays: bool = False) -> Iterator[None]:
        """What runs inside is one call: of a compiled function if `fuses`, of a graph if `replays`."""
        before = self.current
        number = before.number
        if fuses and not number:
            self.made += 1
            number = self.made
        self._stack.append(CompiledCall(number, replays or before.replayed))
        try:
            yield
        finally:
            self._stack.pop()

    @contextmanager
    def outside(self) -> Iterator[None]:
        """What runs inside is not compiled: the compiler leaves it out of its graphs."""
        self._stack.append(None)
        try:
            yield
        finally:
            self._stack.pop()
