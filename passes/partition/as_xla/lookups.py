"""Lookups and their gradients split as XLA's partitioner splits them, before Shardy has to choose.

A table sharded over its hidden dimension (FSDP) and tokens sharded over the batch want one mesh
axis for two things. Shardy's explicit reshards keep whichever tensor is largest where it is; XLA
decides by the memory that each way needs (`lookup_plan`).
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from flint.passes.mlir import defining_operation, element_bits
from flint.passes.partition.as_xla.batches import Dimensions, batched_rules
from flint.passes.partition.as_xla.layouts import Layout, axes_of, joined, split
from flint.passes.partition.as_xla.lookup_plan import (
    Lookup,
    LookupPlan,
    LookupState,
    LookupTensor,
    in_step,
    plan,
)
from flint.passes.partition.as_xla.placed import (
    axis_sizes,
    factors_of,
    is_annotated_here,
    layout_of,
    partitioned_operations,
    sharding_at,
    sharding_of,
    used_axes,
)
from flint.passes.partition.as_xla.reshard_plan import way
from flint.passes.partition.as_xla.reshards import kept, step

#: A value, a layout and a block to the value in that layout, made in that block.
Moved = dict[tuple[Any, Layout, Any], Any]
_RULE = "sdy.sharding_rule"
_CONSTANTS = ("stablehlo.constant", "sdy.constant")
_NAMES = ("stablehlo.gather", "stablehlo.scatter")


def split_lookups(module: Any) -> None:
    """Put reshards around every gather and scatter that XLA would not leave as it is."""
    sizes, used = axis_sizes(module), used_axes(module)
    plans: dict[tuple[Any, ...], tuple[LookupPlan | None, bool]] = {}
    moved: Moved = {}
    for op in _lookups(module):
        tensors = [*op.operands, op.results[0]]
        if not all(map(is_annotated_here, tensors)):
            continue
        shardings = [sharding_of(v) for v in tensors]
        if all(s is None for s in shardings):
            continue
        batched, alone = batched_rules(op)
        key = (op.name, batched, *(v.type for v in tensors), *shardings)
        if key not in plans:
            plans[key] = _planned(op, batched, shardings, sizes, used)
        made, in_step = plans[key]
        op.attributes[_RULE] = batched if in_step else alone
        if made is not None:
            _apply(op, made, next(s for s in shardings if s is not None).mesh_or_ref, sizes, moved)


def _lookups(module: Any) -> list[Any]:
    """Gathers and scatters of one table, with a rule."""
    found = partitioned_operations(module, _NAMES)
    return [op for op in found if len(op.results) == 1 and _RULE in op.attributes]


def _planned(
    op: Any, rule: Any, shardings: list[Any], sizes: dict[str, int], used: frozenset[str]
) -> tuple[LookupPlan | None, bool]:
    """What XLA does of an operation (None: what Shardy would), and whether batches are in step."""
    asked = _asked(op, rule, shardings, sizes, used)
    made = plan(*asked) if asked is not None else None
    if asked is None or made is None:
        return None, asked is None
    chains = [
        tuple(tuple(map(joined, at)) for at in chain)
        for chain in (made.table, made.indices, made.moved, made.result)
    ]
    made = LookupPlan(*chains)
    return made if any(len(chain) > 1 for chain in chains) else None, in_step(asked[0], made)


def _asked(
    op: Any, rule: Any, shardings: list[Any], sizes: dict[str, int], used: frozenset[str]
) -> tuple[Lookup, LookupState] | None:
    """An operation and the layouts that it has; None where they are not of a known kind."""
    lookup = _lookup_of(op, rule)
    if lookup is None or not sizes:
        return None
    tensors = [lookup.table, lookup.indices, lookup.moved]
    if lookup.is_scatter:
        tensors.append(lookup.table)
    layouts = [
        tuple(split(dim, ()) for dim in layout_of(s, len(t.sizes), sizes))
        for s, t in zip(shardings, tensors, strict=True)
    ]
    result = layouts[3] if lookup.is_scatter else layouts[2]
    free = split(((name, 1, size) for name, size in sizes.items() if name in used), ())
    if any(a not in free for layout in layouts for a in axes_of(layout)):
        return None
    return lookup, LookupState(layouts[0], layouts[1], layouts[2], result, free)


def _lookup_of(op: Any, attribute: Any) -> Lookup | None:
    """The operation as a rule has it; None where a factor is of a kind that is not known."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import sdy

    rule = sdy.OpShardingRuleAttr(attribute)
    mappings = [factors_of(m) for m in (*rule.operand_mappings, *rule.result_mappings)]
    types = [ir.RankedTensorType(v.type) for v in (*op.operands, op.results[0])]
    table, indices, moved = (
        LookupTensor(tuple(t.shape), tuple(m), element_bits(t.element_type) // 8)
        for t, m in zip(types[:2] + [types[2]], mappings, strict=False)
    )
    of_table, of_indices, of_moved = (set(t.factors) for t in (table, indices, moved))
    single = {f for f, size in enumerate(rule.factor_sizes) if size == 1}
    numbers = Dimensions.of(op)
    explicit = frozenset(table.factors[d] for d in numbers.explicit)
    batches = of_table & of_indices
    if of_moved - of_table - of_indices - single:
        return None
    looked_up = frozenset(table.factors[d] for d in numbers.index_map if numbers.window[d] == 1)
    return Lookup(
        table,
        indices,
        moved,
        passthrough=frozenset(
            f
            for d, f in enumerate(table.factors)
            if f in of_moved - batches and numbers.window[d] == table.sizes[d]
        ),
        trivial=looked_up - explicit,
        index=frozenset(of_indices & of_moved - batches),
        is_scatter=op.name == "stablehlo.scatter",
        is_sum=bool(list(rule.reduction_factors)),
        batches=tuple(b for b in (explicit, frozenset(batches) - explicit) if b),
    )


# changing the module ------------------------------------------------------------------------------


def _apply(op: Any, made: LookupPlan, mesh: Any, sizes: dict[str, int], moved: Moved) -> None:
    """Move the operands to where the plan has them, and the result to where it was."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import sdy

    for number, chain in enumerate((made.table, made.indices, made.moved)):
        with ir.InsertionPoint(op), op.location:
            if len(chain) > 1:
                value = _copy_of_constant(op.operands[number], op)
                op.operands[number] = (
                    _moved(op.operands[number], chain, mesh, sizes, moved)
                    if value is None
                    else _placed(value, chain[-1], mesh, sizes)
                )
    if len(made.result) == 1:
        return
    first = sharding_at(made.result[0], mesh, sizes)
    op.attributes["sdy.sharding"] = sdy.TensorShardingPerValueAttr.get([first])
    result = op.results[0]
    users = list(result.uses)
    with ir.InsertionPoint.after(op), op.location:
        end = _moved(result, made.result, mesh, sizes, moved)
    for use in users:
        use.owner.operands[use.operand_number] = end


def _copy_of_constant(value: Any, before: Any) -> Any:
    """A copy of a value that is the same everywhere, such as the zeros that gradients add to."""
    from jaxlib.mlir import ir

    maker = defining_operation(value)
    if maker is None or maker.name not in ("stablehlo.broadcast_in_dim", *_CONSTANTS):
        return None
    if maker.name not in _CONSTANTS:
        scalar = defining_operation(maker.operands[0])
        if scalar is None or scalar.name not in _CONSTANTS:
            return None
    return maker.clone(ip=ir.InsertionPoint(before)).results[0]


def _placed(value: Any, layout: Layout, mesh: Any, sizes: dict[str, int]) -> Any:
    """A value that its operation may as well make somewhere else."""
    from jaxlib.mlir.dialects import sdy

    sharding = sdy.TensorShardingPerValueAttr.get([sharding_at(layout, mesh, sizes)])
    value.owner.attributes["sdy.sharding"] = sharding
    return value


def _moved(
    value: Any, chain: tuple[Layout, ...], mesh: Any, sizes: dict[str, int], made: Moved
) -> Any:
    """A value through the layouts of a chain, each step a collective of its own if there are more.

    `made` has what earlier lookups of the same block moved already: nothing merges these later.
    """
    from jaxlib.mlir import ir

    axes = sorted({a[0] for at in chain for a in axes_of(at)}, key=list(sizes).index)
    for number, (before, after) in enumerate(pairwise(chain)):
        key = (value, after, ir.InsertionPoint.current.block)
        if key not in made:
            next_to = way(before, after, [(name, 1, sizes[name]) for name in axes])[0]
            if number and not _takes_back(chain[number - 1], before, next_to):
                value = kept(value)
            made[key] = step(value, before, after, mesh, sizes, is_own=len(chain) > 2)
        value = made[key]
    return value


def _takes_back(first: Layout, before: Layout, after: Layout) -> bool:
    """Whether a step from `before` cuts what the one from `first` gathered: compilers drop both."""
    both = zip(first, before, after, strict=True)
    return all(a[: len(b)] == b and set(a[len(b) :]) <= set(f) for f, b, a in both)
