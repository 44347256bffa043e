"""Rules of loops and of the order of phases."""

from __future__ import annotations

import numpy as np

from flint.ir.arrays import Mask
from flint.ir.program import Phase, Program, RegionKind
from flint.tools.share.rules.view import ProgramView, Rule, Told

#: Phases that are over when the optimizer begins.
_BEFORE_THE_OPTIMIZER = (Phase.FORWARD, Phase.BACKWARD, Phase.REMAT)


def _carries_agree(view: ProgramView) -> Told:
    """Carried value, first value and produced value have one type and shape."""
    p = view.program
    about, holds = _nothing(p), np.ones(len(p), dtype=np.bool_)
    for region in p.regions:
        for carried, produced in region.carries:
            about[carried] = True
            first = [d for d in p.dependencies(carried).tolist() if d < region.start]
            ends = [produced, *first[:1]]
            for end in (e for e in ends if view.is_plain[e] and view.is_typed[carried]):
                holds[carried] &= p.dtype[end] == p.dtype[carried]
                holds[carried] &= p.shape[end] == p.shape[carried]
    return Told(about, holds)


def _carries_begin(view: ProgramView) -> Told:
    """A carried value has a first value, from before the loop."""
    p = view.program
    about = view.is_carried & view.is_typed
    start = np.array([*(r.start for r in p.regions), len(p)], dtype=np.int64)[p.region]
    return Told(about, view.some(view.read < start[view.owner]))


def _loops_run(view: ProgramView) -> Told:
    """The first row of each loop stands for it: it runs, and has work in it."""
    p = view.program
    about, holds = _nothing(p), np.ones(len(p), dtype=np.bool_)
    for region in p.regions:
        if region.kind is RegionKind.LOOP and region.start < region.stop:
            about[region.start] = True
            holds[region.start] = region.trip_count >= 1
    return Told(about, holds)


def _loops_change(view: ProgramView) -> Told:
    """A loop that runs again changes a value that it carries, or communicates."""
    p = view.program
    about, holds = _nothing(p), np.ones(len(p), dtype=np.bool_)
    for region in p.regions:
        if region.kind is RegionKind.LOOP and region.trip_count > 1 and region.carries:
            about[region.start] = True
            holds[region.start] = any(a != b for a, b in region.carries)
    return Told(about, holds)


def _phases_in_order(view: ProgramView) -> Told:
    """Nothing before the optimizer reads what the optimizer makes."""
    p = view.program
    about = np.isin(p.phase, _BEFORE_THE_OPTIMIZER) & view.works & ~view.launched
    late = (p.phase[view.read] == Phase.OPTIMIZER) & view.works[view.read]
    return Told(about, view.every(~late))


def _forward_first(view: ProgramView) -> Told:
    """The forward pass reads nothing of the backward pass."""
    p = view.program
    about = (p.phase == Phase.FORWARD) & view.works & ~view.launched
    late = (p.phase[view.read] == Phase.BACKWARD) & view.works[view.read]
    return Told(about, view.every(~late))


def _nothing(program: Program) -> Mask:
    return np.zeros(len(program), dtype=np.bool_)


RULES = (
    Rule("carries", "values that a loop carries keep their type and shape", _carries_agree),
    Rule("carries-begin", "values that a loop carries come from before it", _carries_begin),
    Rule("loops-run", "loops run", _loops_run),
    Rule("loops-change", "a loop that runs again changes what it carries", _loops_change),
    Rule("optimizer-last", "no other phase reads what the optimizer computes", _phases_in_order),
    Rule("forward-first", "the forward pass reads nothing of the backward pass", _forward_first),
)
