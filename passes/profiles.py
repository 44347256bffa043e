"""Target profiles: which rewrites a compiler does to a partitioned program."""

from __future__ import annotations

from dataclasses import dataclass

from flint.errors import FlintError, nearest
from flint.passes.base import Pass
from flint.passes.dead_code import DropDeadCode
from flint.passes.reassociate import ReassociateAllReduce
from flint.passes.reduce_scatter import FormReduceScatter


@dataclass(frozen=True)
class Profile:
    """A named, fixed list of passes, applied in order."""

    name: str
    summary: str
    passes: tuple[Pass, ...]


#: Profiles by name. Both compilers sum before they reduce (tested on tensor-parallel gradients);
#: both turn a sliced all-reduce into a reduce-scatter, the TPU compiler not everywhere.
PROFILES: dict[str, Profile] = {
    p.name: p
    for p in (
        Profile("none", "the program as partitioned", ()),
        Profile(
            "xla-gpu",
            "XLA for GPUs: dead code, all-reduce of sums, reduce-scatter",
            (DropDeadCode(), ReassociateAllReduce(), FormReduceScatter()),
        ),
        Profile(
            "xla-tpu",
            "XLA for TPUs: dead code, all-reduce of sums, reduce-scatter",
            (DropDeadCode(), ReassociateAllReduce(), FormReduceScatter()),
        ),
    )
}


def profile(name: str) -> Profile:
    """The profile called `name`. Raises FlintError FL405 if there is none."""
    found = PROFILES.get(name)
    if found is None:
        raise FlintError(
            "FL405",
            f"unknown target profile '{name}'{nearest(name, list(PROFILES))}",
            help="the profiles are " + ", ".join(PROFILES),
        )
    return found
