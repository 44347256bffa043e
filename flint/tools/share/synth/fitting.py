"""Sizes of a drawn program, so that its totals come near what is asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flint.tools.share.conditions import Conditions
from flint.tools.share.synth.codec.reader import Steps
from flint.tools.share.synth.codec.totals import Amounts, Ledger, ledger_of
from flint.tools.share.synth.codec.writer import retyped

#: Powers of two that a size may be multiplied by.
_POWERS = np.arange(-6.0, 6.5, 0.5)
#: Rounds over all sizes.
_ROUNDS = 6
#: Sizes keep this power of two, as far as they have it: parts have to divide.
_GRAIN = 16
#: Largest size of one dimension.
_MOST_SIZE = 1 << 24
#: Weights of bits (base 2) by which totals miss what is asked for, and of those by which sizes move.
_OF_FLOPS, _OF_AXIS, _OF_MEMORY, _OF_MOVES = 1.0, 0.3, 0.3, 0.01
#: Share of the memory that one value may take.
_MOST_OF_MEMORY = 0.5
#: Bits that a total misses by when it is 0 and is not asked to be, or the other way round.
_MOST_BITS = 12.0


def fitted(steps: Steps, asked: Conditions) -> Steps:
    """The same steps with sizes that bring the totals nearer to what is asked for.

    How each amount follows from each size is found by doubling the size: amounts of rows are products of
    sizes. Then sizes are multiplied by powers of two, one after the other, as long as that helps.
    Moves that a rule of shapes cannot follow are left out. Memory is held against the bytes that are held for
    the whole step, which are most of it.
    """
    sizes = tuple(steps.symbols.taken)
    if not sizes or (asked.flops is None and not asked.memory_bytes and not asked.axis_bytes):
        return steps
    model = _Model.of(steps, asked)
    powers = model.solve()
    found = steps
    for number in sorted(range(len(sizes)), key=lambda i: -abs(powers[i])):
        new = list(found.symbols.taken)
        new[number] = _scaled(sizes[number], 2.0 ** powers[number])
        moved = (
            retyped(found, found.scene, new) if tuple(new) != tuple(found.symbols.taken) else None
        )
        found = moved or found
    return found


@dataclass(frozen=True)
class _Model:
    """Amounts of rows as products of powers of sizes: `amount * 2 ** (exponents @ powers)`.

    Each term is one total: (bits that are asked for, weight, amounts (R,), exponents (R, sizes)).
    `values` are amounts and exponents of single values, none of which should have more than `room` bits.
    """

    terms: tuple[tuple[float, float, Amounts, Amounts], ...]
    frozen: NDArray[np.bool_]
    values: tuple[Amounts, Amounts]
    room: float

    @classmethod
    def of(cls, steps: Steps, asked: Conditions) -> _Model:
        base = ledger_of(steps)
        sizes = list(steps.symbols.taken)
        doubled = [
            retyped(steps, steps.scene, [*sizes[:i], 2 * sizes[i], *sizes[i + 1 :]])
            for i in range(len(sizes))
        ]
        ledgers = [ledger_of(d) if d is not None else base for d in doubled]
        frozen = np.array([d is None for d in doubled], dtype=np.bool_)
        terms = []
        for name, label, wanted, weight in _totals_asked(asked, base):
            of_label = (label < 0) | (base.label == label)
            amounts, exponents = _powers_of(base, ledgers, name, of_label)
            if len(amounts):
                terms.append((math.log2(wanted), weight, *_grouped(amounts, exponents)))
        every = np.ones(len(steps), dtype=np.bool_)
        values = _powers_of(base, ledgers, "value", every)
        room = math.log2(asked.memory_bytes * _MOST_OF_MEMORY) if asked.memory_bytes else math.inf
        return cls(tuple(terms), frozen, _largest(*values), room)

    def solve(self) -> Amounts:
        """For each size the power of two that it is multiplied by."""
        powers = np.zeros(len(self.frozen))
        best = self._miss(powers)
        for _ in range(_ROUNDS):
            before = best
            for number in np.flatnonzero(~self.frozen).tolist():
                tried = np.repeat(powers[None], len(_POWERS), axis=0)
                tried[:, number] = _POWERS
                misses = [self._miss(t) for t in tried]
                at = int(np.argmin(misses))
                if misses[at] < best - 1e-6:
                    best, powers = misses[at], tried[at]
            if before - best < 1e-3:
                break
        return powers

    def _miss(self, powers: Amounts) -> float:
        found = _OF_MOVES * float((powers**2).sum())
        for wanted, weight, amounts, exponents in self.terms:
            total = float((amounts * np.exp2(exponents @ powers)).sum())
            found += weight * min(abs(math.log2(max(total, 1)) - wanted), _MOST_BITS) ** 2
        if math.isfinite(self.room):
            amounts, exponents = self.values
            largest = math.log2(float((amounts * np.exp2(exponents @ powers)).max()))
            found += max(largest - self.room, 0.0) ** 2
        return found


def _totals_asked(asked: Conditions, base: Ledger) -> list[tuple[str, int, float, float]]:
    """Name of the amounts, label of axes or -1, what is asked for, weight."""
    found = []
    if asked.flops:
        found.append(("flops", -1, asked.flops, _OF_FLOPS))
    if asked.memory_bytes:
        found.append(("held", -1, asked.memory_bytes, _OF_MEMORY))
    for number, label in enumerate(base.labels):
        if wanted := asked.axis_bytes.get(label):
            found.append(("sent", number, wanted, _OF_AXIS))
    return found


def _powers_of(
    base: Ledger, ledgers: list[Ledger], name: str, rows: NDArray[np.bool_]
) -> tuple[Amounts, Amounts]:
    """Amounts of rows that have any, and for each size by how many bits doubling it moves them."""
    amounts = getattr(base, name)
    kept = np.flatnonzero((amounts > 0) & rows)
    moved = [np.log2(np.maximum(getattr(x, name)[kept], 1) / amounts[kept]) for x in ledgers]
    return amounts[kept], np.stack(moved, axis=1)


def _largest(amounts: Amounts, exponents: Amounts) -> tuple[Amounts, Amounts]:
    """Of rows of equal exponents the largest."""
    kinds, which = np.unique(np.round(exponents, 2), axis=0, return_inverse=True)
    found = np.zeros(len(kinds))
    np.maximum.at(found, which.reshape(-1), amounts)
    return found, kinds


def _grouped(amounts: Amounts, exponents: Amounts) -> tuple[Amounts, Amounts]:
    """Rows of equal exponents as one."""
    kinds, which = np.unique(np.round(exponents, 2), axis=0, return_inverse=True)
    sums = np.bincount(which.reshape(-1), weights=amounts, minlength=len(kinds))
    return sums.astype(np.float64), kinds


def _scaled(size: int, factor: float) -> int:
    grain = math.gcd(size, _GRAIN)
    return min(max(round(size * factor / grain), 1) * grain, _MOST_SIZE)
