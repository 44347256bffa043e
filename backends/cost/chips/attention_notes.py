"""Notes on attention that a profile should make flash kernels of, and does not."""

from __future__ import annotations

from flint.ir.program import Phase, Program
from flint.ir.workload import Workload
from flint.passes.fusion.attention import FuseAttention, attention_turns, fused_turns
from flint.passes.profiles import profile as find_profile


def attention_notes(workload: Workload, kernels: Workload, profile: str) -> tuple[str, ...]:
    """What of a workload's attention has no flash kernel in `kernels`, if the profile makes some.

    Counts are those of a step of the rank class that has most.
    """
    found = [p for p in find_profile(profile).kernels if isinstance(p, FuseAttention)]
    if not found:
        return ()
    named = found[0].named
    written = workload.kept.get(
        "attention", named, lambda: [attention_turns(p, named=named) for p in workload.programs]
    )
    notes = [
        note
        for count, kernel in zip(written, kernels.programs, strict=True)
        for note in _notes(count, kernel)
    ]
    return tuple(dict.fromkeys(notes))


def _notes(written: int, kernels: Program) -> list[str]:
    fused = fused_turns(kernels)
    trains = bool((kernels.phase == Phase.BACKWARD).any())
    notes = []
    if fused.forward < written:
        notes.append(
            f"{written - fused.forward:,} of {written:,} attentions are written in a form that is not "
            "recognised: they have no flash kernel, and their scores are stored"
        )
    if trains and fused.backward < fused.first:
        notes.append(
            f"{fused.first - fused.backward:,} of {fused.first:,} attentions have no flash kernel in the backward "
            "pass, whose form is not recognised: their scores are stored"
        )
    return notes
