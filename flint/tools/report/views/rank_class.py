"""Which rank classes of an estimate are meant."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from flint.errors import FlintError, nearest

if TYPE_CHECKING:
    from flint.backends.cost.estimate import Estimate


def slowest_class(estimate: Estimate) -> int:
    """The index of the rank class that ends last."""
    return int(np.argmax([c.end_ns for c in estimate.classes]))


def chosen_classes(estimate: Estimate, rank_class: int | str | None) -> list[int]:
    """Indices of the classes meant: by index, or by a name or its part before a colon.

    None is the slowest, "all" are all. Raises FlintError FL503 for a class that is not there.
    """
    names = [c.name for c in estimate.classes]
    if rank_class is None:
        return [slowest_class(estimate)]
    for known in (names, [n.partition(":")[0] for n in names]):
        if known.count(str(rank_class)) == 1:
            return [known.index(str(rank_class))]
    if rank_class == "all":
        return list(range(len(names)))
    if rank_class in (*range(len(names)), *map(str, range(len(names)))):
        return [int(rank_class)]
    shown = [*names[:20], *(["or all"] if "all" not in names else [])]
    raise FlintError(
        "FL503",
        f"no rank class is called '{rank_class}'{nearest(str(rank_class), names)}",
        help=f"the classes are {'; '.join(shown)}{'; ...' if len(names) > 20 else ''}",
    )
