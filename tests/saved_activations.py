"""What a program keeps from its forward pass, to be held against measurements."""

from __future__ import annotations

from flint.backends.cost.memory.liveness import buffers
from flint.backends.cost.memory.memory import MemoryKind, kinds
from flint.ir.program import Program


def saved_activation_bytes(program: Program) -> int:
    """Most bytes of activations that wait for a backward pass at one time.

    Those of microbatches in flight count, and so do activations that were gathered and are kept.
    """
    layout = buffers(program)
    kind = kinds(program, layout)
    saved = (kind == MemoryKind.SAVED_ACTIVATIONS) | (kind == MemoryKind.PIPELINE_STASH)
    return int(layout.of(saved).live_bytes.max(initial=0))
