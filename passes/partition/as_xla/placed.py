"""Where the values of a propagated module are: their shardings, read and changed."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from typing import Any

from flint.passes.mlir import functions_of
from flint.passes.partition.as_xla.layouts import Axis, Layout, joined


def factors_of(mapping: Any) -> list[int]:
    """The factor that each dimension of a tensor is, of a rule's mapping."""
    from jaxlib.mlir.dialects import sdy

    dims = sdy.TensorMappingAttr(mapping).dim_mappings
    return [next(iter(sdy.DimMappingAttr(d).factor_indices)) for d in dims]


def partitioned_operations(module: Any, names: Container[str]) -> list[Any]:
    """Operations called one of `names` that are the partitioner's: those outside of `shard_map`."""
    from jaxlib.mlir import ir

    found: list[Any] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        name = op.name
        if name == "sdy.manual_computation":
            return ir.WalkResult.SKIP
        if name in names:
            found.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    return found


def is_annotated_here(value: Any) -> bool:
    """Whether the sharding of a value is found beside what defines it."""
    from jaxlib.mlir import ir

    return not isinstance(value, ir.BlockArgument) or _definer(value).name in (
        "func.func",
        "stablehlo.while",
    )


def _definer(value: Any) -> Any:
    """The operation that has a value as its result, or as an argument of its region."""
    from jaxlib.mlir import ir

    owner = value.owner.owner if isinstance(value, ir.BlockArgument) else value.owner
    return getattr(owner, "operation", owner)


def sharding_of(value: Any) -> Any:
    """The `#sdy.sharding` of a value, or None: it is whole on every device."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import sdy

    owner = _definer(value)
    if owner.name == "func.func":
        attributes = owner.attributes.get("arg_attrs", None)
        given = attributes[value.arg_number] if attributes is not None else {}
        return sdy.TensorShardingAttr(given["sdy.sharding"]) if "sdy.sharding" in given else None
    if owner.name == "sdy.reshard":
        return sdy.TensorShardingAttr(owner.attributes["sharding"])
    if "out_sharding" in owner.attributes:  # of Shardy's collectives
        return sdy.TensorShardingAttr(owner.attributes["out_sharding"])
    if "sdy.sharding" not in owner.attributes:
        return None
    argument = isinstance(value, ir.BlockArgument)
    number = value.arg_number if argument else ir.OpResult(value).result_number
    every = sdy.TensorShardingPerValueAttr(owner.attributes["sdy.sharding"]).shardings
    return sdy.TensorShardingAttr(every[number])


def reshard(value: Any, sharding: Any, before: Any) -> Any:
    """The value with another sharding, from an operation put in front of `before`."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import sdy

    with ir.InsertionPoint(before), before.location:
        return sdy.ReshardOp(value, sharding).result


def make_at(op: Any, sharding: Any) -> None:
    """Let an operation make all of its results in a sharding, and move them to where they were."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import sdy

    olds = [sharding_of(r) or whole_like(sharding) for r in op.results]
    op.attributes["sdy.sharding"] = sdy.TensorShardingPerValueAttr.get([sharding] * len(olds))
    for result, old in zip(op.results, olds, strict=True):
        if old == sharding:
            continue
        with ir.InsertionPoint.after(op), op.location:
            moved = sdy.ReshardOp(result, old)
        result.replace_all_uses_except(moved.result, moved.operation)


def whole_like(sharding: Any) -> Any:
    """No axes anywhere, for a tensor of as many dimensions."""
    from jaxlib.mlir.dialects import sdy

    dims = [sdy.DimensionShardingAttr.get([], is_closed=True) for _ in sharding.dimension_shardings]
    return sdy.TensorShardingAttr.get(sharding.mesh_or_ref, dims)


def axis_sizes(module: Any) -> dict[str, int]:
    """Devices along each axis of the module's meshes; empty where these do not agree."""
    from jaxlib.mlir.dialects import sdy

    found: dict[str, int] = {}
    for op in (o.operation for o in module.body if o.operation.name == "sdy.mesh"):
        for axis in map(sdy.MeshAxisAttr, sdy.MeshAttr(op.attributes["mesh"]).axes):
            if found.setdefault(axis.name, axis.size) != axis.size:
                return {}
    return found


