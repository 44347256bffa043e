"""The numbers of the network: names, shapes, and random ones to start from.

The network is a GRU (Cho et al. 2014, "Learning phrase representations using RNN encoder-decoder
for statistical machine translation", in the form of Chung et al. 2014 with the reset gate after the
product) whose outputs name the next template, and point at earlier steps (Vinyals, Fortunato,
Jaitly 2015, "Pointer networks").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, StrictInt

from flint.tools.share.synth.model.pointers import CODES
from flint.tools.share.synth.model.sequence import SLOTS

Floats: TypeAlias = NDArray[np.float32]
#: A width: products of two are sizes of arrays.
Width = Annotated[StrictInt, Field(ge=1, le=1 << 24)]
Weights: TypeAlias = Mapping[str, Floats]

#: Numbers of `progress`: whether a length is asked for, the share done, and both lengths.
PROGRESS = 4


@dataclass(frozen=True, slots=True)
class Sizes:
    """`vocabulary` templates, `features` numbers of a step, `conditions` numbers of a program.

    The others are widths: of the embedding of templates, of the GRU, of what is made of the
    conditions, of slots, of queries, and of keys.
    """

    vocabulary: Width
    features: Width
    conditions: Width
    embedding: Width = 64
    hidden: Width = 128
    asked: Width = 24
    slot: Width = 12
    query: Width = 64
    key: Width = 48

    @property
    def inputs(self) -> int:
        """Width of the input of the GRU, see `flint.tools.share.synth.model.state.State`."""
        return 3 * self.embedding + self.features + self.asked + PROGRESS + 1

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each array of weights. Row `vocabulary` of the embedding: no template."""
        hidden, embedding, query = self.hidden, self.embedding, self.query
        return {
            "embedding": (self.vocabulary + 1, embedding),
            "bias": (self.vocabulary,),
            "asked_w": (self.asked, self.conditions),
            "asked_b": (self.asked,),
            "start_w": (hidden, self.asked),
            "start_b": (hidden,),
            "gru_wi": (3 * hidden, self.inputs),
            "gru_wh": (3 * hidden, hidden),
            "gru_bi": (3 * hidden,),
            "gru_bh": (3 * hidden,),
            "out_w": (embedding, hidden + self.asked),
            "out_b": (embedding,),
            "slots": (SLOTS, self.slot),
            "query_w": (query, hidden + embedding + self.slot + self.key),
            "query_b": (query,),
            "point_w": (self.key, query),
            "codes_w": (CODES, query),
            "codes_b": (CODES,),
            "key_w": (self.key, hidden + embedding + self.features),
            "key_b": (self.key,),
        }


def random_weights(sizes: Sizes, seed: int) -> dict[str, Floats]:
    """Weights to start from: products keep the variance of what goes in; biases are 0."""
    random = np.random.default_rng(seed)
    made: dict[str, Floats] = {}
    for name, shape in sizes.shapes().items():
        if name == "bias" or name.endswith(("_b", "_bi", "_bh")):
            made[name] = np.zeros(shape, np.float32)
        else:
            scale = shape[-1] ** -0.5 if name.endswith(("_w", "_wi", "_wh")) else 0.1
            made[name] = (random.standard_normal(shape) * scale).astype(np.float32)
    return made
