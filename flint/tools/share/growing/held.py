"""A grown workload held against what is known of its arguments: whole dimensions are as planned."""

from __future__ import annotations

import math
from fractions import Fraction

from flint.errors import FlintError
from flint.ir.mesh import AxisRef, Mesh
from flint.ir.workload import Workload
from flint.tools.share.growing.known import Known
from flint.tools.share.growing.plan import Plan
from flint.tools.share.growing.splits import sharding_of
from flint.tools.share.sizes import Expression


def require_shardings(known: Known, planned: Plan, found: Workload) -> None:
    """Raise FlintError FL922 for arguments whose whole dimensions are not what variables make of them.

    A dimension over which axes are gathered can be read in several ways: an axis may have been taken for a factor
    of another one. Then the new mesh changes what it should not.
    """
    old, new = known.workload.mesh, found.mesh
    _require_simple(known, new)
    p, after = known.structure.program, found.programs[known.structure.number]
    for row in known.structure.parameters:
        sharding = sharding_of(p.strings[int(p.cause[row])])
        dims = known.structure.dims(row)
        if sharding is None or len(sharding) != len(dims):
            continue
        shapes = p.shapes[int(p.shape[row])], after.shapes[int(after.shape[row])]
        for axes, dim, before, size in zip(sharding, dims, *shapes, strict=True):
            if before == 1 or len(dim.terms) > 1:
                continue
            wanted = before * _devices(axes, old) * _ratio(dim, planned)
            if size * _devices(axes, new) != wanted:
                raise _inconsistent(known.name(row), before)


def _require_simple(known: Known, new: Mesh) -> None:
    """No dimension has an axis that changes twice as a factor; without shardings no weight has a constant."""
    old = known.workload.mesh
    changed = {n for n, size in new.shape.items() if old.shape[n] != size}
    if changed and not known.has_shardings:
        for row in known.structure.weights:
            for dim, size in zip(known.structure.dims(row), known.shape(row), strict=True):
                if size > 1 and not dim.variables:
                    raise _unclear(known.name(row), size)
    for monomial in known.structure.monomials:
        axes = [f.name for f in monomial if isinstance(f, AxisRef)]
        if twice := [a for a in axes if axes.count(a) > 1 and a in changed]:
            raise FlintError(
                "FL922",
                f"axis '{twice[0]}' cannot change: how dimensions of the program are split over it is not clear",
                help="capture it on another mesh, whose axes are as long as no number of heads",
            )


def _devices(axes: tuple[str, ...], mesh: Mesh) -> int:
    return math.prod(mesh.shape[a] for a in axes)


def _ratio(dim: Expression, planned: Plan) -> Fraction:
    found = Fraction(1)
    for monomial, _ in dim.terms:
        for factor in monomial:
            if isinstance(factor, int):
                found *= planned.ratios[factor]
    return found


def _unclear(name: str, size: int) -> FlintError:
    return FlintError(
        "FL922",
        f"the mesh cannot change: a dimension of {size:,} of {name} is of no variable, and without shardings nothing "
        "tells whether an axis splits it",
        help="grow the workload before flint anonymize, which drops shardings",
    )


def _inconsistent(name: str, size: int) -> FlintError:
    return FlintError(
        "FL922",
        f"{name} would not be what it is now: a dimension of {size:,} is read in two ways",
        help="capture the program on another mesh, whose axes are as long as no other dimension",
    )
