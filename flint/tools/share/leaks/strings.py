"""Surviving strings: texts of a shared workload that are not of the public vocabulary."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from flint.ir.workload import Workload
from flint.tools.share.leaks.texts import Place, Text, is_public, texts_of
from flint.tools.share.leaks.words import words_in, words_of


@dataclass(frozen=True, slots=True)
class Survivor:
    """A text of what is shared that may identify.

    `where` is the first place of its kind that has it, `times` how many have. `is_original`: the
    original has the same text. `words` are those of the original's words that it holds, also as
    parts; without an original there are none.
    """

    place: Place
    where: str
    text: str
    times: int = 1
    is_original: bool = False
    words: tuple[str, ...] = ()


def surviving_strings(shared: Workload, original: Workload | None = None) -> tuple[Survivor, ...]:
    """Texts of a workload that are neither of the public vocabulary nor generated words.

    With the original at hand each says which of its words it holds. In the order of the workload.
    """
    return survivors_of((t for t in texts_of(shared) if not is_public(t)), original)


def survivors_of(texts: Iterable[Text], original: Workload | None = None) -> tuple[Survivor, ...]:
    """Texts that are not public as survivors: equal ones of one kind of place are one."""
    found: dict[tuple[Place, str], tuple[str, int]] = {}
    for text in texts:
        where, times = found.get((text.place, text.text), (text.where, 0))
        found[text.place, text.text] = (where, times + 1)
    if not found:
        return ()
    known = frozenset(t.text for t in texts_of(original)) if original else frozenset()
    words = words_of(known)
    return tuple(
        Survivor(place, where, text, times, text in known, words_in(text, words))
        for (place, text), (where, times) in found.items()
    )
