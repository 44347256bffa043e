"""Documents of comparisons: a `Difference` as JSON (`flint.diff/1`), and estimates saved as JSON.

Saved estimates have no program, and are compared by their numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, cast

from flint.compare.budgets import Broken
from flint.compare.difference import Difference
from flint.compare.match import Change
from flint.compare.show import all_numbers, verdict
from flint.compare.snapshot import EstimateFacts, Snapshot, mapping_text, share_totals

if TYPE_CHECKING:
    from flint.schemas.documents.comparison import (
        BrokenDocument,
        CauseDocument,
        ChangeDocument,
        CostDocument,
        DiffDocument,
    )

#: Version of the JSON form.
SCHEMA: Final = "flint.diff/1"


def document(
    difference: Difference, broken: tuple[Broken, ...] | list[Broken] = ()
) -> DiffDocument:
    """Exact numbers, JSON-able. Times are in nanoseconds."""
    return {
        "schema": SCHEMA,
        "equal": difference.is_equal,
        "verdict": verdict(difference),
        "before": difference.before.name,
        "after": difference.after.name,
        "causes": [_cause(difference, i) for i in range(len(difference.causes))],
        "renamed": list(difference.renamed),
        "numbers": [
            {
                "name": n.metric.name,
                "axis": n.axis,
                "unit": str(n.metric.unit),
                "before": n.before,
                "after": n.after,
            }
            for n in all_numbers(difference)
        ],
        "memory_bytes": _memory(difference),
        "changes": [_change(c) for c in difference.changes],
        "same_kernels": difference.same,
        "moved_kernels": difference.moved,
        "shifted_ns": difference.shifted_ns,
        "broken": [_broken(b) for b in broken],
    }


def _cause(difference: Difference, number: int) -> CauseDocument:
    cause = difference.causes[number]
    cost = difference.costs.get(cause.kind)
    return {
        "kind": str(cause.kind),
        "text": cause.text,
        "cost_of_kind": None if cost is None else cast("CostDocument", asdict(cost)),
    }


def _memory(difference: Difference) -> dict[str, dict[str, int]]:
    if difference.estimated is None:
        return {}
    before, after = difference.estimated
    return {"before": dict(before.memory_bytes), "after": dict(after.memory_bytes)}


def _change(c: Change) -> ChangeDocument:
    found = cast("ChangeDocument", asdict(c))
    found["cause"], found["action"] = None if c.cause is None else str(c.cause), str(c.action)
    return found


def _broken(b: Broken) -> BrokenDocument:
    return {
        "budget": b.budget.name,
        "limit": b.budget.text,
        "before": b.number.before,
        "after": b.number.after,
        "most": b.budget.most(b.number.before or 0.0),
        "worst": None if b.worst is None else _change(b.worst),
        "memory_kind": b.kind,
    }


# saved estimates ----------------------------------------------------------------------------------

#: What is read here; a file of another major version is not.
_ESTIMATE = "flint.estimate/"


def snapshot_of_estimate(document: Mapping[str, Any]) -> Snapshot:
    """The snapshot of what `flint estimate --json` printed. Raises ValueError, KeyError, TypeError."""
    if not str(document["schema"]).startswith(_ESTIMATE):
        raise ValueError(f"its schema is {document['schema']!r}")
    classes = document["classes"]
    slowest = max(classes, key=lambda c: c["end_ns"])
    fullest = max(classes, key=lambda c: c["memory"]["peak_bytes"])["memory"]
    rows = slowest["shares"]
    shares = [(str(s["kind"]), str(s["over"]), float(s["exposed_ns"])) for s in rows]
    facts = EstimateFacts(
        chip=str(document.get("chip", "")),
        profile=str(document["profile"]),
        policy=str(document["policy"]),
        mapping=mapping_text(document["mapping"]),
        derate=float(document["derate"]),
        step_time_ns=float(document["step_time_ns"]),
        mfu=float(document["mfu"]),
        is_lower_bound=bool(document["lower_bound"]),
        exposed_ns=share_totals(shares, exposed=True),
        busy_ns=share_totals(shares, exposed=False),
        peak_bytes=int(fullest["peak_bytes"]),
        capacity_bytes=int(fullest["capacity_bytes"]),
        memory_bytes={str(k): int(v) for k, v in fullest["breakdown"].items()},
    )
    return Snapshot(str(document["name"]), None, {str(document["cluster"]): facts})
