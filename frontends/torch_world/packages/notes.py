"""What stand-ins have to tell the user while a program is recorded."""

from __future__ import annotations

from collections.abc import Callable

_TELL: list[Callable[[str], None]] = []


def tell(sentence: str) -> None:
    """Warn the user once, with a sentence."""
    for listener in _TELL[-1:]:
        listener(sentence)


def listen(listener: Callable[[str], None]) -> Callable[[], None]:
    """Let `listener` have the sentences; the result ends that."""
    _TELL.append(listener)

    def done() -> None:
        _TELL.remove(listener)

    return done
