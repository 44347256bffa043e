"""Words of a workload: what to look for in what is shared, also inside longer texts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache

from flint.tools.share.leaks import vocabulary

_RUN = re.compile(r"[^\W_]+")
#: Shorter words are compared whole: as parts they occur in texts of everybody.
LEAST_PART = 4
#: Longer words are compared by their first so many characters.
MOST_PART = 40


def runs(text: str) -> Iterator[str]:
    """Runs of letters and digits, in lower case: of `acme/v2_7B` acme, v2 and 7b."""
    return (found.casefold() for found in _RUN.findall(text))


def words_of(texts: Iterable[str]) -> frozenset[str]:
    """Words that tell texts from others: runs with a letter that are not of the public vocabulary.

    Runs of one character say nothing; those of two count if a digit is in them (`7b`).
    """
    found = {run for text in texts for run in runs(text)}
    return frozenset(run for run in found if _tells(run)) - public_words()


def words_in(text: str, words: frozenset[str]) -> tuple[str, ...]:
    """Those of `words` that a text holds, sorted: whole runs, and parts of four or more characters."""
    found: set[str] = set()
    for run in runs(text):
        if run in words:
            found.add(run)
        found |= words.intersection(_parts(run))
    return tuple(sorted(found))


@cache
def public_words() -> frozenset[str]:
    """Runs of every public opcode, type and word of Flint's: they tell nothing."""
    texts = [
        *vocabulary.public_operators(),
        *vocabulary.FLINT_OPCODES,
        *vocabulary.DTYPES,
        *vocabulary.METADATA_KEYS,
        *vocabulary.METADATA_VALUES,
        *vocabulary.NEUTRAL_WORDS,
    ]
    return frozenset(run for text in texts for run in runs(text))


def _tells(run: str) -> bool:
    has_letter, has_digit = not run.isdigit(), any(map(str.isdigit, run))
    return has_letter and len(run) >= (2 if has_digit else 3)


def _parts(run: str) -> Iterator[str]:
    run = run[: 4 * MOST_PART]
    for start in range(len(run) - LEAST_PART + 1):
        for stop in range(start + LEAST_PART, min(len(run), start + MOST_PART) + 1):
            yield run[start:stop]
