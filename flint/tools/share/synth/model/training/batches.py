"""Programs cut into pieces of equal length, several at a time, as arrays for the network."""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from flint.tools.share.synth.model.pointers import candidate_codes, near_codes, slot_of
from flint.tools.share.synth.model.repeats import LONGEST, Repeats
from flint.tools.share.synth.model.sequence import SLOTS, Sequence
from flint.tools.share.synth.model.state import progress

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float32]
Bools: TypeAlias = NDArray[np.bool_]

#: Candidates of a pointer that are kept in training beside the near ones, about.
_FAR_KEPT = 24


@dataclass(frozen=True, eq=False)
class Prepared:
    """A sequence with what repeats say at each step (V: nothing) and of each pointer.

    `reads` holds, step after step, the steps that each reads: `reads[starts[t]:starts[t + 1]]`.
    """

    sequence: Sequence
    guesses: Ints
    alike: Floats
    examples: Ints
    starts: Ints


@dataclass(frozen=True, eq=False)
class Piece:
    """Steps `start` to `stop` of B sequences, L at most, the longest first.

    Along (B, L): `templates` (-1 beyond the end), `before` and `guesses` (V: none), `features` of
    the step before, `past` (progress), `weight`. `bag` and `bag_starts`: templates that the step
    before read, step after step. `all_templates`, `all_features`: of all steps up to `stop`.

    Along pointers: `rows` (of B * L), `batch`, `number` in its sequence, `slots`, `targets`,
    `chosen` (how many operands of the step are chosen before). Along entries, which are kept
    candidates: `owners`, `candidates`, `codes`, `boost` (of those that stand for more).
    `hits`: the entry of each pointer that is its target.
    """

    start: int
    stop: int
    conditions: Floats
    templates: Ints
    before: Ints
    guesses: Ints
    features: Floats
    past: Floats
    weight: Floats
    bag: Ints
    bag_starts: Ints
    all_templates: Ints
    all_features: Floats
    rows: Ints
    batch: Ints
    number: Ints
    slots: Ints
    targets: Ints
    chosen: Ints
    owners: Ints
    candidates: Ints
    codes: Ints
    boost: Floats
    hits: Ints


def prepare(sequence: Sequence, vocabulary: int) -> Prepared:
    """Follow a sequence once, as `State` does when it writes."""
    repeats = Repeats(vocabulary)
    steps = len(sequence)
    guesses = np.full(steps, vocabulary, np.int64)
    alike = np.zeros(steps, np.float32)
    examples = np.full((len(sequence.step), 3), -1, np.int64)
    starts = np.searchsorted(sequence.step, np.arange(steps + 1))
    for step, template in enumerate(sequence.templates.tolist()):
        guess = repeats.guess()
        if guess:
            guesses[step], alike[step] = guess.template, guess.alike / LONGEST
        mine = slice(starts[step], starts[step + 1])
        slots = np.minimum(sequence.slot[mine], SLOTS - 1)
        operands, place, long = repeats.example(template)
        same = operands[slots]
        examples[mine, 0] = np.where(same >= 0, same + step - place, -1)
        examples[mine, 1], examples[mine, 2] = same, long
        kept = np.full(SLOTS, -1, np.int64)
        kept[slots] = sequence.target[mine]
        repeats.append(template, kept)
    return Prepared(sequence, guesses, alike, examples, starts)


def piece(
    group: Several[Prepared],
    start: int,
    length: int,
    vocabulary: int,
    rows: Several[int | None],
    random: np.random.Generator | None,
) -> Piece:
    """Steps `start:start + length` of sequences that all have more than `start` steps.

    `rows`: steps that each asks for. With `random`, only some of the candidates are kept.
    """
    stop = min(start + length, len(group[0].sequence))
    columns = [
        _steps(p, start, stop, vocabulary, asked) for p, asked in zip(group, rows, strict=True)
    ]
    bags = [_bag(p, start, stop) for p in group]
    sizes = np.concatenate([size for size, _ in bags])
    pointers = [_pointers(p, start, stop, random) for p in group]
    entries = np.cumsum([0, *(len(p["candidates"]) for p in pointers)])
    counts = np.cumsum([0, *(len(p["slots"]) for p in pointers)])
    every = {name: np.concatenate([p[name] for p in pointers]) for name in pointers[0]}
    batch = np.repeat(np.arange(len(group)), np.diff(counts))
    return Piece(
        start,
        stop,
        np.stack([p.sequence.conditions for p in group]),
        **{name: np.stack([c[name] for c in columns]) for name in columns[0]},
        bag=np.concatenate([values for _, values in bags]),
        bag_starts=np.cumsum(sizes) - sizes,
        rows=every["step"] - start + batch * (stop - start),
        batch=batch,
        number=every["number"],
        slots=every["slots"],
        targets=every["targets"],
        chosen=every["chosen"],
        owners=every["owners"] + np.repeat(counts[:-1], np.diff(entries)),
        candidates=every["candidates"],
        codes=every["codes"],
        boost=every["boost"],
        hits=every["hits"] + np.repeat(entries[:-1], np.diff(counts)),
    )


