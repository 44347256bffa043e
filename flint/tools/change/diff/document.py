"""Documents of comparisons: a `Difference` as JSON (`flint.diff/1`), and estimates saved as JSON.

Saved estimates have no program, and are compared by their numbers.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final, NotRequired, cast

from pydantic import Field
from typing_extensions import TypedDict

from flint.io.malformed import Malformed
from flint.io.records import Bytes, Fraction, Nanoseconds, Utilisation, record_of
from flint.tools.change.diff.budgets import Broken
from flint.tools.change.diff.difference import Difference
from flint.tools.change.diff.match import Change
from flint.tools.change.diff.show import all_numbers, verdict
from flint.tools.change.diff.snapshot import EstimateFacts, Snapshot, mapping_text, share_totals

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


class _Share(TypedDict):
    kind: str
    over: str
    exposed_ns: Nanoseconds


class _Memory(TypedDict):
    peak_bytes: Bytes
    capacity_bytes: Bytes
    breakdown: dict[str, Bytes]


class _Class(TypedDict):
    end_ns: Nanoseconds
    shares: list[_Share]
    memory: _Memory


class _Saved(TypedDict):
    """What is read of an estimate's document; documents of before have less, later ones more."""

    schema: Annotated[str, Field(pattern=r"^flint\.estimate/")]
    name: str
    cluster: str
    chip: NotRequired[str]
    profile: str
    policy: str
    mapping: list[Annotated[list[str | int], Field(min_length=2)]]
    derate: Fraction
    step_time_ns: Nanoseconds
    mfu: Utilisation
    lower_bound: bool
    classes: Annotated[list[_Class], Field(min_length=1)]


def snapshot_of_estimate(document: object) -> Snapshot:
    """The snapshot of what `flint estimate --json` printed. Raises Malformed for anything else."""
    found = record_of(_Saved, document)
    slowest = max(found["classes"], key=lambda c: c["end_ns"])
    fullest = max(found["classes"], key=lambda c: c["memory"]["peak_bytes"])["memory"]
    shares = [(s["kind"], s["over"], s["exposed_ns"]) for s in slowest["shares"]]
    facts = EstimateFacts(
        chip=found.get("chip", ""),
        profile=found["profile"],
        policy=found["policy"],
        mapping=mapping_text(found["mapping"]),
        derate=found["derate"],
        step_time_ns=found["step_time_ns"],
        mfu=found["mfu"],
        is_lower_bound=found["lower_bound"],
        exposed_ns=share_totals(shares, exposed=True),
        busy_ns=share_totals(shares, exposed=False),
        peak_bytes=fullest["peak_bytes"],
        capacity_bytes=fullest["capacity_bytes"],
        memory_bytes=fullest["breakdown"],
    )
    if wrong := facts.contradiction():
        raise Malformed(wrong)
    return Snapshot(found["name"], None, {found["cluster"]: facts})
