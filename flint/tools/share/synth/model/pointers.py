"""What a candidate of a pointer is, beside its content: near or far, last or not, read or unread.

Each candidate has five codes; the network gives each code a weight that depends on who asks.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from flint.tools.share.synth.model.sequence import SLOTS

Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]

#: Steps back that have a code of their own; further ones share one for each power of two.
_NEAR, _FAR = 8, 9
#: How many candidates are later: 0, 1, 2, 3, up to 7, 15, 31, more.
_RANKS = 8
#: Read already, or unread with so many later ones unread: 0, 1, 2, up to 6, more.
_UNREAD = 6
#: How long the steps before are alike, where an earlier step is taken for an example.
_ALIKE = 4
_RANK_AT = _NEAR + _FAR
_UNREAD_AT = _RANK_AT + _RANKS
_MOVED_AT = _UNREAD_AT + _UNREAD
_SAME_AT = _MOVED_AT + _ALIKE
#: Codes that there are. The code `CODES` means nothing: its weight is 0.
CODES = _SAME_AT + _ALIKE


def _table(limits: tuple[int, ...], size: int) -> Ints:
    """For each number below `size`, how many limits it has reached."""
    return np.searchsorted(np.array(limits), np.arange(size), side="right")


_DISTANCES = _table((*range(2, _NEAR + 2), *(16 << i for i in range(_FAR - 1))), 4097)
_RANK = _RANK_AT + _table((1, 2, 3, 4, 8, 16, 32), 64)
_OPEN = _UNREAD_AT + 1 + _table((1, 2, 3, 7), 16)
_LEVEL = _table((1, 4, 16), 32)


def candidate_codes(
    steps: Ints, candidates: Ints, unread: Bools, ends: Ints, owner: Ints, example: Ints
) -> Ints:
    """Codes (n, 5) of the candidates of several pointers, one after the other.

    Pointer p is of `steps[p]`; its candidates end before `ends[p]`; entry i is one of pointer
    `owner[i]`. `example` (P, 3): the step that the same operand of a like step reads, moved by as
    much as the steps are apart; that step itself; and how many steps before are alike (-1, -1, 0
    for none).
    """
    codes = np.empty((5, len(candidates)), np.int64)
    codes[0] = _DISTANCES[np.minimum(steps[owner] - candidates, len(_DISTANCES) - 1)]
    later = ends[owner] - 1 - np.arange(len(candidates))
    codes[1] = _RANK[np.minimum(later, len(_RANK) - 1)]
    counts = np.concatenate([[0], np.cumsum(unread)])
    open_later = counts[ends][owner] - counts[1:]
    codes[2] = np.where(unread, _OPEN[np.minimum(open_later, len(_OPEN) - 1)], _UNREAD_AT)
    level = _LEVEL[np.minimum(example[:, 2], len(_LEVEL) - 1)]
    moved = candidates == example[owner, 0]
    codes[3] = np.where(moved, (_MOVED_AT + level)[owner], CODES)
    same = candidates == example[owner, 1]
    codes[4] = np.where(same, (_SAME_AT + level)[owner], CODES)
    return codes.T


def slot_of(operand: int) -> int:
    """The slot of an operand by its number: those that are told apart, then the last for all."""
    return min(operand, SLOTS - 1)


def near_codes(codes: Ints) -> Bools:
    """Which candidates are among the last, the last unread, or those that an example reads."""
    last = codes[:, 1] < _RANK_AT + _RANKS - 2
    unread = (codes[:, 2] > _UNREAD_AT) & (codes[:, 2] < _UNREAD_AT + _UNREAD - 1)
    return last | unread | (codes[:, 3] < CODES) | (codes[:, 4] < CODES)
