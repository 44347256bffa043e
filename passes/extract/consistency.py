"""Does an operation's sharding rule hold for the shardings around it?

After explicit reshards every factor of an operation must be split over the same axes in every
operand and result that has it, what must stay whole must be whole, and what is summed over sharded
elements must be reduced afterwards. Where one of these fails a communication is missing, and the
row says so.
"""

from __future__ import annotations

from typing import Any

from flint.ir.mesh import AxisRef, Mesh
from flint.passes.extract.tensors import Operation, Tensor, axis_refs, show

Axes = tuple[AxisRef, ...]
#: The attribute that holds the sharding rule of an operation.
RULE = "sdy.sharding_rule"
#: Collectives of the Shardy dialect that finish a reduction, and where they name their axes.
REDUCERS = {"sdy.all_reduce": "reduction_axes", "sdy.reduce_scatter": "reduce_scatter_axes"}


def examine(o: Operation, attribute: Any, mesh: Mesh) -> tuple[str, Axes]:
    """What is wrong between the tensors of `o`, "" if nothing is, and the axes that it sums over.

    That is the first factor of the rule `attribute` whose axes disagree. Permutation factors are
    omitted: implied communication covers them. So are dimensions whose axes do not divide into
    their factors. Without a rule, or where nothing is sharded, nothing is wrong.
    """
    tensors = (*o.operands, *o.results)
    if attribute is None or not any(any(t.sharding) for t in tensors):
        return "", ()
    from jaxlib.mlir.dialects import sdy

    rule = sdy.OpShardingRuleAttr(attribute)
    return _disagreement(tensors, rule, mesh), _summed_axes(o, rule, mesh)


def doubt_about(o: Operation, attribute: Any, found: tuple[str, Axes], mesh: Mesh) -> str:
    """A sentence about what `examine` found, or a sum that is never reduced; "" if all is well."""
    wrong = found[0] or _missing_reduction(o, found[1], mesh)
    if not wrong:
        return ""
    kinds = " ".join(show(t.sharding) for t in (*o.operands, *o.results))
    return f"{wrong}: {kinds} under {attribute}"


def _disagreement(tensors: tuple[Tensor, ...], rule: Any, mesh: Mesh) -> str:
    sizes = list(rule.factor_sizes)
    moving, whole = set(rule.permutation_factors), set(rule.need_replication_factors)
    seen: dict[int, Axes] = {}
    for tensor, mapping in zip(
        tensors, (*rule.operand_mappings, *rule.result_mappings), strict=True
    ):
        for factor, axes in _axes_of_factors(tensor, mapping, sizes, mesh):
            if factor in moving or sizes[factor] == 1:
                continue
            if factor in whole and axes:
                return f"factor {_letter(factor)} must be whole and is split"
            if seen.setdefault(factor, axes) != axes:
                return f"factor {_letter(factor)} is split differently"
    return ""


def _summed_axes(o: Operation, rule: Any, mesh: Mesh) -> Axes:
    """Axes that split a dimension which the operation sums over."""
    sizes = list(rule.factor_sizes)
    summed = {f for f in rule.reduction_factors if sizes[f] > 1}
    axes: set[AxisRef] = set()
    for tensor, mapping in zip(o.operands, rule.operand_mappings, strict=True):
        for factor, over in _axes_of_factors(tensor, mapping, sizes, mesh):
            if factor in summed:
                axes.update(over)
    return mesh.canonical(axes)


def _missing_reduction(o: Operation, summed: Axes, mesh: Mesh) -> str:
    if not summed:
        return ""
    for result in o.op.results:
        left = _uncovered(summed, _reduced_after(result), mesh)
        if left:
            return f"a sum over {', '.join(map(str, left))} is never reduced"
    return ""


def _reduced_after(value: Any) -> Axes:
    """Axes over which the collectives directly after a value reduce it."""
    found: list[AxisRef] = []
    while True:
        users = [use.owner.operation for use in value.uses]
        if not users:
            return tuple(found)
        user = users[0]
        if len(users) > 1 or user.name not in REDUCERS:
            return tuple(found)
        found += axis_refs(user.attributes[REDUCERS[user.name]])
        value = user.results[0]


def _uncovered(wanted: Axes, reduced: Axes, mesh: Mesh) -> Axes:
    """Axes of `wanted` that `reduced` does not contain, as whole axes or parts of them."""
    covered = [_span(a, mesh) for a in mesh.canonical(a for a in reduced if a.name in mesh.names)]
    return tuple(
        axis
        for axis in wanted
        if not any(
            name == axis.name and low <= _span(axis, mesh)[1] and _span(axis, mesh)[2] <= high
            for name, low, high in covered
        )
    )


def _span(axis: AxisRef, mesh: Mesh) -> tuple[str, int, int]:
    """Name and range of strides, in devices from the major end, that a sub-axis takes up."""
    return axis.name, axis.pre_size, axis.pre_size * mesh.axis_size(axis)


def _axes_of_factors(
    tensor: Tensor, mapping: Any, sizes: list[int], mesh: Mesh
) -> list[tuple[int, Axes]]:
    """Each factor of a tensor's dimensions with the axes that split it."""
    from jaxlib.mlir.dialects import sdy

    found: list[tuple[int, Axes]] = []
    dims = sdy.TensorMappingAttr(mapping).dim_mappings
    for axes, size, dim in zip(tensor.sharding, tensor.global_shape, dims, strict=False):
        factors = list(sdy.DimMappingAttr(dim).factor_indices)
        if size == 1 or not factors:
            continue
        parts = _divide(axes, [sizes[f] for f in factors], mesh)
        if parts is not None:
            found += zip(factors, parts, strict=True)
    return found


def _divide(axes: Axes, sizes: list[int], mesh: Mesh) -> list[Axes] | None:
    """Give each factor, major to minor, the axes that fill it; the last one takes the rest.

    An axis larger than what is left of a factor is split into sub-axes. None if it does not
    divide.
    """
    waiting = list(axes)
    parts: list[Axes] = []
    for size in sizes[:-1]:
        taken: list[AxisRef] = []
        while waiting and size > 1:
            axis = waiting.pop(0)
            count = mesh.axis_size(axis)
            if size % count == 0:
                taken.append(axis)
                size //= count
            elif count % size == 0:
                taken.append(AxisRef(axis.name, axis.pre_size, size))
                waiting.insert(0, AxisRef(axis.name, axis.pre_size * size, count // size))
                size = 1
            else:
                return None
        parts.append(_joined(taken, mesh))
    return [*parts, _joined(waiting, mesh)]


def _joined(axes: list[AxisRef], mesh: Mesh) -> Axes:
    """Adjacent parts of one axis as one, parts of size 1 dropped, order kept."""
    found: list[AxisRef] = []
    for axis in axes:
        size = mesh.axis_size(axis)
        last = found[-1] if found else None
        if size == 1:
            continue
        if last and last.name == axis.name and last.pre_size * (last.size or 0) == axis.pre_size:
            found[-1] = AxisRef(axis.name, last.pre_size, (last.size or 0) * size)
        else:
            found.append(AxisRef(axis.name, axis.pre_size, size))
    return tuple(found)


def _letter(factor: int) -> str:
    """Shardy's name of a factor: i, j, ..., z, then z_1 and so on."""
    return chr(ord("i") + factor) if factor < 18 else f"z_{factor - 17}"
