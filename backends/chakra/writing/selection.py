"""Which ranks to write: `all`, `classes` or a list such as `0,8-15`."""

from __future__ import annotations

import re

import numpy as np

from flint.errors import FlintError
from flint.ir.program import Int64s
from flint.ir.workload import Workload


def select_ranks(spec: str, workload: Workload) -> Int64s:
    """Ranks that `spec` names, ascending. `classes` is the first rank of each rank class.

    Raises FlintError FL503 for anything else and for ranks that the mesh does not have.
    """
    size = workload.mesh.size
    if spec == "all":
        return np.arange(size, dtype=np.int64)
    if spec == "classes":
        _, first = np.unique(workload.class_of_ranks(), return_index=True)
        return np.sort(first).astype(np.int64)
    chosen: set[int] = set()
    for part in spec.split(","):
        found = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        if found is None:
            raise _refuse(spec, f"'{part.strip()}' is neither a rank nor a range")
        low = int(found[1])
        high = int(found[2]) if found[2] else low
        if high < low or high >= size:
            raise _refuse(spec, f"the mesh has ranks 0 to {size - 1}")
        chosen.update(range(low, high + 1))
    return np.array(sorted(chosen), dtype=np.int64)


def _refuse(spec: str, why: str) -> FlintError:
    return FlintError(
        "FL503",
        f"cannot select ranks '{spec}': {why}",
        help="write all, classes, or ranks and ranges such as 0,8-15",
    )
