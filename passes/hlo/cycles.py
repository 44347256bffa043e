"""What XLA's TPU compiler writes beside a program: estimated cycles of kernels, copies into VMEM.

Cycles stand in an instruction's `backend_config`: libtpu (0.0.42, 0.0.52) writes them into `window_config`.
"""

from __future__ import annotations

from typing import Any, Final

from flint.passes.hlo.calls import backend_config
from flint.passes.hlo.module import Instruction

_KEY: Final = "estimated_cycles"
#: A week of 1.75 GHz. Where libtpu has no estimate (scatters on SparseCores), it
#: writes 2**63 - 1.
_MOST: Final = 1 << 50


def estimated_cycles(instruction: Instruction) -> int:
    """Cycles of one execution; 0 where the file says none, or no number that can be one."""
    if _KEY.encode() not in instruction.backend_config:
        return 0
    config = backend_config(instruction)
    window = config.get("window_config")
    places: list[Any] = [config, window if isinstance(window, dict) else {}]
    return next((cycles for place in places if (cycles := _number(place.get(_KEY)))), 0)


def _number(value: object) -> int:
    """A whole number, which XLA's JSON writes as text; 0 for anything else."""
    text = str(value) if isinstance(value, int | str) else ""
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        return 0
    found = int(text)
    return found if found < _MOST else 0


def prefetches(i: Instruction) -> bool:
    """Whether a copy goes from HBM to VMEM or back: what reads or wrote the value counts its bytes."""
    spaces = [s.layout.memory_space for s in i.shape.tuple_shapes[:2]]
    return i.opcode == "copy-start" and sorted(spaces) == [0, 1]
