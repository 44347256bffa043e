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
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flint.ir.arrays import Float64s, Int64s, Mask
from flint.ir.workload import Workload
from flint.tools.share.leaks.fingerprints import (
    View,
    fingerprint_of,
    shares,
    structure_distances,
    together,
)
from flint.tools.share.leaks.known import (
    EQUAL,
    FamilyAccuracy,
    Known,
    KnownEntry,
    Measured,
    Share,
    Threshold,
    log_totals,
    member_distances,
)

#: Version of the columns, and of what fingerprints are made of.
SCHEMA = "flint.known/2"
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


#: Share of known workloads that membership may wrongly name members, where ties allow it.
WANTED_FALSE_POSITIVES = 0.05


def family_accuracy(
    shares: Float64s, families: Sequence[str], models: Sequence[str], codes: Sequence[str]
) -> FamilyAccuracy:
    """The accuracy of nearest neighbors among shares (workloads, buckets)."""
    family = _numbered(families)
    distances = np.stack([structure_distances(shares, one) for one in shares])
    return FamilyAccuracy(
        _left_out(distances, family, np.arange(len(shares))),
        _left_out(distances, family, _numbered(models)),
        _left_out(distances, family, _numbered(codes)),
        max(Counter(families).values()) / len(families),
    )


def _left_out(distances: Float64s, family: Int64s, groups: Int64s) -> Share:
    """Workloads of the same group omitted, over those whose family is in another group."""
    found = []
    for i, away in enumerate(distances):
        others, same = groups != groups[i], family == family[i]
        if (others & same).any():
            found.append(_right(away, others, same))
    return Share(float(np.mean(found)) if found else None, len(found))


def member_threshold(shares: Float64s, totals: Float64s, groups: Sequence[object]) -> Threshold:
    """The largest distance at which few known workloads pass for one of another group.

    Of each the nearest of another group is taken: groups are workloads themselves, or models. Where
    more than `WANTED_FALSE_POSITIVES` have a twin the threshold is 0, and the rate that it has is
    told.
    """
    group = _numbered(groups)
    nearest = []
    for i in range(len(shares)):
        distances = member_distances(shares, totals, shares[i], totals[i])
        nearest.append(float(distances[group != group[i]].min()))
    ordered = np.sort(nearest)
    allowed = [d for d in ordered if np.mean(ordered <= d + EQUAL) <= WANTED_FALSE_POSITIVES]
    distance = float(max(allowed, default=0.0))
    return Threshold(distance, float(np.mean(ordered <= distance + EQUAL)))


def _right(distances: Float64s, others: Mask, same: Mask) -> float:
    least = distances[others].min()
    tied = others & (distances <= least + EQUAL)
    return float(same[tied].mean())


def _numbered(names: Sequence[object]) -> Int64s:
    numbers = {name: i for i, name in enumerate(dict.fromkeys(names))}
    return np.array([numbers[n] for n in names], dtype=np.int64)


#: Fewer families say nothing about how well attacks tell them apart.
LEAST_FAMILIES = 2


def known_of(captures: Iterable[tuple[KnownEntry, Workload]]) -> Known:
    """Fingerprints of captures. They are of two families or more, as attacks are measured by how they distinguish them."""
    entries: list[KnownEntry] = []
    whole, totals = [], []
    for entry, workload in captures:
        whole.append(together([fingerprint_of(p) for p in workload.programs]))
        totals.append(log_totals(workload))
        entries.append(entry)
    if len({e.family for e in entries}) < LEAST_FAMILIES:
        raise SystemExit(
            f"known models of fewer than {LEAST_FAMILIES} families: {len(entries)} captures"
        )
    histograms = {v: np.stack([f.histograms[v] for f in whole]) for v in View}
    return Known(
        tuple(entries),
        histograms,
        np.stack(totals),
        _measured(entries, histograms, np.stack(totals)),
    )


def _measured(
    entries: Sequence[KnownEntry], histograms: Mapping[View, NDArray[np.int64]], totals: Float64s
) -> Measured:
    names = [[e.family for e in entries], [e.model for e in entries], [e.code for e in entries]]
    found = {view: shares(counts) for view, counts in histograms.items()}
    accuracy = {v: family_accuracy(s, *names) for v, s in found.items()}
    seen = found[View.OPS]
    return Measured(
        accuracy,
        member_threshold(seen, totals, range(len(entries))),
        member_threshold(seen, totals, names[1]),
    )


def known_bytes(known: Known) -> bytes:
    """The file. Equal known models give equal bytes."""
    measured = known.measured
    entries = np.array([astuple(e) for e in known.entries])
    columns = {
        "schema": np.array(SCHEMA),
        "entries": entries,
        "histograms": np.stack([known.histograms[v] for v in View]).astype(np.uint32),
        "totals": known.totals,
        "families": np.array([_row(measured.families[v]) for v in View], dtype=float),
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
