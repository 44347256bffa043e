"""The row model: a file of weights and counts, which writes programs step by step with numpy."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flint.errors import FlintError
from flint.io.bounded import FileKind, read_bounded
from flint.sharing.synth.model.mixing import gate_shapes
from flint.sharing.synth.model.ngrams import Ngrams, count_ngrams
from flint.sharing.synth.model.state import State
from flint.sharing.synth.model.weights import Floats, Sizes, random_weights

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
    try:
        columns = _columns(data)
        parsed = json.loads(columns["about"].tobytes().decode())
        sizes = _sizes(parsed["sizes"])
        weights = {
            name: _weight(columns[name], name, shape)
            for name, shape in {**sizes.shapes(), **gate_shapes()}.items()
        }
        ngrams = Ngrams.from_arrays(columns)
        if ngrams.vocabulary != sizes.vocabulary:
            raise ValueError("its counts are of another vocabulary")
        codec = columns["codec"].tobytes().decode()
    except (ValueError, KeyError, TypeError, OSError, EOFError, zipfile.BadZipFile) as error:
        message = f"{source} is no row model: {error}"
        raise FlintError("FL959", message, help=_HELP) from error
    return RowModel(sizes, weights, ngrams, parsed["about"], codec)


def _columns(data: bytes) -> dict[str, NDArray[Any]]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > MOST_BYTES:
            raise ValueError(f"it unpacks to more than {MOST_BYTES:,} bytes")
    with np.load(io.BytesIO(data), allow_pickle=False) as loaded:
        columns = {name: loaded[name] for name in loaded.files}
    if str(columns["schema"]) != SCHEMA:
        raise ValueError(f"its schema is not {SCHEMA}")
    return columns


def _sizes(found: Mapping[str, Any]) -> Sizes:
    numbers = {f.name: found[f.name] for f in fields(Sizes)}
    if not all(isinstance(n, int) and n > 0 for n in numbers.values()):
        raise ValueError("its sizes are no whole numbers above 0")
    return Sizes(**numbers)


def _weight(column: NDArray[Any], name: str, shape: tuple[int, ...]) -> Floats:
    if column.shape != shape or column.dtype != np.float16:
        raise ValueError(f"{name} is {column.dtype}{column.shape}, not float16{shape}")
    found = column.astype(np.float32)
    if not np.isfinite(found).all():
        raise ValueError(f"{name} has numbers that are not finite")
    return found


def _text(text: str) -> NDArray[np.uint8]:
    return np.frombuffer(text.encode(), np.uint8)
