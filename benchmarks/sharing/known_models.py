"""Write the fingerprints of known public models that come with Flint.

    python benchmarks/sharing/known_examples.py /tmp/known/examples
    python benchmarks/sharing/known_models.py /tmp/known/examples

Each folder has captures (`.flint`) and an `index.json` that says of each what it is. Equal captures
give an equal file.
"""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path

import numpy as np

from flint.ir.workload import Workload
from flint.tools.share.leaks.fingerprints import COUNTED, View
from flint.tools.share.leaks.known import FamilyAccuracy, Known, KnownEntry, known_of

#: Version of the columns, and of what fingerprints are made of.
SCHEMA = "flint.known/1"
TARGET = Path(__file__).parents[2] / "flint/tools/share/leaks/known.npz"


def captures(folders: list[Path]) -> Iterator[tuple[KnownEntry, Workload]]:
    """Every capture that the folders list, in order of family, model, mesh and options."""
    rows = [(folder, row) for folder in folders for row in _index(folder)]
    entries = [(_entry(row), folder / row["file"]) for folder, row in rows]
    for entry, path in sorted(entries, key=lambda e: (e[0].family, e[0].model, str(e[0]))):
        yield entry, Workload.load(path)


def _index(folder: Path) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads((folder / "index.json").read_text(encoding="utf-8"))
    return found


def _entry(row: dict[str, str]) -> KnownEntry:
    return KnownEntry(row["family"], row["model"], row["mesh"], row["options"], row["code"])


def known_bytes(known: Known) -> bytes:
    """The file. Equal known models give equal bytes."""
    measured = known.measured
    entries = np.array([astuple(e) for e in known.entries])
    columns = {
        "schema": np.array(SCHEMA),
        "entries": entries,
        "hashes": np.stack([known.hashes[v] for v in View], axis=1),
        "program_entry": known.program_entry.astype(np.uint32),
        "program_hashes": np.stack([known.program_hashes[v] for v in View], axis=1),
        "histograms": np.stack([known.histograms[v] for v in COUNTED]).astype(np.uint32),
        "totals": known.totals,
        "families": np.array([_row(measured.families[v]) for v in COUNTED], dtype=float),
        "members": np.array([astuple(t) for t in (measured.workloads, measured.models)]),
    }
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=False, **columns)
    return file.getvalue()


def _row(found: FamilyAccuracy) -> list[float | None]:
    """Right and workloads of each share, then the baseline. None is stored as NaN."""
    shares = (found.one_left_out, found.model_left_out, found.code_left_out)
    return [*(number for s in shares for number in astuple(s)), found.largest_family]


def summary(known: Known) -> Iterator[str]:
    """What the file has, and how good attacks are on it."""
    yield f"{len(known)} workloads, {len(known.models)} models, families {', '.join(known.families)}"
    for view, measured in known.measured.families.items():
        yield f"{view.value}: {measured}"
    yield f"membership: {known.measured.workloads} of workloads, {known.measured.models} of models"


def main() -> None:
    """Read folders, write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=TARGET)
    options = parser.parse_args()
    known = known_of(captures(options.folders))
    options.output.write_bytes(known_bytes(known))
    print("\n".join(summary(known)))
    print(f"{options.output}: {options.output.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
