"""The row model: a file of weights and counts, which writes programs step by step with numpy."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypedDict

from flint.io.bounded import FileKind, read_bounded
from flint.io.malformed import Malformed, readable
from flint.io.npz import arrays_of, column_of, require_schema, text_of
from flint.io.records import record
from flint.tools.share.synth.model.mixing import gate_shapes
from flint.tools.share.synth.model.ngrams import Ngrams, count_ngrams
from flint.tools.share.synth.model.state import State
from flint.tools.share.synth.model.weights import Floats, Sizes, random_weights

#: Version of the arrays and of what they mean.
SCHEMA = "flint.rows/1"
#: Most bytes of arrays that a file may unpack to.
MOST_BYTES = 256 << 20
_HELP = "give a file that `RowModel.to_bytes` made"


@dataclass(frozen=True, eq=False)
class RowModel:
    """Probabilities of the next template and of its operands, given the steps so far.

    `weights` are those of the network and of the gate, rounded to float16; `ngrams` the counts of
    the programs that it was trained on. `about` says where it comes from; `codec` is text of the
    one who encodes programs: neither is looked at here.
    """

    sizes: Sizes
    weights: Mapping[str, Floats]
    ngrams: Ngrams
    about: Mapping[str, Any]
    codec: str = ""

    def start(self, conditions: NDArray[np.floating], rows: int | None = None) -> State:
        """A program of no steps yet. `conditions` (C,); `rows`: steps that are asked for.

        Raises ValueError if there are not C conditions.
        """
        asked = np.asarray(conditions, np.float32)
        if asked.shape != (self.sizes.conditions,):
            raise ValueError(f"{asked.shape} conditions, not {self.sizes.conditions}")
        return State(self.sizes, self.weights, self.ngrams, asked, rows)

    def to_bytes(self) -> bytes:
        """The file, an npz. Equal models give equal bytes."""
        about = {"about": dict(self.about), "sizes": asdict(self.sizes)}
        columns: dict[str, NDArray[Any]] = {
            "schema": np.array(SCHEMA),
            "about": _text(json.dumps(about, sort_keys=True)),
            "codec": _text(self.codec),
            **{name: array.astype(np.float16) for name, array in sorted(self.weights.items())},
            **self.ngrams.arrays(),
        }
        file = io.BytesIO()
        np.savez_compressed(file, allow_pickle=False, **columns)
        return file.getvalue()

    @classmethod
    def load(cls, source: str | Path | bytes) -> RowModel:
        """The model of a file, or of its bytes. Raises FlintError FL959 for anything else."""
        if isinstance(source, bytes):
            return _read(source, "the file")
        return _read(read_bounded(Path(source), FileKind.ROWS, "FL959", _HELP), str(source))


def untrained(sizes: Sizes, *, seed: int = 0) -> RowModel:
    """A model with random weights and no counts: each template is about as likely as any other."""
    random = np.random.default_rng(seed)
    weights = random_weights(sizes, seed)
    for name, shape in gate_shapes().items():
        scale = 0.0 if name.endswith("w2") else shape[-1] ** -0.5
        weights[name] = (random.standard_normal(shape) * scale).astype(np.float32)
    return RowModel(sizes, rounded(weights), count_ngrams([], [], sizes.vocabulary), {})


def rounded(weights: Mapping[str, Floats]) -> dict[str, Floats]:
    """The weights as a file keeps them, so that a model is the same before and after."""
    return {name: array.astype(np.float16).astype(np.float32) for name, array in weights.items()}


def _read(data: bytes, source: str) -> RowModel:
    with readable("FL959", f"{source} is no row model", _HELP):
        columns = arrays_of(data, MOST_BYTES)
        require_schema(columns, SCHEMA)
        about = record(_About, text_of(columns, "about"))
        sizes = about["sizes"]
        weights = {
            name: _weight(columns, name, shape)
            for name, shape in {**sizes.shapes(), **gate_shapes()}.items()
        }
        ngrams = Ngrams.from_arrays(columns)
        if ngrams.vocabulary != sizes.vocabulary:
            raise Malformed("its counts are of another vocabulary")
        codec = text_of(columns, "codec").decode("utf-8", "replace")
    return RowModel(sizes, weights, ngrams, about["about"], codec)


class _About(TypedDict):
    about: dict[str, Any]
    sizes: Sizes


def _weight(columns: Mapping[str, NDArray[Any]], name: str, shape: tuple[int, ...]) -> Floats:
    found = column_of(columns, name, "float16")
    if found.shape != shape:
        raise Malformed(f"{name} is of shape {found.shape}, not {shape}")
    return found.astype(np.float32)


def _text(text: str) -> NDArray[np.uint8]:
    return np.frombuffer(text.encode(), np.uint8)
