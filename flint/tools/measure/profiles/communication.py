"""Which activities of a profile communicate: by what they say, by name, by operator, by stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flint.ir.arrays import Mask
from flint.ir.op_class import OpClass
from flint.tools.measure.profiles.comm_kernels import (
    BY_NAME,
    calculates,
    comm_of_kernel,
    comm_of_operator,
)
from flint.tools.measure.profiles.kernels import class_of_kernel

if TYPE_CHECKING:
    from flint.tools.measure.profiles.profile import Profile

#: A stream of which so much communicates is one of communication.
_MOSTLY = 0.9


def communicating(profile: Profile) -> Mask:
    """For each activity whether it is communication, of any library."""
    a = profile.activities
    kernels = a.kind == 0
    named = _of_names(profile.strings, a.name, lambda s: comm_of_kernel(s) is not None)
    guessed = _of_names(profile.strings, a.name, _says_it_itself)
    named &= ~(guessed & ((a.category > 0) | (a.compiled >= 0)))  # a compiler knows better
    operators = _of_names(
        profile.strings, profile.operators.name, lambda s: comm_of_operator(s) is not None
    )
    launched = np.zeros(len(kernels), dtype=np.bool_)
    inside = a.operator >= 0
    launched[inside] = operators[a.operator[inside]]
    launched &= ~_of_names(profile.strings, a.name, calculates)
    return np.asarray((a.comm >= 0) | (kernels & (named | launched)))


def _says_it_itself(kernel: str) -> bool:
    found = comm_of_kernel(kernel)
    return found is not None and found.library == BY_NAME


def on_its_stream(profile: Profile, communicates: Mask) -> Mask:
    """Kernels of no class on a stream that otherwise communicates: they are its communication, too."""
    a = profile.activities
    nameless = _nameless(profile) & ~communicates
    found = np.zeros(len(nameless), dtype=np.bool_)
    for stream in np.unique(a.stream[communicates]).tolist():
        there = (a.stream == stream) & (a.kind == 0)
        known = float(a.duration_ns[there & ~nameless].sum())
        if float(a.duration_ns[there & communicates].sum()) >= _MOSTLY * known:
            found |= there & nameless
    return found


def unexplained(profile: Profile, rows: NDArray[np.int64], main: int) -> list[str]:
    """Sentences about streams beside the computing one whose long kernels are of no class."""
    a = profile.activities
    kernels = rows[a.kind[rows] == 0]
    nameless = kernels[_nameless(profile)[kernels] & ~profile.communicates[kernels]]
    nameless = nameless[a.stream[nameless] != main]
    said = []
    for stream in np.unique(a.stream[nameless]).tolist():
        there = nameless[a.stream[nameless] == stream]
        took = float(a.duration_ns[there].sum())
        if took < 0.05 * float(a.duration_ns[kernels].sum()):
            continue
        longest = int(there[np.argmax(a.duration_ns[there])])
        said.append(
            f"{len(there)} kernels of no class ({took / 1e6:.3f} ms) run on stream {stream} beside the one "
            f"that computes: they count as computing, and may communicate "
            f"('{profile.strings[a.name[longest]][:60]}')"
        )
    return said


def _nameless(profile: Profile) -> Mask:
    """Kernels whose name tells no class, launched by no operator of PyTorch's own."""
    a = profile.activities
    strings = profile.strings
    unknown = _of_names(
        strings, a.name, lambda s: class_of_kernel(s) is OpClass.UNKNOWN and not calculates(s)
    )
    own = _of_names(strings, profile.operators.name, lambda s: s.startswith(("aten::", "prims::")))
    inside = a.operator >= 0
    unknown[inside] &= ~own[a.operator[inside]]
    category = a.category > 0
    return np.asarray(unknown & (a.kind == 0) & ~category & (a.compiled < 0))


def _of_names(
    strings: Sequence[str], names: NDArray[np.int32], holds: Callable[[str], bool]
) -> Mask:
    """For each row whether something holds of its name."""
    used, place = np.unique(names, return_inverse=True)
    found = np.array([holds(strings[n]) for n in used.tolist()], dtype=np.bool_)
    return found[place] if len(used) else np.zeros(len(names), dtype=np.bool_)
