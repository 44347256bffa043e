"""The partitioner that nobody has to name: Shardy's program, held against XLA's own partitioner.

Shardy's says more: names of axes, and the rule behind each collective. XLA's is what hardware runs.
So both partition, and where they communicate unlike, XLA's program is taken
(docs/decisions/0093-held-against-xla.md).
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Final

import numpy as np

from flint.errors import FlintError
from flint.ir.program import Flag, Program
from flint.passes.base import run_passes
from flint.passes.compilers.sides import Key, side
from flint.passes.partition import Partitioned
from flint.passes.partition.shardy import partitioned as partitioned_by_shardy
from flint.passes.partition.xla import partitioned as partitioned_by_xla
from flint.passes.profiles import profile
from flint.steps.captured import Captured
from flint.text import format_bytes

#: The share of the bytes over the wire that may go by other collectives or over other axes.
DIFFERENT: Final = 0.10
#: What takes XLA's partitioner longer than the rest of a capture is not held against it.
MOST_DEVICES, MOST_BYTES, MOST_SECONDS = 65_536, 16_000_000, 60.0
#: Of kernels that a program calls, XLA knows no more than Flint tells it. So a name of an operation
#: stands in MLIR's bytecode: names of the program's functions that hold it are other strings.
_CALL: Final = b"\x00custom_call\x00"
_log = logging.getLogger(__name__)


def partitioned(captured: Captured) -> Partitioned:
    """Partition with both. Raises FlintError FL401, FL402 or FL403 as Shardy's does."""
    mine = partitioned_by_shardy(captured)
    theirs = _by_xla(captured)
    if theirs is None or _unpriced(theirs.program) > _unpriced(mine.program):
        return mine
    return _chosen(mine, theirs)


def _by_xla(captured: Captured) -> Partitioned | None:
    """What XLA makes of a program on several devices; None where it has no answer in time."""
    few = 1 < captured.mesh.size <= MOST_DEVICES and len(captured.module) <= MOST_BYTES
    try:
        known = few and _CALL not in captured.module
        return partitioned_by_xla(captured, MOST_SECONDS) if known else None
    except FlintError as error:
        _log.info("not held against XLA's partitioner: %s", error.message)
        return None


def _chosen(mine: Partitioned, theirs: Partitioned) -> Partitioned:
    ours, xlas = (_wire_bytes(p.program) for p in (mine, theirs))
    apart = {key: abs(ours[key] - xlas[key]) for key in {*ours, *xlas}}
    if sum(apart.values()) <= 2 * DIFFERENT * max(ours.total(), xlas.total()):
        return mine
    most = max(sorted(apart), key=apart.__getitem__)
    told = (
        f"the program is as XLA's own partitioner divides it: {most[0]} over {most[1]} sends "
        f"{format_bytes(xlas[most])} a device, {format_bytes(ours[most])} by Shardy's rules "
        "(--partitioner shardy keeps these)"
    )
    return Partitioned(theirs.program, theirs.replicated or mine.replicated, "xla", told)


def _wire_bytes(program: Program) -> Counter[Key]:
    """What a device sends if every collective is a ring, by kind and axes, after what compilers rewrite."""
    found = side(run_passes(program, profile("xla-gpu").passes)).wires
    return Counter({key: sources.total() for key, sources in found.items()})


def _unpriced(program: Program) -> int:
    return int(np.count_nonzero(program.flags & Flag.UNPRICED))
