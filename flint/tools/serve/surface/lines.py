"""Kernels and collectives of a pass whose sizes follow the pass: one line for all that are equal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from flint.backends.cost.chips.kernel_table import (
    Masks,
    behind_masks,
    masks_of,
    unmasked_kernels_of,
)
from flint.backends.cost.chips.kernels import KernelKind, Kernels
from flint.backends.cost.collectives import duration_ns
from flint.backends.cost.collectives.algorithm import CollectiveCall
from flint.backends.cost.network.placement import call_of
from flint.backends.cost.row_prices import Pricing, kernel_prices, model_prices
from flint.errors import FlintError
from flint.ir.arrays import Float64s, Mask
from flint.ir.program import Collective, Int64s, Kind, Program
from flint.tools.serve.surface.sizes import Polynomials, fitted


class PassPart(IntEnum):
    """What of a pass a kernel's time follows."""

    TOKENS = 0  #: the new tokens of all sequences together
    SEQUENCES = 1  #: how many sequences there are: the last token of each
    ATTENTION = 2  #: new tokens and context of each sequence


@dataclass(frozen=True, eq=False)
class PassLines:
    """Distinct kernels (`base`, `masks`, `sizes`) and collectives (`calls`, `payload`) of a pass.

    `sizes` has for each kernel its `COLUMNS`, in that order, `payload` for each call its bytes. `places` are
    lines of the model. `parts`, `call_parts` are `PassPart`s. `program` is a pass; `line` says of which line its
    `rows` are, where calls count on from kernels.
    """

    base: Kernels
    masks: Masks
    parts: NDArray[np.uint8]
    sizes: Polynomials
    calls: tuple[CollectiveCall, ...]
    call_parts: NDArray[np.uint8]
    payload: Polynomials
    pricing: Pricing
    changes: LineChanges
    places: tuple[str, ...]
    program: Program
    rows: Int64s
    line: Int64s
    _paid: dict[CollectiveCall, float] = field(default_factory=dict)

    @cached_property
    def counts(self) -> Int64s:
        """How often each kernel, then each call, runs in a pass."""
        found = np.zeros(len(self.base) + len(self.calls), dtype=np.int64)
        np.add.at(found, self.line, self.program.trips[self.rows])
        return found

    def ns(self, part: PassPart, sizes: Float64s) -> Float64s:
        """What a part takes at sizes (points, 3)."""
        mine = np.flatnonzero(self.parts == part)
        found: Float64s = self.kernels_ns(mine, sizes) @ self.counts[mine]
        return found + self.communication_ns(part, sizes)

    def kernels_ns(self, lines: Int64s, sizes: Float64s) -> Float64s:
        """What each kernel of some lines takes once, (points, lines)."""
        kernels = self.kernels(lines, sizes)
        none = np.zeros(len(kernels), dtype=np.int64)
        ns, _ = kernel_prices(kernels, none, self.pricing)
        found: Float64s = ns.reshape(len(sizes), -1) * self.changes.at(sizes, lines)
        return found

    def kernels(self, lines: Int64s, sizes: Float64s) -> Kernels:
        """The kernels of some lines at all sizes, point by point."""
        every = np.tile(lines, len(sizes))
        columns = self.columns(lines, sizes).reshape(-1, len(COLUMNS)).T
        sized = replace(
            self.base.select(every),
            dims=np.ascontiguousarray(columns[:4].T),
            **dict(zip(COLUMNS[4:], columns[4:], strict=True)),
        )
        return behind_masks(sized, self.masks.select(every))

    def columns(self, lines: Int64s, sizes: Float64s) -> Int64s:
        """`COLUMNS` of some lines (points, lines, columns) as programs have them, no mask applied."""
        rows = (lines[:, None] * len(COLUMNS) + np.arange(len(COLUMNS))).ravel()
        values = replace(self.sizes, factors=self.sizes.factors[rows]).at(sizes)
        return values.reshape(len(sizes), len(lines), len(COLUMNS))

    def communication_ns(self, part: PassPart, sizes: Float64s) -> Float64s:
        """What the collectives of a part take at sizes (points, 3)."""
        mine = np.flatnonzero(self.call_parts == part)
        found: Float64s = self.calls_ns(mine, sizes) @ self.counts[mine + len(self.base)]
        return found

    def calls_ns(self, lines: Int64s, sizes: Float64s) -> Float64s:
        """What each collective of some lines takes once, (points, lines)."""
        sent = self.payload_bytes(lines, sizes)
        calls = [self.calls[line] for line in lines.tolist()]
        paid = [
            self.call_ns(replace(call, comm_bytes=num_bytes))
            for at in sent.tolist()
            for call, num_bytes in zip(calls, at, strict=True)
        ]
        ratios = self.changes.at(sizes, lines + len(self.base))
        return np.array(paid, dtype=np.float64).reshape(sent.shape) * ratios

    def payload_bytes(self, lines: Int64s, sizes: Float64s) -> Int64s:
        """What a rank puts into each collective of some lines, (points, lines)."""
        return replace(self.payload, factors=self.payload.factors[lines]).at(sizes)

    def call_ns(self, call: CollectiveCall) -> float:
        """What one collective takes by the models."""
        if call not in self._paid:
            self._paid[call] = duration_ns(call, self.pricing.cluster)
        return self._paid[call]


