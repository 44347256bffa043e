"""The file of a generator: an npz of the row model's own file, the templates, totals, and the memory."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flint.errors import FlintError
from flint.io.bounded import FileKind, read_bounded
from flint.ir.mesh import Mesh
from flint.ir.program import Phase
from flint.sharing.conditions import SHARES_TOLERANCE, Conditions
from flint.sharing.synth.codec.template import Vocabulary
from flint.sharing.synth.memory import Memory
from flint.sharing.synth.model.row_model import MOST_BYTES, RowModel

SCHEMA = "flint.generator/1"
_HELP = "give a file that flint learn wrote"
#: What a file holds: model, templates, totals of programs, memory.
Parts = tuple[RowModel, Vocabulary, tuple[Conditions, ...], Memory | None]


def to_bytes(
    model: RowModel, vocabulary: Vocabulary, profiles: Sequence[Conditions], memory: Memory | None
) -> bytes:
    """The file. Equal parts give equal bytes. Profiles have no names, and totals of two digits."""
    columns: dict[str, NDArray[Any]] = {
        "schema": np.array(SCHEMA),
        "model": np.frombuffer(model.to_bytes(), np.uint8),
        "templates": _text(vocabulary.to_json()),
        "profiles": _text([_profile_json(p) for p in profiles]),
        **(memory.arrays() if memory is not None else {}),
    }
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=False, **columns)
    return file.getvalue()


def read(source: str | Path | bytes) -> Parts:
    """What a file, or its bytes, hold. Raises FlintError FL959 for anything else."""
    data = source
    if not isinstance(data, bytes):
        data = read_bounded(Path(data), FileKind.ROWS, "FL959", _HELP)
    try:
        return _parts(data)
    except (ValueError, KeyError, TypeError, OSError, EOFError, zipfile.BadZipFile) as error:
        named = "the file" if isinstance(source, bytes) else str(source)
        message = f"{named} is no generator of workloads: {error}"
        raise FlintError("FL959", message, help=_HELP) from error


def _parts(data: bytes) -> Parts:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > MOST_BYTES:
            raise ValueError(f"it unpacks to more than {MOST_BYTES:,} bytes")
    with np.load(io.BytesIO(data), allow_pickle=False) as loaded:
        columns = {name: loaded[name] for name in loaded.files}
    if str(columns["schema"]) != SCHEMA:
        raise ValueError(f"its schema is not {SCHEMA}")
    model = RowModel.load(columns["model"].tobytes())
    vocabulary = Vocabulary.from_json(_json(columns["templates"]))
    profiles = tuple(_profile(p) for p in _json(columns["profiles"]))
    if len(vocabulary) != model.sizes.vocabulary:
        raise ValueError("its templates are of another model")
    if "memory_start" not in columns:
        return model, vocabulary, profiles, None
    memory = Memory.from_arrays(columns)
    if len(memory) != len(profiles):
        raise ValueError("its memory is of other programs than its totals")
    return model, vocabulary, profiles, memory


def _text(data: object) -> NDArray[np.uint8]:
    text = json.dumps(data, separators=(",", ":"), sort_keys=True)
    return np.frombuffer(text.encode(), np.uint8)


def _json(column: NDArray[Any]) -> Any:
    return json.loads(column.tobytes().decode())


def _profile_json(profile: Conditions) -> dict[str, Any]:
    assert profile.mesh is not None
    numbers = {name: f"axis{n}" for n, name in enumerate(profile.mesh.names)}
    return {
        "mesh": list(profile.mesh.sizes),
        "flops": _two_digits(profile.flops),
        "axis_bytes": {_label(k, numbers): _two_digits(v) for k, v in profile.axis_bytes.items()},
        "depth": profile.depth,
        "phases": {p.name: round(s, 3) for p, s in profile.phases.items()},
        "memory_bytes": _two_digits(profile.memory_bytes),
        "rows": int(_two_digits(profile.rows) or 0) or None,
    }


def _label(text: str, numbers: Mapping[str, str]) -> str:
    """A label with numbers for names; parts of axes stay parts."""
    parts = [part.partition(":") for part in text.split(",")]
    return ",".join(numbers.get(name, "ranks") + colon + size for name, colon, size in parts)


def _two_digits(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.1e}")


def _profile(data: Mapping[str, Any]) -> Conditions:
    sizes: Iterable[int] = data["mesh"]
    mesh = Mesh(tuple(f"axis{n}" for n, _ in enumerate(sizes)), tuple(sizes))
    shares = {Phase[name]: share for name, share in data["phases"].items()}
    whole = sum(shares.values())
    whole = 1.0 if abs(whole - 1) < SHARES_TOLERANCE else whole
    return Conditions(
        mesh,
        data["flops"],
        {k: v for k, v in data["axis_bytes"].items() if ":" not in k and "ranks" not in k},
        data["depth"],
        {p: s / whole for p, s in shares.items()} if whole else {},
        data["memory_bytes"],
        data["rows"],
    )
