"""Documents of comparisons: a `Difference` as JSON (`flint.diff/1`), and estimates saved as JSON.

Saved estimates have no program, and are compared by their numbers.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from flint.errors import Malformed
from flint.io.records import Bytes, Fraction, Nanoseconds, Utilisation, record_of
from flint.tools.change.diff.budgets import Broken
from flint.tools.change.diff.difference_numbers import DifferenceNumbers
from flint.tools.change.diff.match import Change
from flint.tools.change.diff.rows import Cost
from flint.tools.change.diff.show import all_numbers, verdict
from flint.tools.change.diff.snapshot import EstimateFacts, Snapshot, mapping_text, share_totals

#: Version of the JSON form.
SCHEMA: Final = "flint.diff/1"


class CauseDocument(TypedDict):
    """Why two captures differ."""

    kind: str  #: Kind of cause: mesh, sharding, shape, layers, precision, remat, operations, ...
    text: str  #: It in words.
    cost_of_kind: Cost | None
    """What all causes of this kind cost more; null where no kernel was told to follow from it."""


class NumberDocument(TypedDict):
    """One number of both captures."""

    name: str  #: Its name, as in --fail-over.
    axis: str  #: The mesh axis that it is of; "" for all.
    unit: str  #: Its unit.
    before: float | None  #: Before; null where it is not known.
    after: float | None  #: After; null where it is not known.


class BrokenDocument(TypedDict):
    """A budget that does not hold."""

    budget: str  #: Its name.
    limit: str  #: What it allows, as it was written.
    before: float | None  #: The number before.
    after: float | None  #: The number after.
    most: float  #: The most that the budget allows.
    worst: Change | None  #: The change that adds most to it; null where no kernel does.
    memory_kind: str
    """Of peak memory, what grew most there: saved_activations, parameters, ...; else ""."""


class DiffDocument(TypedDict):
    """What differs between two captures, and why."""

    schema: Literal["flint.diff/1"]  #: Kind and version of this document.
    equal: bool  #: Whether nothing but names and places differs.
    verdict: str  #: The outcome in one line.
    before: str  #: Name of the first.
    after: str  #: Name of the second.
    causes: list[CauseDocument]  #: Why they differ, what costs most first.
    renamed: list[tuple[str, str]]  #: Arguments with other names: [before, after].
    numbers: list[NumberDocument]  #: Totals of both.
    memory_bytes: dict[str, dict[str, int]]
    """Memory at the peak by what it is for, in bytes, of `before` and `after`; empty without a cluster."""
    changes: tuple[Change, ...]  #: Kernels that differ, what makes most of the difference first.
    same_kernels: int  #: Kernels that are as they were.
    moved_kernels: int  #: Those of them with another scope or line.
    shifted_ns: float
    """By how much more of the step time, in ns, kernels are that are as they were."""
    broken: list[BrokenDocument]  #: Budgets that do not hold.


def document(
    difference: DifferenceNumbers, broken: tuple[Broken, ...] | list[Broken] = ()
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
        "changes": difference.changes,
        "same_kernels": difference.same,
        "moved_kernels": difference.moved,
        "shifted_ns": difference.shifted_ns,
        "broken": [_broken(b) for b in broken],
    }


def _cause(difference: DifferenceNumbers, number: int) -> CauseDocument:
    cause = difference.causes[number]
    return {
        "kind": str(cause.kind),
        "text": cause.text,
        "cost_of_kind": difference.costs.get(cause.kind),
    }


def _memory(difference: DifferenceNumbers) -> dict[str, dict[str, int]]:
    if difference.estimated is None:
        return {}
    before, after = difference.estimated
    return {"before": dict(before.memory_bytes), "after": dict(after.memory_bytes)}


def _broken(b: Broken) -> BrokenDocument:
    return {
        "budget": b.budget.name,
        "limit": b.budget.text,
        "before": b.number.before,
        "after": b.number.after,
        "most": b.budget.most(b.number.before or 0.0),
        "worst": b.worst,
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
