"""Work that devices do over again: mesh axes over which little or nothing of a program is split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from flint.ir.mesh import Mesh
from flint.ir.program import Program

#: An axis is named when more than this share of the FLOPs is not split over it.
MOST_REPLICATED = 0.5


def replicated_work(
    program: Program, splits: Mapping[int, frozenset[str]], ways: Sequence[int]
) -> str:
    """A sentence about the axes over which more than half of the FLOPs are not split, or "".

    `splits` has, for each row that computes, the names of the axes that shard something that it
    reads or writes: along the others all devices do the same. FLOPs are those of the whole program,
    before it is split: what a device does, times in how many `ways` it is split, for each row of `splits`. Loops count as often as they run.
    """
    rows = np.fromiter(splits, dtype=np.int64, count=len(splits))
    shared = np.array(ways, dtype=np.float64)
    work = program.flops[rows] * shared * program.trips[rows]
    total = float(work.sum())
    if total <= 0:
        return ""
    idle: dict[str, NDArray[np.bool_]] = {}
    for axis, size in program.mesh.shape.items():
        whole = np.array([axis not in axes for axes in splits.values()], dtype=np.bool_)
        if size > 1 and float(work[whole].sum()) > MOST_REPLICATED * total:
            idle[axis] = whole
    if not idle:
        return ""
    shares = {axis: float(work[whole].sum()) / total for axis, whole in idle.items()}
    worst = np.where(np.logical_and.reduce(list(idle.values())), work, 0.0)
    largest = int(np.argmax(worst))
    return _sentence(program, shares, int(rows[largest]), float(worst[largest]) / total)


def _sentence(program: Program, shares: Mapping[str, float], row: int, part: float) -> str:
    mesh: Mesh = program.mesh
    axes = " and ".join(f"'{a}' ({mesh.axis_size(a)} devices)" for a in shares)
    percent = " and ".join(dict.fromkeys(f"{share:.0%}" for share in shares.values()))
    several = set(shares) == {a for a, size in mesh.shape.items() if size > 1}
    nothing = several and min(shares.values()) == 1.0
    what = program.row(row)
    opcode = what.opcode.rpartition(".")[2] if "custom_call" not in what.opcode else what.opcode
    place = f" at {what.location}" if what.location else ""
    if what.scope:
        place += f" ({what.scope})"
    begin = (
        f"no operation of this program is sharded over the mesh: every device along {axes} does "
        "all of the work"
        if nothing
        else f"devices along {axes} do the same work: {percent} of the FLOPs are not sharded over "
        + ("them" if len(shares) > 1 else "it")
    )
    return (
        f"{begin}, {part:.0%} in {opcode}{place}; shard what it reads or writes over "
        f"{' or '.join(repr(a) for a in shares)} (shardings of the arguments, or "
        "jax.lax.with_sharding_constraint), or take a mesh without "
        + ("these axes" if len(shares) > 1 else "this axis")
    )
