"""A stage on the devices of its own position of a pipeline's axis, and back on those of all.

Nothing of a body is sharded over the axis of the pipeline, so each position holds a copy. A compiler
that knows them all uses copies as it likes (it gathers over that axis what two positions have). In
truth other stages are there: so it is told of the devices of one position alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np

from flint.ir.mesh import Group, Mesh, Route
from flint.ir.program import Program
from flint.passes.mlir import make_context, operations_named, write_bytecode
from flint.steps.captured import Captured

_PARTITIONS: Final = "mhlo.num_partitions"


def on_one_position(captured: Captured, axis: str) -> Captured:
    """The module for a mesh in which `axis` has one position."""
    from jaxlib.mlir import ir

    mesh = captured.mesh
    alone = Mesh(mesh.names, tuple(1 if n == axis else s for n, s in mesh.shape.items()))
    with make_context():
        module = ir.Module.parse(captured.module)
        for op in operations_named(module, "sdy.mesh"):
            op.attributes["mesh"] = _with_one(op.attributes["mesh"], axis)
        attributes = module.operation.attributes
        if _PARTITIONS in attributes:
            attributes[_PARTITIONS] = ir.IntegerAttr.get(attributes[_PARTITIONS].type, alone.size)
        return replace(captured, module=write_bytecode(module), mesh=alone)


def _with_one(attribute: Any, axis: str) -> Any:
    from jaxlib.mlir.dialects import sdy

    axes = [sdy.MeshAxisAttr(a) for a in sdy.MeshAttr(attribute).axes]
    return sdy.MeshAttr.get(
        [sdy.MeshAxisAttr.get(a.name, 1 if a.name == axis else a.size) for a in axes]
    )


def on_all_positions(program: Program, mesh: Mesh, axis: str) -> Program:
    """What the devices of one position do, as what those of each position of `mesh` do."""
    ranks = np.moveaxis(np.arange(mesh.size).reshape(mesh.sizes), mesh.names.index(axis), 0)
    here = ranks.reshape(ranks.shape[0], -1)  # for each position, its ranks in mesh order
    groups = tuple(_group(g, here) for g in program.groups)
    routes = tuple(_route(r, here) for r in program.routes)
    return program.with_rows(mesh=mesh, groups=groups, routes=routes)


def _group(group: Group, here: Any) -> Group:
    if not group.ranks:
        return group
    every = tuple(tuple(p[list(ranks)].tolist()) for p in here for ranks in group.ranks)
    return replace(group, ranks=every)


def _route(route: Route, here: Any) -> Route:
    if route.axes or not route.pairs:
        return route
    every = tuple((int(p[a]), int(p[b])) for p in here for a, b in route.pairs)
    return replace(route, pairs=every)
