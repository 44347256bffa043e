"""Stacked parameters that layers index one by one (`w[3]`): each stage holds its own rows only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from flint.frontends.jax_stages.cut.jaxprs import reads
from flint.frontends.jax_stages.cut.parts import CutStage
from flint.frontends.jax_stages.cut.trace import ModelArgument, Traced
from flint.frontends.jax_step.specs import check_spec
from flint.ir.mesh import Mesh

if TYPE_CHECKING:
    from jax.extend.core import JaxprEqn, Var


Rows = tuple[int, int]


def sliced_rows(equation: JaxprEqn) -> Rows | None:
    """The first row, and the one after the last, that a static slice takes of dimension 0."""
    if equation.primitive.name != "slice":
        return None
    start, limit = equation.params["start_indices"], equation.params["limit_indices"]
    shape = equation.invars[0].aval.shape
    if not shape or any(s != 1 for s in equation.params["strides"] or ()):
        return None
    if tuple(start[1:]) != (0,) * (len(shape) - 1) or tuple(limit[1:]) != tuple(shape[1:]):
        return None
    return int(start[0]), int(limit[0])


def narrowed(
    parts: Sequence[CutStage], traced: Traced, mesh: Mesh
) -> tuple[tuple[CutStage, ...], Traced]:
    """The parts, with rows instead of whole parameters where no two parts read the same rows.

    Raises FlintError FL103 for a sharding that does not divide the rows of a stage.
    """
    parts, described = list(parts), dict(traced.described)
    for variable, argument in traced.described.items():
        used = sum(variable in part.arguments for part in parts)
        if not argument.is_parameter or used < 2:
            continue
        rows = [_rows(part, variable) for part in parts]
        held = sorted(r for r in rows if r is not None)
        if len(held) < used or any(a[1] > b[0] for a, b in pairwise(held)):
            continue
        for number, found in enumerate(rows):
            if found is not None:
                own = _part_of(argument, found, mesh)
                parts[number], new = _narrow(parts[number], variable, own)
                described[new] = own
    return tuple(parts), replace(traced, described=described)


def _rows(part: CutStage, variable: Var) -> Rows | None:
    """The rows of a parameter that a part reads, if it reads it through static slices alone."""
    if variable not in part.arguments or variable in part.results:
        return None
    found = [sliced_rows(e) for e in part.equations if variable in reads(e)]
    rows = [r for r in found if r is not None]
    if not rows or len(rows) < len(found):
        return None
    return min(r[0] for r in rows), max(r[1] for r in rows)


def _part_of(whole: ModelArgument, rows: Rows, mesh: Mesh) -> ModelArgument:
    import jax

    shape = (rows[1] - rows[0], *whole.struct.shape[1:])
    sharding = whole.struct.sharding
    name = f"{whole.name}, layers {rows[0]}-{rows[1] - 1}"
    check_spec(sharding.spec, shape, whole.struct.dtype, name, mesh, None)
    struct = jax.ShapeDtypeStruct(shape, whole.struct.dtype, sharding=sharding)
    return replace(whole, struct=struct, layers=rows)


def _narrow(part: CutStage, variable: Var, own: ModelArgument) -> tuple[CutStage, Any]:
    """The part with a new variable of `own`'s shape for a parameter, slices counted from there."""
    from jax.extend import core

    assert own.layers is not None, "rows are known"
    first = own.layers[0]
    new = core.gensym()(variable.aval.update(shape=own.struct.shape))
    equations = []
    for equation in part.equations:
        if variable in reads(equation):
            params = dict(equation.params)
            for key in ("start_indices", "limit_indices"):
                params[key] = (params[key][0] - first, *params[key][1:])
            equation = equation.replace(invars=[new], params=params)
        equations.append(equation)
    arguments = tuple(new if v is variable else v for v in part.arguments)
    return replace(part, arguments=arguments, equations=tuple(equations)), new
