"""Operations that XLA's partitioner does on whole operands, and what leaves a branch.

- A Fourier transform: on all of the operand, its batch included. By Shardy's rule only the
  dimensions that it works along must be whole.
- A slice at a place known at run time: where its result is, of dimensions that are whole where it
  cuts them. An update of one: where its result is, or of dimensions that are whole.
- A concatenation: along a dimension that is whole, but for a rotation.
- A result of a branch leaves it as the conditional has it, which Shardy does not see to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flint.passes.extract.windows import rotation_of
from flint.passes.mlir import shape_of
from flint.passes.partition.as_xla.layouts import Layout, axes_of
from flint.passes.partition.as_xla.lines import line_of
from flint.passes.partition.as_xla.placed import (
    axis_sizes,
    is_annotated_here,
    layout_of,
    make_at,
    partitioned_operations,
    reshard,
    sharding_at,
    sharding_of,
)


def gather_operands(module: Any) -> None:
    """Put reshards around these operations, in place."""
    found = partitioned_operations(module, _CHANGES)
    sizes = axis_sizes(module) if found else {}
    for op in found if sizes else ():
        _CHANGES[op.name](op, sizes)


def _leave_branches(op: Any, sizes: dict[str, int]) -> None:
    """Reshard what the branches of a conditional return."""
    results = [_layout(r, sizes) for r in op.results]
    meshes = [s.mesh_or_ref for s in map(sharding_of, op.results) if s is not None]
    for region in op.regions:
        end = list(region.blocks[0])[-1].operation
        for number, value in enumerate(end.operands):
            if not is_annotated_here(value):
                continue
            given, wanted = sharding_of(value), results[number]
            if given is None or wanted is None or layout_of(given, len(wanted), sizes) == wanted:
                continue
            mesh = meshes[0] if meshes else given.mesh_or_ref
            end.operands[number] = reshard(value, sharding_at(wanted, mesh, sizes), end)


def _whole(op: Any, sizes: dict[str, int]) -> None:
    """On all of the operand."""
    layout = _layout(op.operands[0], sizes)
    if layout is not None:
        _work_on(op, tuple(() for _ in layout), sizes)


def _uncut(op: Any, sizes: dict[str, int]) -> None:
    """A slice is taken where the result is, of dimensions that are whole where they are cut."""
    wanted = _layout(op.results[0], sizes)
    both = zip(shape_of(op.operands[0]), shape_of(op.results[0]), strict=True)
    cut = [d for d, (before, after) in enumerate(both) if before != after]
    if wanted is not None and any(wanted[d] for d in cut):
        _whole(op, sizes)  # parts of what is cut are not known to be divided
    else:
        _bring(op, 0, sizes)


def _follow(op: Any, sizes: dict[str, int]) -> None:
    """What shifts or slides is done where the result is."""
    rank = len(shape_of(op.results[0]))
    for number, value in enumerate(op.operands):
        if len(shape_of(value)) == rank > 0:
            _bring(op, number, sizes, is_cut=False)


def _squeeze(op: Any, sizes: dict[str, int]) -> None:
    """A dimension of one element that one device has goes away: the others get it first."""
    value = op.operands[0]
    given, wanted = _layout(value, sizes), _layout(op.results[0], sizes)
    if given is None or wanted is None:
        return
    stay = set(axes_of(wanted))
    pairs = zip(given, shape_of(value), strict=True)
    whole = tuple(() if size == 1 and not set(axes) <= stay else axes for axes, size in pairs)
    if whole != given:
        mesh = sharding_of(value).mesh_or_ref
        op.operands[0] = reshard(value, sharding_at(whole, mesh, sizes), op)


def _updated(op: Any, sizes: dict[str, int]) -> None:
    """An update is made where the result is; it is whole along what it is a part of.

    Of several elements at a place known at run time, all of the dimension is gathered, written and
    cut again; one element is written by whoever has its place.
    """
    base, wanted = _layout(op.operands[0], sizes), _layout(op.results[0], sizes)
    both = list(zip(shape_of(op.operands[1]), shape_of(op.results[0]), strict=True))
    cut = [d for d, (size, all_of_it) in enumerate(both) if size != all_of_it]
    known = [d for d in cut if both[d][0] == 1 or line_of(op.operands[d + 2]) is not None]
    if base is not None and wanted is not None and any(wanted[d] for d in cut if d not in known):
        sharding = next(
            s for s in map(sharding_of, (op.results[0], op.operands[0])) if s is not None
        )
        stay = tuple(axes if wanted[d] and d not in cut else () for d, axes in enumerate(base))
        made = sharding_at(stay, sharding.mesh_or_ref, sizes)
        for number in (0, 1):
            op.operands[number] = reshard(op.operands[number], made, op)
        make_at(op, made)
        return
    for number in (0, 1):
        _bring(op, number, sizes)


def _joined(op: Any, sizes: dict[str, int]) -> None:
    """Parts are joined along a dimension that is whole, but for a rotation of one value.

    Shardy lets shardings through where all parts are slices, of whatever.
    """
    from jaxlib.mlir.dialects import sdy

    rule = sdy.OpShardingRuleAttr(op.attributes[_RULE]) if _RULE in op.attributes else None
    if rule is None or not rule.permutation_factors or rotation_of(op) is not None:
        return
    op.attributes[_RULE] = sdy.OpShardingRuleAttr.get(
        rule.factor_sizes,
        rule.operand_mappings,
        rule.result_mappings,
        rule.reduction_factors,
        sorted({*rule.need_replication_factors, *rule.permutation_factors}),
        [],
        rule.blocked_propagation_factors,
        rule.is_custom,
    )


def _bring(op: Any, number: int, sizes: dict[str, int], *, is_cut: bool = True) -> None:
    """Move an operand to where the result is; what it `is_cut` along is whole."""
    value, result = op.operands[number], op.results[0]
    given, wanted = _layout(value, sizes), _layout(result, sizes)
    if given is None or wanted is None:
        return
    if is_cut:
        both = zip(wanted, shape_of(value), shape_of(result), strict=True)
        wanted = tuple(() if before != after else axes for axes, before, after in both)
    mesh = next((s for s in map(sharding_of, (value, result)) if s is not None), None)
    if given != wanted and mesh is not None:
        op.operands[number] = reshard(value, sharding_at(wanted, mesh.mesh_or_ref, sizes), op)


def _work_on(op: Any, wanted: Layout, sizes: dict[str, int]) -> None:
    """Move the first operand, and results from where they are made then."""
    given = sharding_of(op.operands[0])
    if given is None or layout_of(given, len(wanted), sizes) == wanted:
        return
    made = sharding_at(wanted, given.mesh_or_ref, sizes)
    op.operands[0] = reshard(op.operands[0], made, op)
    make_at(op, made)


def _layout(value: Any, sizes: dict[str, int]) -> Layout | None:
    """Axes of a value's dimensions; None where it has none or they are not known here."""
    from jaxlib.mlir import ir

    if not isinstance(value.type, ir.RankedTensorType) or not is_annotated_here(value):
        return None
    return layout_of(sharding_of(value), len(shape_of(value)), sizes)


_RULE = "sdy.sharding_rule"
_CHANGES: dict[str, Callable[[Any, dict[str, int]], None]] = {
    "stablehlo.case": _leave_branches,
    "stablehlo.if": _leave_branches,
    "stablehlo.fft": _whole,
    "stablehlo.dynamic_slice": _uncut,
    "stablehlo.dynamic_update_slice": _updated,
    "stablehlo.concatenate": _joined,
    "stablehlo.reshape": _squeeze,
    **dict.fromkeys(
        (f"stablehlo.{name}" for name in ("slice", "pad", "reverse", "reduce_window")), _follow
    ),
}
