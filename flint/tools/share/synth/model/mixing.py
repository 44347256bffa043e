"""How far to trust the network, the counts of all programs, and the program's own repeats.

Each gives probabilities of the next template; a small network of two layers reads how sure each is
and weighs them. It is trained on programs of families that the others have not seen, as a
network is too sure of what it has learned by heart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from flint.tools.share.synth.model.ngrams import Follow
from flint.tools.share.synth.model.repeats import LONGEST, Guess

Floats: TypeAlias = NDArray[np.float32]
Doubles: TypeAlias = NDArray[np.float64]

#: Numbers that `evidence` gives, and sources that are mixed.
EVIDENCE, SOURCES = 16, 3
#: Width of the small network.
WIDTH = 24


def gate_shapes() -> dict[str, tuple[int, ...]]:
    """The shape of each array of the small network."""
    return {
        "gate_w1": (WIDTH, EVIDENCE),
        "gate_b1": (WIDTH,),
        "gate_w2": (SOURCES, WIDTH),
        "gate_b2": (SOURCES,),
    }


def evidence(network: Doubles, follow: Follow, guess: Guess | None) -> Doubles:
    """(EVIDENCE,): how sure each source of the next template is, and how far they agree."""
    counts = follow.probabilities
    best, top = int(network.argmax()), int(counts.argmax())
    known = [
        network[best],
        -float(network @ np.log(network + 1e-12)) / np.log(len(network) + 1),
        counts[top],
        network[top],
        counts[best],
        float(best == top),
        *(np.log1p(s) / 8 for s in follow.seen),
        *(np.log1p(d) / 5 for d in follow.distinct),
    ]
    if guess is None:
        return np.array([*known, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    copied = guess.template
    return np.array(
        [
            *known,
            1.0,
            guess.alike / LONGEST,
            np.log1p(guess.places) / 5,
            guess.probabilities[copied],
            network[copied],
            counts[copied],
        ]
    )


def shares(gate: Mapping[str, Floats], seen: Doubles) -> Doubles:
    """(SOURCES,): weights of network, counts and repeats, which add up to 1."""
    inner = np.tanh(gate["gate_w1"] @ seen + gate["gate_b1"])
    scores = gate["gate_w2"] @ inner + gate["gate_b2"]
    powers = np.exp(scores - scores.max())
    found: Doubles = powers / powers.sum()
    return found


def mixed(network: Doubles, follow: Follow, guess: Guess | None, weights: Doubles) -> Doubles:
    """Probabilities of the next template. Without repeats, counts stand for them."""
    copied = follow.probabilities if guess is None else guess.probabilities
    found: Doubles = weights[0] * network + weights[1] * follow.probabilities + weights[2] * copied
    return found