@dataclass(frozen=True, eq=False)
class LineChanges:
    """What an estimate's options make of the models' times: ratios (lines, numbers of new tokens).

    Kernels come first, then calls. Between the numbers a ratio follows the logarithm.
    """

    tokens: Float64s
    ratios: Float64s

    def at(self, sizes: Float64s, lines: Int64s) -> Float64s:
        """Ratios (points, lines)."""
        mine = self.ratios[lines]
        if (mine == 1).all():
            return np.ones((len(sizes), len(lines)))
        asked = np.log(np.maximum(sizes[:, 0] * sizes[:, 1], 1))
        known = np.log(self.tokens)
        columns = [np.interp(asked, known, line) for line in mine]
        return np.column_stack(columns) if columns else np.ones((len(sizes), 0))


#: What a pass may be longer or shorter by because sizes of kernels are no sums of products.
OFF = 0.01

#: The columns of `Kernels` that sizes of a pass change; `dims` first, as four.
COLUMNS = ("batch", "m", "n", "k", "flops", "read_bytes", "written_bytes", "elements", "arrays")


@dataclass(frozen=True, eq=False)
class _Listing:
    """A program in order of its rows: kernels with their sizes, and calls."""

    kernels: Kernels
    masks: Masks
    rows: Int64s
    columns: Int64s  #: (kernels, COLUMNS)
    calls: tuple[CollectiveCall, ...]
    call_rows: Int64s
    program: Program

    def keys(self) -> list[tuple[object, ...]]:
        """What tells kernels apart at one size, then calls."""
        k, m = self.kernels, self.masks
        facts = (k.kind, k.dtype, k.indexed_elements > 0, m.causal, m.window)
        rows = zip(self.columns.tolist(), *(fact.tolist() for fact in facts), strict=True)
        kernels = [(*c, *rest[:1], k.dtypes[rest[1]], *rest[2:]) for c, *rest in rows]
        calls = [(int(c.collective), c.spans, c.comm_bytes) for c in self.calls]
        return [*kernels, *calls]

    def signature(self) -> list[tuple[object, ...]]:
        """What has to be equal at all sizes, by row."""
        p, k = self.program, self.kernels
        kernels = [
            (p.opcodes[p.opcode[row]], int(k.kind[at]), k.dtypes[k.dtype[at]], int(p.trips[row]))
            for at, row in enumerate(self.rows.tolist())
        ]
        calls = [
            (int(c.collective), c.spans, int(p.trips[row]))
            for c, row in zip(self.calls, self.call_rows.tolist(), strict=True)
        ]
        return [*kernels, *calls]


def _listing(program: Program, pricing: Pricing) -> _Listing:
    kernels, rows = unmasked_kernels_of(program, tf32=pricing.tf32)
    mine = np.flatnonzero(program.kind >= Kind.COLLECTIVE)
    return _Listing(
        kernels,
        masks_of(program).select(rows),
        rows,
        np.column_stack([kernels.dims, *(getattr(kernels, name) for name in COLUMNS[4:])]),
        tuple(call_of(program, row, pricing.placement) for row in mine.tolist()),
        mine,
        program,
    )


