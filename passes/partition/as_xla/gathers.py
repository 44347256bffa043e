"""Gathers of several dimensions, and sums that are cut, as XLA's partitioner writes them."""

from __future__ import annotations

import math
import re
from typing import Any

from flint.passes.extract.tensors import axis_refs
from flint.passes.mlir import defining_operation, operations_named
from flint.passes.partition.as_xla.placed import axis_sizes, sharding_of, whole_like

_AXES = "gathering_axes"
_SHARDING = "sdy.sharding"
_LAYOUTS = frozenset({"stablehlo.transpose", "stablehlo.reshape"})
_PRE = re.compile(r"\((\d+)\)")


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


def join_slices(module: Any) -> None:
    """Write a reduce-scatter that is cut further as an all-reduce and one slice of it, in place.

    So does XLA's partitioner; its compilers make a reduce-scatter of them only where the slice is
    along the axes of the sum. One along several dimensions is written so, too.
    """
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import sdy

    found = operations_named(module, "sdy.reduce_scatter")
    names = list(axis_sizes(module)) if found else []
    for op in found:
        last = op
        users = [use.owner for use in op.results[0].uses]
        lists = _lists(op.attributes["reduce_scatter_axes"])
        summed = [text.strip("{}") for text in lists if text != "{}"]
        if len(users) == 1 and users[0].name == "sdy.all_slice":
            last = users[0].operation
            more = _lists(last.attributes["slicing_axes"])
            pairs = ((a.strip("{}"), b.strip("{}")) for a, b in zip(lists, more, strict=True))
            lists = ["{" + ", ".join(filter(None, pair)) + "}" for pair in pairs]
        elif len(summed) < 2:
            continue
        goal = last.attributes["out_sharding"]
        before = sharding_of(op.operands[0]) or whole_like(sdy.TensorShardingAttr(goal))
        axes = ir.Attribute.parse(f"#sdy<axis_ref_list{{{', '.join(_in_mesh(summed, names))}}}>")
        cut = ir.Attribute.parse(f"#sdy<list_of_axis_ref_lists[{', '.join(lists)}]>")
        with ir.InsertionPoint(last), op.location:
            whole = sdy.AllReduceOp(op.operands[0], axes, before)
            part = sdy.AllSliceOp(whole.result, cut, goal)
        last.results[0].replace_all_uses_with(part.result)
        if last is not op:
            last.erase()
        op.erase()


def slice_sums_first(module: Any) -> None:
    """Cut a sum where it is made, instead of its transposed or reshaped form, in place.

    XLA's compilers move slices there, and make a reduce-scatter of the two if they are along the
    same axes.
    """
    for op in operations_named(module, "sdy.all_slice"):
        layouts, maker = [], _read_once(op.operands[0])
        while maker is not None and maker.name in _LAYOUTS:
            layouts.append(maker)
            maker = _read_once(maker.operands[0])
        if maker is None or maker.name != "sdy.all_reduce":
            continue
        axes = (op.attributes["slicing_axes"], maker.attributes["reduction_axes"])
        if len({frozenset(axis_refs(a)) for a in axes}) == 1:
            last = op
            for layout in layouts:
                last = _sliced_before(last, layout) if last is not None else None


def transpose_before_sums(module: Any) -> None:
    """Sum what is transposed if it is added to something then, in place.

    XLA's compilers write the transposed form of a product as another product, and sum once what is
    added up.
    """
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import sdy

    for op in operations_named(module, "stablehlo.transpose"):
        summed = _read_once(op.operands[0])
        readers = [use.owner.name for use in op.results[0].uses]
        if summed is None or summed.name != "sdy.all_reduce" or readers != ["stablehlo.add"]:
            continue
        goal = sharding_of(op.results[0]) or whole_like(sharding_of(op.operands[0]))
        op.operands[0] = summed.operands[0]
        with ir.InsertionPoint.after(op), summed.location:
            made = sdy.AllReduceOp(op.results[0], summed.attributes["reduction_axes"], goal)
        op.results[0].replace_all_uses_except(made.result, made.operation)
        summed.erase()


def _read_once(value: Any) -> Any | None:
    """What makes a value that a single operation reads."""
    return defining_operation(value) if len(list(value.uses)) == 1 else None


def _sliced_before(op: Any, layout: Any) -> Any | None:
    """Move a slice in front of what it reads; the slice there, or None: it cuts what is reshaped."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import sdy

    value, lists = layout.operands[0], _lists(op.attributes["slicing_axes"])
    places = _places(layout)
    cut = [lists[n] if n is not None else "{}" for n in places]
    if sorted(cut) != sorted(text for n, text in enumerate(lists) if n in places or text != "{}"):
        return None
    goal = sdy.TensorShardingAttr(op.attributes["out_sharding"])
    before = sharding_of(value) or sdy.TensorShardingAttr.get(
        goal.mesh_or_ref, [sdy.DimensionShardingAttr.get([], is_closed=True) for _ in cut]
    )
    dims = [_with(d, text) for d, text in zip(before.dimension_shardings, cut, strict=True)]
    axes = ir.Attribute.parse(f"#sdy<list_of_axis_ref_lists[{', '.join(cut)}]>")
    with ir.InsertionPoint(layout), op.location:
        part = sdy.AllSliceOp(value, axes, sdy.TensorShardingAttr.get(before.mesh_or_ref, dims))
    layout.operands[0] = part.result
    layout.attributes[_SHARDING] = sdy.TensorShardingPerValueAttr.get([goal])
    op.results[0].replace_all_uses_with(layout.results[0])
    op.erase()
    return part.operation


def _places(layout: Any) -> list[int | None]:
    """The dimension of the result that each one of the operand is; None: it is reshaped."""
    from jaxlib.mlir import ir

    before, after = (
        ir.RankedTensorType(v.type).shape for v in (layout.operands[0], layout.results[0])
    )
    if layout.name == "stablehlo.transpose":
        order = list(layout.attributes["permutation"])
        return [order.index(n) for n in range(len(before))]
    ends = {(math.prod(after[:n]), size): n for n, size in enumerate(after)}
    return [ends.get((math.prod(before[:n]), size)) for n, size in enumerate(before)]


def _in_mesh(lists: list[str], names: list[str]) -> list[str]:
    """Axes in the order of the mesh."""
    axes = (axis for text in lists for axis in text.split(", "))
    return sorted(
        axes, key=lambda a: (names.index(a.split('"')[1]), int(_PRE.findall(a + "(0)")[0]))
    )


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
