"""The network of `State` in PyTorch, over pieces of several programs: for training alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import embedding_bag, linear

from flint.tools.share.synth.model.training.batches import Piece
from flint.tools.share.synth.model.training.gru import Gru
from flint.tools.share.synth.model.weights import Floats, Sizes

Tensor: TypeAlias = Any
Ints: TypeAlias = NDArray[np.int64]


class Network:
    """Weights as PyTorch trains them, by the names of `Sizes.shapes`.

    `parts` (V, K): templates that have the same number in a column are alike in something. What is
    learned of one of them then holds for the others: an embedding is the sum of one of its own and
    one for each part (factored, as of Alexandrescu and Kirchhoff 2006).
    """

    def __init__(self, sizes: Sizes, weights: Mapping[str, Floats], parts: Ints) -> None:
        self.sizes = sizes
        self.own = {n: torch.tensor(weights[n], requires_grad=True) for n in sizes.shapes()}
        kinds = parts.max(axis=0, initial=-1) + 1
        offsets = np.cumsum(kinds) - kinds
        self._parts = torch.tensor(parts + offsets)
        scale = 0.1 * max(parts.shape[1], 1) ** -0.5
        shared = torch.randn(int(kinds.sum()), sizes.embedding) * scale
        self._shared = shared.requires_grad_()

    def parameters(self) -> list[Tensor]:
        """All that is trained."""
        return [*self.own.values(), self._shared]

    def weights(self) -> dict[str, Tensor]:
        """The weights with the embedding summed up."""
        if not self._parts.shape[1]:
            return self.own
        shared = embedding_bag(self._parts, self._shared, mode="sum")
        none = torch.zeros(1, self.sizes.embedding)
        return self.own | {"embedding": self.own["embedding"] + torch.cat([shared, none])}

    def arrays(self) -> dict[str, Floats]:
        """The weights as numpy holds them."""
        return {name: w.detach().numpy().copy() for name, w in self.weights().items()}


class Run:
    """A group of programs that the network follows piece by piece.

    `noise`: share of inputs and outputs that training drops; 0 for what is measured.
    """

    def __init__(self, network: Network, conditions: Floats, noise: float = 0.0) -> None:
        self._network, self._sizes, self._noise = network, network.sizes, noise
        self._w: Mapping[str, Tensor] = {}
        self._conditions = torch.tensor(conditions)
        self._hidden: Tensor = None
        self._past: Tensor = None

    def outputs(self, piece: Piece) -> tuple[Tensor, Tensor, Tensor]:
        """Scores (N, V) of the templates of valid steps; scores of entries; which steps are valid.

        What came before the piece is not trained by it (truncated backpropagation through time).
        """
        self._w = w = self._network.weights()
        count = len(piece.templates)
        asked = torch.tanh(linear(self._conditions[:count], w["asked_w"], w["asked_b"]))
        hidden = self._start(asked, count)
        given = linear(self._drop(self._inputs(piece, asked)), w["gru_wi"], w["gru_bi"])
        turned = Gru.apply(given.transpose(0, 1).contiguous(), hidden, w["gru_wh"], w["gru_bh"])
        found = turned.transpose(0, 1)
        past = found if self._past is None else torch.cat([self._past[:count], found], 1)
        self._hidden, self._past = found[:, -1].detach(), past.detach()
        found, valid = self._drop(found), torch.tensor(piece.templates >= 0)
        wide = torch.cat([found, asked[:, None].expand(-1, found.shape[1], -1)], -1)
        out = linear(wide[valid], w["out_w"], w["out_b"])
        scores = linear(out, w["embedding"][:-1], w["bias"])
        return scores, self._points(piece, found, past), valid

    def _start(self, asked: Tensor, count: int) -> Tensor:
        if self._hidden is None:
            return torch.tanh(asked @ self._w["start_w"].T + self._w["start_b"])
        return self._hidden[:count]

    def _drop(self, given: Tensor) -> Tensor:
        """Drop the same numbers at all steps (Gal and Ghahramani 2016)."""
        if not self._noise:
            return given
        kept = 1 - self._noise
        return given * (torch.rand(len(given), 1, given.shape[2]) < kept) / kept

    def _inputs(self, piece: Piece, asked: Tensor) -> Tensor:
        embedding = self._w["embedding"]
        shape = piece.templates.shape
        bag = embedding_bag(
            torch.tensor(piece.bag), embedding, torch.tensor(piece.bag_starts), mode="mean"
        )
        parts = [
            embedding[torch.tensor(piece.before)],
            bag.reshape(*shape, -1),
            embedding[torch.tensor(piece.guesses)],
            torch.tensor(piece.features),
            asked[:, None].expand(-1, shape[1], -1),
            torch.tensor(piece.past),
        ]
        return torch.cat(parts, -1)

    def _points(self, piece: Piece, found: Tensor, past: Tensor) -> Tensor:
        w = self._w
        keys = self._keys(piece, past)
        batch = torch.tensor(piece.batch)
        query = self._queries(piece, found, keys)
        wide = torch.zeros(len(found), int(piece.number.max(initial=0)) + 1, self._sizes.key)
        place = (batch, torch.tensor(piece.number))
        wide = wide.index_put(place, query @ w["point_w"].T)
        scores = wide @ keys.transpose(1, 2)
        owners = torch.tensor(piece.owners)
        flat = (batch * wide.shape[1] + place[1])[owners] * keys.shape[1]
        content = scores.reshape(-1)[flat + torch.tensor(piece.candidates)]
        codes = linear(query, w["codes_w"], w["codes_b"])
        codes = torch.cat([codes, torch.zeros(len(codes), 1)], 1)
        width = codes.shape[1]
        known = codes.reshape(-1)[owners[:, None] * width + torch.tensor(piece.codes)].sum(1)
        return content + known + torch.tensor(piece.boost)

    def _keys(self, piece: Piece, past: Tensor) -> Tensor:
        """(B, J, key): of all steps that the piece may read."""
        w, known = self._w, max(piece.stop - 1, 1)
        following = past[:, 1:] if piece.stop > 1 else past
        embedding = w["embedding"][torch.tensor(piece.all_templates[:, :known])]
        parts = [following, embedding, torch.tensor(piece.all_features[:, :known])]
        return linear(torch.cat(parts, -1), w["key_w"], w["key_b"])

    def _queries(self, piece: Piece, found: Tensor, keys: Tensor) -> Tensor:
        w, rows = self._w, torch.tensor(piece.rows)
        templates = torch.tensor(piece.templates.reshape(-1))[rows]
        chosen = torch.tensor(piece.chosen)
        read = keys[torch.tensor(piece.batch), torch.tensor(piece.targets)]
        sums = torch.cat(
            [
                torch.zeros(1, read.shape[1], dtype=torch.float64),
                torch.cumsum(read, 0, dtype=torch.float64),
            ]
        )
        ends = torch.arange(len(rows))
        mean = (sums[ends] - sums[ends - chosen]) / chosen.clamp(min=1)[:, None]
        parts = [
            found.reshape(-1, found.shape[-1])[rows],
            w["embedding"][templates],
            w["slots"][torch.tensor(piece.slots)],
            mean.float(),
        ]
        return torch.tanh(linear(torch.cat(parts, -1), w["query_w"], w["query_b"]))


def entry_log_probs(scores: Tensor, piece: Piece) -> Tensor:
    """Log-probability of each entry among those of its pointer."""
    owners, count = torch.tensor(piece.owners), len(piece.slots)
    with torch.no_grad():
        most = torch.full((count,), -torch.inf).scatter_reduce(0, owners, scores, "amax")
    shifted = scores - most[owners]
    sums = torch.zeros(count).index_add(0, owners, torch.exp(shifted))
    return shifted - torch.log(sums)[owners]
