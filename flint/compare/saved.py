"""Estimates that were saved as JSON: they have no program, and are compared by their numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flint.compare.snapshot import EstimateFacts, Snapshot, mapping_text

#: What is read here; a file of another major version is not.
_SCHEMA = "flint.estimate/"


def snapshot_of_estimate(document: Mapping[str, Any]) -> Snapshot:
    """The snapshot of what `flint estimate --json` printed. Raises ValueError, KeyError, TypeError."""
    if not str(document["schema"]).startswith(_SCHEMA):
        raise ValueError(f"its schema is {document['schema']!r}")
    classes = document["classes"]
    slowest = max(classes, key=lambda c: c["end_ns"])
    fullest = max(classes, key=lambda c: c["memory"]["peak_bytes"])["memory"]
    facts = EstimateFacts(
        chip=str(document.get("chip", "")),
        profile=str(document["profile"]),
        policy=str(document["policy"]),
        mapping=mapping_text(document["mapping"]),
        derate=float(document["derate"]),
        step_time_ns=float(document["step_time_ns"]),
        mfu=float(document["mfu"]),
        is_lower_bound=bool(document["lower_bound"]),
        exposed_ns=_shares(slowest["shares"], exposed=True),
        busy_ns=_shares(slowest["shares"], exposed=False),
        peak_bytes=int(fullest["peak_bytes"]),
        capacity_bytes=int(fullest["capacity_bytes"]),
        memory_bytes={str(k): int(v) for k, v in fullest["breakdown"].items()},
    )
    return Snapshot(str(document["name"]), None, {str(document["cluster"]): facts})


def _shares(shares: list[Mapping[str, Any]], *, exposed: bool) -> dict[str, float]:
    found: dict[str, float] = {}
    for share in shares:
        if exposed == bool(share["over"]):
            name = str(share["over"] or share["kind"])
            found[name] = found.get(name, 0.0) + float(share["exposed_ns"])
    return {name: round(ns, 3) for name, ns in sorted(found.items())}
