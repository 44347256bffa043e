"""What software keeps of a device's memory beside what the program needs: a stack says it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import numpy as np

from flint.cluster.stack import Stack
from flint.ir.program import Kind, Program


class RuntimeKind(StrEnum):
    """What the runtime's memory is for."""

    ALLOCATOR = "allocator"  #: reserved and not in use: pieces of other sizes and streams
    CONTEXT = "context"  #: the driver's context, and code of libraries
    COMMUNICATORS = "communicators"  #: buffers of each group of devices that communicate


def runtime_memory(program: Program, stack: Stack, peak_bytes: int) -> Mapping[str, int]:
    """Bytes by `RuntimeKind`, largest first, of a step whose own peak is `peak_bytes`."""
    share = stack.reserved_share.value if stack.reserved_share else 1.0
    context = stack.context_bytes.value if stack.context_bytes else 0.0
    each = stack.communicator_bytes.value if stack.communicator_bytes else 0.0
    found = {
        RuntimeKind.ALLOCATOR: round((share - 1) * peak_bytes),
        RuntimeKind.CONTEXT: round(context),
        RuntimeKind.COMMUNICATORS: round(each * communicators(program)),
    }
    return {str(k): v for k, v in sorted(found.items(), key=lambda kv: -kv[1]) if v}


def communicators(program: Program) -> int:
    """Groups of devices that run collectives together, as a device meets them."""
    runs = (program.kind == Kind.COLLECTIVE) & (program.trips > 0) & (program.group >= 0)
    used = np.unique(program.group[runs]).tolist()
    return len({str(program.groups[number]) for number in used})
