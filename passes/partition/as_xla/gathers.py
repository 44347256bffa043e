"""Gathers of several dimensions, one dimension after another as XLA's partitioner does them."""

from __future__ import annotations

from typing import Any

from flint.passes.mlir import operations_named
from flint.passes.partition.as_xla.layouts import Axis
from flint.passes.partition.as_xla.placed import axes_of_dimension, axis_sizes, dimension_at

_AXES = "gathering_axes"


def split_gathers(module: Any) -> None:
    """Make one all-gather for each dimension that an all-gather makes whole, the last one first.

    A ring sends the same bytes; what each of them starts from differs.
    """
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import sdy

    sizes = axis_sizes(module)
    for op in operations_named(module, "sdy.all_gather"):
        if str(op.attributes[_AXES]).count('{"') < 2:
            continue
        goal = sdy.TensorShardingAttr(op.attributes["out_sharding"])
        lists = [str(a) for a in _lists(op.attributes[_AXES])]
        ends = list(goal.dimension_shardings)
        starts = [_with(end, text, sizes) for end, text in zip(ends, lists, strict=True)]
        value = op.operands[0]
        for dim in reversed(range(len(lists))):
            if lists[dim] == "{}":
                continue
            starts[dim] = ends[dim]
            axes = ", ".join(text if d == dim else "{}" for d, text in enumerate(lists))
            with ir.InsertionPoint(op), op.location:
                value = sdy.AllGatherOp(
                    value,
                    ir.Attribute.parse(f"#sdy<list_of_axis_ref_lists[{axes}]>"),
                    sdy.TensorShardingAttr.get(goal.mesh_or_ref, starts),
                ).result
        op.results[0].replace_all_uses_with(value)
        op.erase()


def _lists(attribute: Any) -> list[str]:
    """The axes of each dimension as they are written."""
    text = str(attribute)
    inner = text[text.index("[") + 1 : text.rindex("]")]
    return [part.strip(", ") + "}" for part in inner.split("}")[:-1]]


def _with(end: Any, text: str, sizes: dict[str, int]) -> Any:
    """A dimension's sharding with more axes, minor to those that it has."""
    more = (_axis(name, sizes) for name in text.strip("{}").split(", ") if name)
    return dimension_at((*axes_of_dimension(end, sizes), *more), sizes)


def _axis(text: str, sizes: dict[str, int]) -> Axis:
    name, _, part = text.partition(":")
    name = name.strip('"')
    if not part:
        return name, 1, sizes.get(name, 0)
    before, size = part.strip("(").split(")")
    return name, int(before), int(size)
