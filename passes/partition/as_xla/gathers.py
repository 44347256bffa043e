"""Gathers of several dimensions, one dimension after another as XLA's partitioner does them."""

from __future__ import annotations

from typing import Any

from flint.passes.mlir import operations_named

_AXES = "gathering_axes"


def split_gathers(module: Any) -> None:
    """Make one all-gather for each dimension that an all-gather makes whole, the last one first.

    A ring sends the same bytes; what each of them starts from differs.
    """
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import sdy

    for op in operations_named(module, "sdy.all_gather"):
        if str(op.attributes[_AXES]).count('{"') < 2:
            continue
        goal = sdy.TensorShardingAttr(op.attributes["out_sharding"])
        lists = [str(a) for a in _lists(op.attributes[_AXES])]
        ends = list(goal.dimension_shardings)
        starts = [_with(end, text) for end, text in zip(ends, lists, strict=True)]
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


def _with(end: Any, text: str) -> Any:
    """A dimension's sharding with more axes, minor to those that it has."""
    from jaxlib.mlir.dialects import sdy

    names = [a for a in text.strip("{}").split(", ") if a]
    more = [_axis(name) for name in names]
    axes = [*sdy.DimensionShardingAttr(end).axes, *more]
    return sdy.DimensionShardingAttr.get(axes, is_closed=True)


def _axis(text: str) -> Any:
    from jaxlib.mlir.dialects import sdy

    name, _, part = text.partition(":")
    if not part:
        return sdy.AxisRefAttr.get(name.strip('"'))
    before, size = part.strip("(").split(")")
    return sdy.AxisRefAttr.get(name.strip('"'), sdy.SubAxisInfoAttr.get(int(before), int(size)))
