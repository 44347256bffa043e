"""A stage on the devices of its own position of a pipeline's axis, and back on those of all.

Nothing of a body is sharded over the axis of the pipeline, so each position holds a copy. A compiler
that knows them all uses copies as it likes (it gathers over that axis what two positions have). In
truth other stages are there: so it is told of the devices of one position alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flint.errors import FlintError
from flint.ir.mesh import Group, Mesh, Route
from flint.ir.program import Program
from flint.passes.locations import decode_location
from flint.passes.mlir import make_context, operations_named, write_bytecode
from flint.passes.partition.prepare.kept_fills import keep_passes
from flint.steps.captured import Captured, Positions

_PARTITIONS: Final = "mhlo.num_partitions"
#: Attributes that list devices, and those that name the axes of shardings.
_LISTS: Final = ("replica_groups", "source_target_pairs")
_SHARDINGS: Final = frozenset(
    ("sdy.sharding", "sharding", "in_shardings", "out_shardings", "arg_attrs", "res_attrs")
)
_REPLICATED: Final = re.compile(r"replicated=\{[^}]*\}")


def on_one_position(
    captured: Captured, axis: str, of: Positions, *, in_passes: bool = False
) -> Captured:
    """The module for a mesh in which `axis` has one position; `in_passes`: its passes stay apart.

    `of` says for messages what the positions run. Raises FlintError FL240 for a program that is
    sharded, or communicates, over `axis`.
    """
    from jaxlib.mlir import ir

    mesh = captured.mesh
    alone = Mesh(mesh.names, tuple(1 if n == axis else s for n, s in mesh.shape.items()))
    with make_context():
        module = ir.Module.parse(captured.module)
        for op in operations_named(module, "sdy.mesh"):
            op.attributes["mesh"] = _with_one(op.attributes["mesh"], axis)
        whose = "a stage" if of is Positions.STAGES else f"the {captured.name} step"
        _restrict(module, _ranks(mesh, axis)[0], _Refusal(axis, of, whose))
        if in_passes:
            keep_passes(module)
        attributes = module.operation.attributes
        if _PARTITIONS in attributes:
            attributes[_PARTITIONS] = ir.IntegerAttr.get(attributes[_PARTITIONS].type, alone.size)
        return replace(captured, module=write_bytecode(module), mesh=alone)


@dataclass(frozen=True)
class _Refusal:
    """Says that a module is sharded, or communicates, over `axis`."""

    axis: str
    of: Positions
    whose: str

    def of_operation(self, op: Any, *, communicates: bool) -> FlintError:
        return FlintError(
            "FL240",
            f"{self.whose} {'communicates' if communicates else 'is sharded'} over '{self.axis}', the "
            f"axis of the {self.of}, of which each position runs its own program{self._argument(op)}",
            place=decode_location(op.location)[1] or None,
            help="communicate over the other axes. jax.shard_map takes all axes of the mesh: give it "
            f"axis_names without '{self.axis}', or leave check_vma on"
            if communicates
            else f"shard over the other axes; each position of '{self.axis}' holds a copy",
        )

    def _argument(self, op: Any) -> str:
        """The first argument of a function that is sharded over the axis, by name."""
        given = op.attributes.get("arg_attrs", ())
        found = (n for n, said in enumerate(given) if self.sharded(said))
        number = next(found, None)
        if number is None:
            return ""
        name, _ = decode_location(op.regions[0].blocks[0].arguments[number].location)
        return f": {name or f'argument {number}'} is sharded so"

    def sharded(self, attribute: Any) -> bool:
        return f'"{self.axis}"' in _REPLICATED.sub("", str(attribute))


def _restrict(module: Any, here: NDArray[np.int64], refusal: _Refusal) -> None:
    """Let operations list groups and pairs of the devices `here` alone, by their place among them."""
    from jaxlib.mlir import ir

    place = {rank: number for number, rank in enumerate(here.tolist())} | {-1: -1}
    errors: list[FlintError] = []

    def own(op: Any, listed: Any) -> Any:
        rows = np.array(ir.DenseIntElementsAttr(listed)).tolist()
        if not rows:
            return listed
        mine = [[place[rank] for rank in row] for row in rows if place.keys() >= set(row)]
        if any(place.keys() & set(row) - {-1} and not place.keys() >= set(row) for row in rows):
            errors.append(refusal.of_operation(op, communicates=True))
        return ir.DenseElementsAttr.get(np.array(mine, dtype=np.int64).reshape(-1, len(rows[0])))

    def visit(op: ir.Operation) -> ir.WalkResult:
        for name in _LISTS:
            if name in op.attributes and not errors:
                op.attributes[name] = own(op, op.attributes[name])
        if any(refusal.sharded(op.attributes[n]) for n in _SHARDINGS if n in op.attributes):
            errors.append(refusal.of_operation(op, communicates=False))
        return ir.WalkResult.INTERRUPT if errors else ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    if errors:
        raise errors[0]


def _with_one(attribute: Any, axis: str) -> Any:
    from jaxlib.mlir.dialects import sdy

    axes = [sdy.MeshAxisAttr(a) for a in sdy.MeshAttr(attribute).axes]
    return sdy.MeshAttr.get(
        [sdy.MeshAxisAttr.get(a.name, 1 if a.name == axis else a.size) for a in axes]
    )


def on_all_positions(program: Program, mesh: Mesh, axis: str) -> Program:
    """What the devices of one position do, as what those of each position of `mesh` do."""
    here = _ranks(mesh, axis)
    groups = tuple(_group(g, here) for g in program.groups)
    routes = tuple(_route(r, here) for r in program.routes)
    return program.with_rows(mesh=mesh, groups=groups, routes=routes)


def _ranks(mesh: Mesh, axis: str) -> NDArray[np.int64]:
    """For each position of `axis`, its ranks in mesh order."""
    ranks = np.moveaxis(np.arange(mesh.size).reshape(mesh.sizes), mesh.names.index(axis), 0)
    return ranks.reshape(ranks.shape[0], -1)


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
