"""Snapshots as JSON, and back: in lock files, in the cache, and in what workers send."""

from __future__ import annotations

from typing import Any

from flint.errors import Malformed
from flint.io.documents import as_object
from flint.io.records import record_of
from flint.tools.change.diff.snapshot import Snapshot


def snapshot_record(snapshot: Snapshot) -> dict[str, Any]:
    """A snapshot as JSON. Tables are in an order that does not depend on lines of the source.

    What is not known of an argument is omitted: records of before did not have it.
    """
    document = as_object(snapshot)
    for argument in document["program"]["arguments"] if snapshot.program else ():
        if argument.get("is_donated", False) is None:
            del argument["is_donated"]
    return document


def snapshot_from(document: object) -> Snapshot:
    """What `snapshot_record` wrote. Raises Malformed for anything else, and for what cannot be."""
    found = record_of(Snapshot, document)
    wrong = next(filter(None, (e.contradiction() for e in found.estimates.values())), "")
    if wrong:
        raise Malformed(wrong)
    return found
