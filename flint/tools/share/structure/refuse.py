"""Workloads whose structure cannot be exchanged, with the reason and what is possible."""

from __future__ import annotations

import numpy as np

from flint.errors import FlintError
from flint.ir.op_class import OpClass
from flint.ir.program import Flag, Kind, Program, RegionKind
from flint.ir.workload import Workload
from flint.passes.fusion.roles import kernel_prefix

_OTHER = "flint anonymize takes it at the level `shapes` (other sizes), or `names` (no names alone)"
_NAMES = "flint anonymize takes it at the level `names`"


def require_exchangeable(workload: Workload) -> None:
    """Raise FlintError FL910 for what is not one captured program for all ranks, with loops alone."""
    reason, possible = _reason(workload)
    if reason:
        raise FlintError("FL910", f"the structure of this workload stays: {reason}", help=possible)


def _reason(workload: Workload) -> tuple[str, str]:
    programs = workload.programs
    if any((p.measured_ns > 0).any() or (p.cycles > 0).any() for p in programs):
        return "its rows are kernels that were measured, or that a compiler made", _NAMES
    if any(((p.flags & Flag.LAUNCHED) != 0).any() for p in programs):
        return "a framework launched its rows one by one, in streams", _OTHER
    if any((p.kind > Kind.COLLECTIVE).any() or (p.op == OpClass.TURN).any() for p in programs):
        return "it has stages of a pipeline, whose messages meet", _OTHER
    if len(programs) != 1:
        return f"it has {len(programs)} programs, which meet in collectives", _OTHER
    if any(r.kind is not RegionKind.LOOP for r in programs[0].regions):
        return "it has branches", _OTHER
    if any(kernel_prefix(s) for s in _scopes(programs[0])):
        return "rows of it are one kernel by name", _OTHER
    if not len(programs[0]):
        return "it has no rows", _NAMES
    return "", ""


def _scopes(program: Program) -> list[str]:
    return [program.strings[n] for n in np.unique(program.scope).tolist()]