def used_axes(module: Any) -> frozenset[str]:
    """Names of the axes that divide an argument of the program.

    Of others nothing is known: along a pipeline's axis other devices run other stages.
    """
    main = functions_of(module)["main"]
    text = str(main.attributes.get("arg_attrs", ""))
    return frozenset(re.findall(r'"([^"]*)"', " ".join(re.findall(r"\[\{.*?\}\]", text))))


def manual_axes(op: Any) -> frozenset[str]:
    """Names of the axes that the `shard_map` around an operation divides by itself."""
    found: set[str] = set()
    parent = op.parent
    while parent is not None:
        if parent.name == "sdy.manual_computation":
            found.update(re.findall(r'"([^"]*)"', str(parent.attributes["manual_axes"])))
        parent = parent.parent
    return frozenset(found)


def layout_of(sharding: Any, rank: int, sizes: dict[str, int]) -> Layout:
    """The axes of a sharding (None: whole) of a tensor of `rank` dimensions."""
    if sharding is None:
        return ((),) * rank
    return tuple(axes_of_dimension(d, sizes) for d in sharding.dimension_shardings)


def axes_of_dimension(dim: Any, sizes: dict[str, int]) -> tuple[Axis, ...]:
    """The axes of the sharding of one dimension, major to minor."""
    from jaxlib.mlir.dialects import sdy

    return tuple(_axis(sdy.AxisRefAttr(a), sizes) for a in sdy.DimensionShardingAttr(dim).axes)


def _axis(axis: Any, sizes: dict[str, int]) -> Axis:
    from jaxlib.mlir.dialects import sdy

    part = axis.sub_axis_info
    if part is None:
        return axis.name, 1, sizes.get(axis.name, 0)
    info = sdy.SubAxisInfoAttr(part)
    return axis.name, info.pre_size, info.size


def sharding_at(layout: Layout, mesh: Any, sizes: dict[str, int]) -> Any:
    """The closed `#sdy.sharding` of a layout."""
    from jaxlib.mlir.dialects import sdy

    return sdy.TensorShardingAttr.get(mesh, [dimension_at(dim, sizes) for dim in layout])


def dimension_at(dim: Iterable[Axis], sizes: dict[str, int]) -> Any:
    """The closed sharding of one dimension. Parts of an axis in order are one: Shardy wants that."""
    from jaxlib.mlir.dialects import sdy

    axes = [_axis_attribute(a, sizes) for a in joined(dim)]
    return sdy.DimensionShardingAttr.get(axes, is_closed=True)


def _axis_attribute(axis: Axis, sizes: dict[str, int]) -> Any:
    from jaxlib.mlir.dialects import sdy

    name, before, size = axis
    if size == sizes.get(name, 0):  # 0: no size is known
        return sdy.AxisRefAttr.get(name)
    return sdy.AxisRefAttr.get(name, sdy.SubAxisInfoAttr.get(before, size))


def axis_lists(before: Layout, after: Layout, sizes: dict[str, int]) -> Any:
    """The attribute of a gather or slice: the axes that `after` has less, for each dimension."""
    from jaxlib.mlir import ir

    dims = [b[len(a) :] for b, a in zip(before, after, strict=True)]
    text = ", ".join("{" + ", ".join(_shown(a, sizes) for a in dim) + "}" for dim in dims)
    return ir.Attribute.parse(f"#sdy<list_of_axis_ref_lists[{text}]>")


def axis_list(axes: Iterable[Axis], sizes: dict[str, int]) -> Any:
    """The attribute of a sum: axes in the order of the mesh."""
    from jaxlib.mlir import ir

    names = list(sizes)
    ordered = joined(sorted(axes, key=lambda a: (names.index(a[0]), a[1])))
    text = ", ".join(_shown(a, sizes) for a in ordered)
    return ir.Attribute.parse(f"#sdy<axis_ref_list{{{text}}}>")


def _shown(axis: Axis, sizes: dict[str, int]) -> str:
    name, before, size = axis
    return f'"{name}"' if size == sizes[name] else f'"{name}":({before}){size}'
