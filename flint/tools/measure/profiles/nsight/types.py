"""Types of tensors, which PyTorch does not write into NVTX ranges: by the names of kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from flint.tools.measure.profiles.kernels import element_of_kernel
from flint.tools.measure.profiles.profile import Profile, Signature

#: StableHLO's names, as PyTorch's profiler has them.
_TYPES = {
    "f32": "float", "bf16": "c10::BFloat16", "f16": "c10::Half", "i64": "long int",
    "ui8": "unsigned char",
}  # fmt: skip


def with_types_of_kernels(profile: Profile) -> Profile:
    """Signatures of operators with the type that the longest kernel they launched names.

    All tensors of an operator have one type then: of indices that is wrong. An operator around others
    has that of their longest kernel. A shape without dimensions is a number and has none.
    """
    longest = _longest(profile)
    signatures = dict.fromkeys(profile.signatures)
    rows = profile.operators.signature.tolist()
    typed: dict[int, Signature] = {}
    for operator, activity in longest.items():
        if rows[operator] >= 0:
            name = profile.strings[profile.activities.name[activity]]
            named = _TYPES.get(element_of_kernel(name), "float")
            typed[operator] = _typed(profile.signatures[rows[operator]], named)
            signatures.setdefault(typed[operator])
    numbers = {s: i for i, s in enumerate(signatures)}
    signature = np.array(
        [numbers[typed[i]] if i in typed else n for i, n in enumerate(rows)], dtype=np.int32
    )
    operators = replace(profile.operators, signature=signature)
    return replace(profile, operators=operators, signatures=tuple(signatures))


def _longest(profile: Profile) -> dict[int, int]:
    """For each operator the longest activity that it, or one inside it, launched."""
    found: dict[int, int] = {}
    duration = profile.activities.duration_ns
    for activity, innermost in enumerate(profile.activities.operator.tolist()):
        at = innermost
        while at >= 0:
            if at not in found or duration[activity] > duration[found[at]]:
                found[at] = activity
            at = int(profile.operators.parent[at])
    return found


def _typed(signature: Signature, named: str) -> Signature:
    return replace(signature, types=tuple(named if shape else "" for shape in signature.shapes))
