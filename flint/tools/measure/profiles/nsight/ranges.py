"""NVTX ranges: operators as `torch.autograd.profiler.emit_nvtx` writes them, NCCL's calls, marks."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace

import numpy as np

from flint.errors import Malformed
from flint.io.records import Count, record
from flint.tools.measure.profiles.profile import Profile, ProfiledComm, Signature

#: `aten::mm, seq = 12, op_id = 3, sizes = [[8, 16], [16, 4]], input_op_ids = [(1,0)]`
_EMITTED = re.compile(
    r"^(?P<name>.+?)(?P<rest>(?:, (?:seq|op_id|sizes|input_op_ids) = .*)+)$", re.DOTALL
)
_SEQUENCE = re.compile(r", seq = (\d{1,18})")
_SIZES = re.compile(r", sizes = (\[[\[\]\d, ]*\])")
_BACKWARD = re.compile(r"Backward\d*\b|^autograd::engine")
_NCCL = re.compile(r"^nccl([A-Z]\w+)$")
#: NCCL's functions, as PyTorch calls them.
_COMMS = {
    "AllReduce": "allreduce",
    "AllGather": "_allgather_base",
    "ReduceScatter": "_reduce_scatter_base",
    "Broadcast": "broadcast",
    "Bcast": "broadcast",
    "Reduce": "reduce",
    "AlltoAll": "all_to_all",
    "AllToAll": "all_to_all",
    "Send": "send",
    "Recv": "recv",
}
_KERNEL = re.compile(r"(?:nccl|rccl)\w*?(?:Kernel|Generic)_(\w+?)(?:_|$|\()")


@dataclass(frozen=True, slots=True)
class _RangeOperator:
    name: str
    sequence: int
    is_backward: bool
    signature: Signature | None


def operator_of(text: str) -> _RangeOperator | None:
    """The operator that emit_nvtx wrote, None for other ranges. Types are not in them."""
    found = _EMITTED.match(text)
    if found is None and not text.startswith(("aten::", "c10d::", "nccl:")):
        return None
    name, rest = (found["name"], found["rest"]) if found else (text, "")
    sequence = _SEQUENCE.search(rest)
    return _RangeOperator(
        name=name,
        sequence=int(sequence[1]) if sequence else -1,
        is_backward=_BACKWARD.search(name) is not None,
        signature=_signature(rest),
    )


def _signature(rest: str) -> Signature | None:
    found = _SIZES.search(rest)
    if found is None:
        return None
    try:
        shapes = record(tuple[tuple[Count, ...], ...], found[1])
    except Malformed:
        return None
    return Signature(shapes, ("",) * len(shapes))


def comm_of(text: str, payload: str) -> ProfiledComm | None:
    """The collective of a range of NCCL's, with the bytes that its payload says, as elements of 1.

    NCCL (src/collectives.cc) writes what a rank sends, but of a reduce-scatter what it gets, and of an
    all-to-all what it sends to one other: no range says how many these are.
    """
    found = _NCCL.match(text)
    name = _COMMS.get(found[1]) if found else None
    size = -1 if name == "all_to_all" else _sent(payload)
    gets = name == "_reduce_scatter_base"
    return ProfiledComm(name, *((-1, size) if gets else (size, -1)), "Byte") if name else None


def comm_of_kernel(name: str) -> ProfiledComm | None:
    """The collective of a kernel of NCCL's by its name: nothing else is said there."""
    found = _KERNEL.search(name)
    known = _COMMS.get(found[1]) if found else None
    return ProfiledComm(known, -1, -1, "") if known else None


def with_comms_of_kernels(profile: Profile) -> Profile:
    """Kernels of NCCL's that no operator describes: what they do, by their names."""
    found = [comm_of_kernel(name) for name in profile.strings]
    named = {i: c for i, c in enumerate(found) if c is not None}
    comms = tuple(dict.fromkeys(named.values()))
    numbers = {i: len(profile.comms) + comms.index(c) for i, c in named.items()}
    activities = profile.activities
    comm = [
        numbers.get(name, -1) if known < 0 else known
        for name, known in zip(activities.name.tolist(), activities.comm.tolist(), strict=True)
    ]
    return replace(
        profile,
        comms=profile.comms + comms,
        activities=replace(activities, comm=np.array(comm, dtype=np.int32)),
    )


def _sent(payload: str) -> int:
    try:
        document = json.loads(payload) if payload else None
    except (ValueError, RecursionError):
        return -1
    if not isinstance(document, dict):
        return -1
    for name, value in document.items():
        if "size" in name.lower() and isinstance(value, int | str):
            digits = str(value)
            return int(digits) if digits.isdecimal() and len(digits) < 19 else -1
    return -1
