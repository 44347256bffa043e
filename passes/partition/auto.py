"""The partitioner that nobody has to name: XLA's own, which is what hardware runs.

Shardy's takes what XLA's cannot be asked about (docs/decisions/0094-xlas-program.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from flint.errors import FlintError
from flint.ir.program import Program
from flint.passes.partition import Partitioned
from flint.passes.partition.xla import partitioned as partitioned_by_xla
from flint.passes.partition.xla import position_with_results
from flint.steps.captured import Captured

#: What takes XLA's partitioner longer than the rest of a capture is not asked of it.
MOST_DEVICES, MOST_BYTES, MOST_SECONDS = 131_072, 16_000_000, 60.0


def partitioned(captured: Captured) -> Partitioned:
    """Partition with XLA, or with Shardy where XLA has no answer. Raises what Shardy's does."""
    reason = _too_large(captured, captured.mesh.size)
    if not reason:
        try:
            return partitioned_by_xla(captured, MOST_SECONDS)
        except FlintError as error:
            reason = error.message
    found = _by_shardy(captured)
    return replace(found, warning=_told(reason))


def _by_shardy(captured: Captured) -> Partitioned:
    from flint.passes.partition.shardy import partitioned  # most captures do not load it

    return partitioned(captured)


@dataclass(frozen=True)
class PositionProgram:
    """What each position of an axis runs, with a row for each result; `warning` as of `Partitioned`."""

    program: Program
    results: tuple[int, ...]
    by: str
    warning: str = ""


def partitioned_position(captured: Captured, axis: str, name: str = "auto") -> PositionProgram:
    """As the partitioner called `name`, for the devices of one position of `axis`, where others run other programs."""
    devices, reason = captured.mesh.size // captured.mesh.axis_size(axis), ""
    if name == "xla":
        return PositionProgram(*position_with_results(captured, axis), name)
    if name == "auto":
        reason = _too_large(captured, devices)
        try:
            if not reason:
                return PositionProgram(*position_with_results(captured, axis, MOST_SECONDS), "xla")
        except FlintError as error:
            reason = error.message
    from flint.passes.partition.shardy import partition_with_results

    return PositionProgram(*partition_with_results(captured), "shardy", _told(reason))


def _too_large(captured: Captured, devices: int) -> str:
    if devices > MOST_DEVICES:
        return f"the mesh has more than {MOST_DEVICES:,} devices"
    if len(captured.module) > MOST_BYTES:
        return f"the module has more than {MOST_BYTES:,} bytes"
    return ""


def _told(reason: str) -> str:
    if not reason:
        return ""
    return (
        "Shardy's passes divided this program, not XLA's own partitioner, which hardware runs and "
        f"which may communicate otherwise: {reason}"
    )
