"""What was measured of a workload, kept in a folder: by what the workload holds, not by its name."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from flint.ir.program import COLUMNS, Program
from flint.ir.workload import Workload

Arrays = Mapping[str, np.ndarray]
#: Of another number nothing is taken: it goes up with what is measured.
VERSION = 1


def digest_of(workload: Workload) -> str:
    """A name for all that a workload holds but its metadata."""
    found = blake2b(repr((workload.mesh, workload.classes)).encode(), digest_size=16)
    for program in workload.programs:
        for name in COLUMNS:
            found.update(getattr(program, name).tobytes())
        found.update(_tables(program).encode())
    return found.hexdigest()


def _tables(p: Program) -> str:
    tables = (p.opcodes, p.dtypes, p.shapes, p.groups, p.routes, p.products, p.regions, p.strings)
    return repr(tables)


@dataclass(frozen=True)
class Cache:
    """Arrays by kind and digest; without a folder nothing is kept."""

    folder: Path | None

    def get(self, kind: str, digest: str, make: Callable[[], Mapping[str, Any]]) -> Arrays:
        """What is kept, or what `make` returns."""
        if self.folder is None:
            return {k: np.asarray(v) for k, v in make().items()}
        path = self.folder / f"{VERSION}-{kind}" / f"{digest}.npz"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            found: dict[str, Any] = {k: np.asarray(v) for k, v in make().items()}
            part = path.with_suffix(f".{os.getpid()}.npz")  # several may write it
            np.savez_compressed(part, **found)
            part.replace(path)
        with np.load(path, allow_pickle=False) as kept:
            return {name: kept[name] for name in kept.files}
