"""A program that is being written: what comes next, and which steps it may read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from flint.tools.share.synth.model.mixing import evidence, mixed, shares
from flint.tools.share.synth.model.ngrams import Ngrams
from flint.tools.share.synth.model.pointers import CODES, candidate_codes, slot_of
from flint.tools.share.synth.model.repeats import LONGEST, Guess, Repeats
from flint.tools.share.synth.model.sequence import SLOTS
from flint.tools.share.synth.model.weights import Floats, Sizes, Weights

Doubles: TypeAlias = NDArray[np.float64]


class State:
    """The steps so far. Changes with `advance`; `RowModel.start` makes one.

    The input of the GRU at step t: embeddings of the template before, of what it read (mean) and of
    the template that repeats say comes next, features of the step before, conditions, progress.
    """

    def __init__(
        self,
        sizes: Sizes,
        weights: Weights,
        ngrams: Ngrams,
        conditions: Floats,
        rows: int | None,
    ) -> None:
        self._sizes, self._weights, self._ngrams = sizes, weights, ngrams
        self._rows = rows
        self._templates: list[int] = []
        self._repeats = Repeats(sizes.vocabulary)
        self._guess: Guess | None = None
        self._keys = np.zeros((256, sizes.key), np.float32)
        self._asked = np.tanh(weights["asked_w"] @ conditions + weights["asked_b"])
        self._hidden = np.tanh(weights["start_w"] @ self._asked + weights["start_b"])
        none = weights["embedding"][sizes.vocabulary]
        zeros = np.zeros(sizes.embedding, np.float32)
        self._read(none, zeros, np.zeros(sizes.features, np.float32))

    def __len__(self) -> int:
        return len(self._templates)

    def network_probabilities(self) -> Doubles:
        """(V,): the next template as the network alone sees it."""
        w = self._weights
        out = w["out_w"] @ np.concatenate([self._hidden, self._asked]) + w["out_b"]
        scores = w["embedding"][:-1] @ out + w["bias"]
        powers = np.exp(scores - scores.max())
        found: Doubles = powers / np.float64(powers.sum(dtype=np.float64))
        return found

    def template_log_probs(self) -> Doubles:
        """(V,): log-probabilities of the next template, of network, counts and repeats mixed."""
        network, follow = self.network_probabilities(), self._ngrams.follow(self._templates[-2:])
        weights = shares(self._weights, evidence(network, follow, self._guess))
        return np.log(mixed(network, follow, self._guess, weights))

    def judge(self, template: int) -> tuple[float, float, float, float]:
        """Log-probabilities of a template: mixed, of the network, of counts, and of repeats.

        Repeats are mixed with 1 % of the counts.
        """
        counted = float(self._ngrams.follow(self._templates[-2:]).probabilities[template])
        copied = counted if self._guess is None else float(self._guess.probabilities[template])
        alone = self.network_probabilities()[template], counted, 0.99 * copied + 0.01 * counted
        mixture = float(self.template_log_probs()[template])
        network, counts, repeats = (float(np.log(p)) for p in alone)
        return mixture, network, counts, repeats

    def pointer_log_probs(
        self,
        template: int,
        slot: int,
        chosen: Sequence[int],
        candidates: NDArray[np.integer],
        unread: NDArray[np.bool_],
    ) -> Doubles:
        """(n,): log-probabilities of `candidates` to be operand `slot` of the next step.

        `template` is the next step's, `chosen` the steps that are its operands already.
        `candidates` are earlier steps, ascending; `unread`: nobody reads them yet.
        """
        w, slot = self._weights, slot_of(slot)
        earlier: NDArray[np.int64] = np.asarray(candidates, np.int64)
        query = self._query(template, slot, chosen)
        codes = np.zeros(CODES + 1, np.float32)
        codes[:-1] = w["codes_w"] @ query + w["codes_b"]
        scores = self._keys[earlier] @ (w["point_w"] @ query)
        count = len(earlier)
        known = candidate_codes(
            np.array([len(self)]),
            earlier,
            unread,
            np.array([count]),
            np.zeros(count, np.int64),
            self._example(template, slot),
        )
        scores = (scores + np.add.reduce(codes[known.T])).astype(np.float64)
        scores -= scores.max()
        found: Doubles = scores - np.log(np.exp(scores).sum())
        return found

    def advance(
        self, template: int, operands: Sequence[int], features: NDArray[np.floating]
    ) -> None:
        """Append a step that reads `operands`, the steps in the order of its slots."""
        w = self._weights
        features = np.asarray(features, np.float32)
        embedding = w["embedding"][template]
        kept = np.full(SLOTS, -1, np.int64)
        for number, operand in enumerate(operands):
            kept[slot_of(number)] = operand
        before = [self._templates[o] for o in operands]
        mean = np.add.reduce(w["embedding"][before]) / max(len(before), 1)
        self._repeats.append(template, kept)
        self._templates.append(template)
        self._guess = self._repeats.guess()
        self._read(embedding, mean, features)
        self._keep(np.concatenate([self._hidden, embedding, features]))

    def _query(self, template: int, slot: int, chosen: Sequence[int]) -> Floats:
        w = self._weights
        mean = np.add.reduce(self._keys[list(chosen)]) / max(len(chosen), 1)
        parts = [self._hidden, w["embedding"][template], w["slots"][slot], mean]
        found: Floats = np.tanh(w["query_w"] @ np.concatenate(parts) + w["query_b"])
        return found

    def _example(self, template: int, slot: int) -> NDArray[np.int64]:
        operands, place, alike = self._repeats.example(template)
        operand = int(operands[slot])
        moved = operand + len(self) - place if operand >= 0 else -1
        return np.array([[moved, operand, alike]])

    def _read(self, template: Floats, operands: Floats, features: Floats) -> None:
        """Let the GRU read the step before: its output is of the step that comes."""
        w, guess = self._weights, self._guess
        copied = self._sizes.vocabulary if guess is None else guess.template
        alike = 0.0 if guess is None else guess.alike / LONGEST
        past = [*progress(np.array(len(self)), self._rows), alike]
        parts = [template, operands, w["embedding"][copied], features, self._asked]
        inputs = np.concatenate([*parts, np.array(past, np.float32)])
        self._hidden = gru_step(w, inputs, self._hidden)

    def _keep(self, inputs: Floats) -> None:
        at = len(self) - 1
        if at == len(self._keys):
            self._keys = np.concatenate([self._keys, np.zeros_like(self._keys)])
        self._keys[at] = self._weights["key_w"] @ inputs + self._weights["key_b"]


def progress(step: NDArray[np.int64], rows: int | None) -> tuple[Doubles, ...]:
    """Whether a number of rows is asked for, the share of it done, and both on a log scale."""
    done, nothing = np.log2(1 + step) / 12, np.zeros(np.shape(step))
    if not rows:
        return nothing, nothing, done, nothing
    share = np.minimum(step / rows, 1.5)
    return nothing + 1, share, done, nothing + np.log2(1 + rows) / 12


def gru_step(w: Weights, inputs: Floats, hidden: Floats) -> Floats:
    """The next output of the GRU, with gates in the order reset, update, new."""
    width = len(hidden)
    given = w["gru_wi"] @ inputs + w["gru_bi"]
    kept = w["gru_wh"] @ hidden + w["gru_bh"]
    gates = 0.5 + 0.5 * np.tanh(0.5 * (given[: 2 * width] + kept[: 2 * width]))
    reset, update = gates[:width], gates[width:]
    new = np.tanh(given[2 * width :] + reset * kept[2 * width :])
    found: Floats = (1 - update) * new + update * hidden
    return found