def _steps(
    p: Prepared, start: int, stop: int, vocabulary: int, rows: int | None
) -> dict[str, NDArray[np.generic]]:
    s = p.sequence
    end = min(stop, len(s))
    here, size = end - start, stop - start
    before = np.concatenate([[vocabulary], s.templates])[start:end]
    features = np.concatenate([np.zeros_like(s.features[:1]), s.features])[start:end]
    past = np.column_stack([*progress(np.arange(start, end), rows), p.alike[start:end]])
    return {
        "templates": _padded(s.templates[start:end].astype(np.int64), size, -1),
        "before": _padded(before, size, vocabulary),
        "guesses": _padded(p.guesses[start:end], size, vocabulary),
        "features": _padded(features, size, 0),
        "past": _padded(past.astype(np.float32), size, 0),
        "weight": _padded(np.full(here, s.weight, np.float32), size, 0),
        "all_templates": _padded(s.templates[:end].astype(np.int64), stop, vocabulary),
        "all_features": _padded(s.features[:end], stop, 0),
    }


def _padded(column: NDArray[np.generic], size: int, value: int) -> NDArray[np.generic]:
    missing = [(0, size - len(column))] + [(0, 0)] * (column.ndim - 1)
    return np.pad(column, missing, constant_values=value)


def _bag(p: Prepared, start: int, stop: int) -> tuple[Ints, Ints]:
    """For each step, how many steps the one before reads; and the templates of these."""
    sizes = np.zeros(stop - start, np.int64)
    end = min(stop, len(p.sequence))
    first = max(start - 1, 0)
    sizes[first + 1 - start : end - start] = np.diff(p.starts[first:end])
    read = p.sequence.target[p.starts[first] : p.starts[max(end - 1, first)]]
    return sizes, p.sequence.templates[read].astype(np.int64)


def _pointers(
    p: Prepared, start: int, stop: int, random: np.random.Generator | None
) -> dict[str, NDArray[np.generic]]:
    s = p.sequence
    begin, end = p.starts[start], p.starts[min(stop, len(s))]
    steps = s.step[begin:end].astype(np.int64)
    entries = slice(s.first[begin], s.first[end])
    ends = s.first[begin + 1 : end + 1] - s.first[begin]
    sizes = np.diff(s.first[begin : end + 1])
    owners = np.repeat(np.arange(len(steps)), sizes)
    candidates = s.candidates[entries].astype(np.int64)
    examples, targets = p.examples[begin:end], s.target[begin:end].astype(np.int64)
    codes = candidate_codes(steps, candidates, s.unread[entries], ends, owners, examples)
    hit = candidates == targets[owners]
    boost = np.zeros(len(candidates), np.float32)
    if random is not None:
        kept, boost = _keep(codes, hit, sizes[owners], random)
        owners, candidates, codes = owners[kept], candidates[kept], codes[kept]
        hit, boost = hit[kept], boost[kept]
    return {
        "step": steps,
        "number": np.arange(len(steps)),
        "slots": np.minimum(s.slot[begin:end], slot_of(SLOTS)).astype(np.int64),
        "targets": targets,
        "chosen": np.arange(begin, end) - p.starts[steps],
        "owners": owners,
        "candidates": candidates,
        "codes": codes,
        "boost": boost,
        "hits": np.flatnonzero(hit),
    }


def _keep(
    codes: Ints, hit: Bools, sizes: Ints, random: np.random.Generator
) -> tuple[Bools, Floats]:
    """Which candidates are kept, and the logarithm of how many each of the others stands for."""
    sure = near_codes(codes) | hit
    share = np.minimum(_FAR_KEPT / sizes, 1.0)
    kept = sure | (random.random(len(hit)) < share)
    boost = np.where(sure, 0.0, -np.log(share)).astype(np.float32)
    return kept, boost
