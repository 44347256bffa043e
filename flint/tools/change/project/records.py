"""Snapshots as JSON, and back: in lock files, in the cache, and in what workers send."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, cast

from flint.io.malformed import Malformed
from flint.io.records import record_of
from flint.tools.change.diff.snapshot import Snapshot

if TYPE_CHECKING:
    from flint.schemas.documents.comparison import SnapshotDocument


def snapshot_record(snapshot: Snapshot) -> SnapshotDocument:
    """A snapshot as JSON. Tables are in an order that does not depend on lines of the source."""
    return cast("SnapshotDocument", asdict(snapshot))


def snapshot_from(document: object) -> Snapshot:
    """What `snapshot_record` wrote. Raises Malformed for anything else, and for what cannot be."""
    found = record_of(Snapshot, document)
    wrong = next(filter(None, (e.contradiction() for e in found.estimates.values())), "")
    if wrong:
        raise Malformed(wrong)
    return found