def lines_of(
    programs: Sequence[Program],
    ns: Sequence[Float64s],
    pricing: Pricing,
    sizes: Float64s,
    said: Sequence[str],
    whole: Program | None = None,
    whole_at: int = 0,
) -> PassLines:
    """One program at several sizes (points, 3) as lines; `said` names each point.

    `ns` are what an estimate has for each row of each program. `whole` has all layers, if the others have
    few; it is of the point `whole_at`.

    Raises FlintError FL894 for programs that are not one program, and for sizes of a kernel that do
    not follow those of the pass, OtherLayers where `whole` has other kernels.
    """
    listings = [_listing(program, pricing) for program in programs]
    chosen = _of_one_program(listings, said)
    short = listings[whole_at]
    listings, sizes = [listings[at] for at in chosen], sizes[chosen]
    ns = [ns[at] for at in chosen]
    first = listings[0]
    columns = np.stack([x.columns for x in listings], axis=2)
    payload = np.array([[c.comm_bytes for c in x.calls] for x in listings], dtype=np.int64).T
    of_kernels, wrong = fitted(columns.reshape(-1, len(listings)), sizes)
    of_calls, wrong_calls = fitted(payload.reshape(-1, len(listings)), sizes)
    _require_sizes(wrong_calls, first.call_rows, first.program)
    found = _grouped(first, of_kernels, of_calls, pricing)
    found = replace(found, changes=_changes(listings, ns, found.line, pricing, sizes))
    misfits: Mask = np.asarray(wrong.reshape(-1, len(COLUMNS)).any(axis=1))
    _require_times(found, listings, ns, sizes, misfits)
    return found if whole is None else _of_all_layers(found, short, _listing(whole, pricing))


class OtherLayers(Exception):
    """A model with all layers has kernels that it does not have with few."""


def _of_all_layers(found: PassLines, few: _Listing, whole: _Listing) -> PassLines:
    """Lines of a model with few layers, as often as all layers have them."""
    numbers: dict[tuple[object, ...], int] = {}
    for key, number in zip(few.keys(), found.line.tolist(), strict=True):
        if numbers.setdefault(key, number) != number:
            raise OtherLayers
    rows, keys = np.concatenate([whole.rows, whole.call_rows]), whole.keys()
    if numbers.keys() != set(keys):
        raise OtherLayers
    return replace(
        found, program=whole.program, rows=rows, line=np.array([numbers[k] for k in keys])
    )


def _grouped(
    first: _Listing, of_kernels: Polynomials, of_calls: Polynomials, pricing: Pricing
) -> PassLines:
    """Equal kernels and calls together."""
    k, program = first.kernels, first.program
    factors = of_kernels.factors.reshape(len(k), -1)
    alike = np.column_stack(
        [factors, k.kind, k.dtype, k.indexed_elements > 0, first.masks.causal, first.masks.window]
    )
    _, where, of_row = np.unique(alike, axis=0, return_index=True, return_inverse=True)
    sizes = Polynomials(factors[where].reshape(-1, of_kernels.factors.shape[1]))
    keys = [
        (c.collective, c.spans, tuple(f))
        for c, f in zip(first.calls, of_calls.factors.tolist(), strict=True)
    ]
    places = {key: at for at, key in reversed(list(enumerate(keys)))}
    chosen = np.array(sorted(places.values()), dtype=np.int64)
    number = {int(at): n for n, at in enumerate(chosen)}
    payload = Polynomials(of_calls.factors[chosen])
    of_call = [number[places[key]] + len(where) for key in keys]
    return PassLines(
        k.select(where),
        first.masks.select(where),
        _parts(sizes, len(COLUMNS), np.isin(k.kind[where], _ATTENTION)),
        sizes,
        tuple(first.calls[at] for at in chosen),
        _parts(payload, 1, np.zeros(len(chosen), dtype=np.bool_)),
        payload,
        pricing,
        LineChanges(np.ones(1), np.ones((len(where) + len(chosen), 1))),
        tuple(program.strings[program.location[row]] for row in first.rows[where].tolist()),
        program,
        np.concatenate([first.rows, first.call_rows]),
        np.array([*of_row.ravel().tolist(), *of_call], dtype=np.int64),
    )


