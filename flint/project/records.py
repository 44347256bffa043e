"""Snapshots as JSON, and back: in lock files, in the cache, and in what workers send."""

from __future__ import annotations

from dataclasses import asdict
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from flint.compare.snapshot import Snapshot

if TYPE_CHECKING:
    from flint.schemas.documents.comparison import SnapshotDocument


def snapshot_record(snapshot: Snapshot) -> SnapshotDocument:
    """A snapshot as JSON. Tables are in an order that does not depend on lines of the source."""
    return cast("SnapshotDocument", asdict(snapshot))


def snapshot_from(record: object) -> Snapshot:
    """What `snapshot_record` wrote. Raises ValueError (pydantic's) for anything else."""
    found: Snapshot = _adapter().validate_python(record)
    return found


@cache
def _adapter() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(Snapshot)
