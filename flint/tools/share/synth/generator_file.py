"""The file of a generator: an npz of the row model's own file, the templates, totals, and the memory."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypedDict

from flint.errors import FlintError
from flint.io.bounded import FileKind, read_bounded
from flint.io.malformed import Malformed, readable
from flint.io.npz import arrays_of, require_schema, text_of
from flint.io.records import Fraction, NonNegative, Positive, record
from flint.ir.mesh import Mesh
from flint.ir.program import Phase
from flint.tools.share.conditions import SHARES_TOLERANCE, Conditions
from flint.tools.share.synth.codec.template import Vocabulary
from flint.tools.share.synth.memory import Memory
from flint.tools.share.synth.model.row_model import MOST_BYTES, RowModel

SCHEMA = "flint.generator/1"
PhaseName = Literal["UNKNOWN", "FORWARD", "BACKWARD", "REMAT", "OPTIMIZER"]
_HELP = "give a file that flint learn wrote"
#: What a file holds: model, templates, totals of programs, memory.
Parts = tuple[RowModel, Vocabulary, tuple[Conditions, ...], Memory | None]


class Profile(TypedDict):
    """The totals of a program that was learned from, as the file has them."""

    mesh: list[Positive]
    flops: NonNegative | None
    axis_bytes: dict[str, NonNegative]
    depth: Positive | None
    phases: dict[PhaseName, Fraction]
    memory_bytes: NonNegative | None
    rows: Positive | None


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
    named = "the file" if isinstance(source, bytes) else str(source)
    with readable("FL959", f"{named} is no generator of workloads", _HELP):
        return _parts(data)


def _parts(data: bytes) -> Parts:
    columns = arrays_of(data, MOST_BYTES)
    require_schema(columns, SCHEMA)
    model = RowModel.load(text_of(columns, "model"))
    vocabulary = Vocabulary.read(text_of(columns, "templates"))
    if len(vocabulary) != model.sizes.vocabulary:
        raise Malformed("its templates are of another model")
    profiles = tuple(map(_profile, record(list[Profile], text_of(columns, "profiles"))))
    if "memory_start" not in columns:
        return model, vocabulary, profiles, None
    memory = Memory.from_arrays(columns)
    if len(memory) != len(profiles):
        raise Malformed("its memory is of other programs than its totals")
    return model, vocabulary, profiles, memory


def _text(data: object) -> NDArray[np.uint8]:
    text = json.dumps(data, separators=(",", ":"), sort_keys=True)
    return np.frombuffer(text.encode(), np.uint8)


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


def _profile(data: Profile) -> Conditions:
    sizes = data["mesh"]
    whole = sum(data["phases"].values())
    whole = 1.0 if abs(whole - 1) < SHARES_TOLERANCE else whole
    try:
        return Conditions(
            Mesh(tuple(f"axis{n}" for n, _ in enumerate(sizes)), tuple(sizes)),
            data["flops"],
            {k: v for k, v in data["axis_bytes"].items() if ":" not in k and "ranks" not in k},
            data["depth"],
            {Phase[n]: s / whole for n, s in data["phases"].items()} if whole else {},
            data["memory_bytes"],
            data["rows"],
        )
    except FlintError as error:
        raise Malformed(f"totals that cannot be: {error.message}") from error