def _changes(
    listings: Sequence[_Listing],
    ns: Sequence[Float64s],
    line: Int64s,
    pricing: Pricing,
    sizes: Float64s,
) -> LineChanges:
    """Times of an estimate over those of the models, summed over the kernels of each line."""
    tokens = sizes[:, 0] * sizes[:, 1]
    different = np.unique(tokens)
    sums = np.zeros((2, int(line.max(initial=-1)) + 1, len(different)))
    plain = replace(pricing, routing=None)
    for listing, changed, count in zip(listings, ns, tokens.tolist(), strict=True):
        rows = np.concatenate([listing.rows, listing.call_rows])
        at = int(np.searchsorted(different, count))
        models = model_prices(listing.program, plain).on_grid().ns
        np.add.at(sums[0, :, at], line, changed[rows])
        np.add.at(sums[1, :, at], line, models[rows])
    ratios = np.divide(sums[0], sums[1], out=np.ones_like(sums[0]), where=sums[1] > 0)
    return LineChanges(different, np.where(np.abs(ratios - 1) < SAME, 1.0, ratios))


#: Ratios nearer to 1 are 1.
SAME = 1e-6
_ATTENTION = (KernelKind.ATTENTION, KernelKind.ATTENTION_BACKWARD)


def _parts(sizes: Polynomials, columns: int, attends: Mask) -> NDArray[np.uint8]:
    """The part of each line. What a sequence's context or the square of its tokens changes is attention."""
    looks = sizes.holds(batch=1, context=1) | sizes.holds(batch=1, new=2)
    has = (looks, sizes.holds(batch=1, new=1), sizes.holds(batch=1))
    attention, tokens, sequences = (rows.reshape(-1, columns).any(axis=1) for rows in has)
    counted = np.where(sequences & ~tokens, PassPart.SEQUENCES, PassPart.TOKENS)
    return np.where(attention | attends, PassPart.ATTENTION, counted).astype(np.uint8)


def _of_one_program(listings: Sequence[_Listing], said: Sequence[str]) -> list[int]:
    """The points of the most common program. One point of another one is left out.

    A size that happens to equal one of the model's may be another program; the last point, whose
    context is long, is none to leave out.
    """
    signatures = [listing.signature() for listing in listings]
    common = max(signatures, key=signatures.count)
    chosen = [at for at, found in enumerate(signatures) if found == common]
    if len(chosen) >= len(listings) - 1 and chosen[-1] == len(listings) - 1:
        return chosen
    other = next(at for at, found in enumerate(signatures) if found != common)
    both = list(zip(common, signatures[other], strict=False))
    at = next((n for n, (a, b) in enumerate(both) if a != b), len(both))
    names = [
        _said(found[at]) if at < len(found) else "nothing" for found in (common, signatures[other])
    ]
    raise FlintError(
        "FL894",
        f"passes of {said[chosen[0]]} and of {said[other]} are not the same program: kernel {at} is "
        f"{names[0]} in one and {names[1]} in the other",
        help="a model for flint serve runs the same operations at every size; "
        "choose what depends on sizes by an option of the entry",
    )


def _said(row: tuple[object, ...]) -> str:
    """A row of a signature in words."""
    name, *_, times = row
    what = Collective(name).name.lower() if isinstance(name, int) else str(name)
    return f"{what}, {times} times"


def _require_times(
    found: PassLines,
    listings: Sequence[_Listing],
    ns: Sequence[Float64s],
    sizes: Float64s,
    wrong: Mask,
) -> None:
    """Sizes that are no sums may stand where they change little (the logarithm in a sort).

    Raises FlintError FL894 if kernels with such sizes make a pass longer or shorter by `OFF`.
    """
    if not wrong.any():
        return
    first = listings[0]
    summed = sum(found.ns(part, sizes) for part in PassPart)
    for listing, total, rows in zip(listings, np.asarray(summed).tolist(), ns, strict=True):
        true = float(rows @ listing.program.trips)
        if abs(total / true - 1) > OFF:
            _require_sizes(wrong, first.rows, first.program)


def _require_sizes(wrong: Mask, rows: Int64s, program: Program) -> None:
    found = rows[wrong].tolist()
    if not found:
        return
    places = [program.strings[program.location[row]] for row in found]
    shown = [place for place, _ in groupby(places)][:3]
    raise FlintError(
        "FL894",
        f"{len(found)} kernels have sizes that do not follow from batch, new and context",
        place=", ".join(filter(None, shown)),
        help="sizes are sums of products such as batch*new, batch*(context+new); "
        "buckets and paddings change in steps, and need an entry without them",
    )
