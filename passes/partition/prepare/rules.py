"""Sharding rules for operations that Shardy has none for.

A rule says which dimensions of operands and results are the same factor, in Shardy's own notation
(`#sdy.op_sharding_rule<([i, j])->([i, j]) {i=8, j=16}>`). Without a rule an operation blocks
propagation and no reshard is placed around it.

Other packages add rules for their custom calls with an entry point in the group
`flint.sharding_rules`: its name is the key (`custom_call:my_kernel`), its object a `RuleMaker`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from flint.errors import FlintError
from flint.passes.mlir import key_of, shape_of
from flint.passes.partition.prepare.attention import attention_rule
from flint.passes.work.formulas import SCALED_DOT
from flint.passes.work.host_copies import CALLBACK_TARGET, MOVES, ON_SHARDS, PLACEMENTS
from flint.plugins import SHARDING_RULES, load, registered

Shape = tuple[int, ...]
#: The attribute that holds the sharding rule of an operation.
RULE = "sdy.sharding_rule"
_CALL = "stablehlo.custom_call"


@dataclass(frozen=True)
class FactorRule:
    """Factors of one operation: a size each, and which factor every dimension is."""

    sizes: tuple[int, ...]
    operands: tuple[tuple[int, ...], ...]
    results: tuple[tuple[int, ...], ...]
    need_replication: tuple[int, ...] = ()
    reduction: tuple[int, ...] = ()
    permutation: tuple[int, ...] = ()
    blocked: tuple[int, ...] = ()  #: factors along which no sharding propagates


#: A rule maker sees operand shapes, result shapes and the operation, and may answer None.
RuleMaker = Callable[[list[Shape], list[Shape], Any], FactorRule | None]


def pointwise(operands: list[Shape], results: list[Shape], op: Any) -> FactorRule | None:
    """All operands and results of one shape: dimension d is factor d everywhere."""
    shape = results[0]
    if any(s != shape for s in [*operands, *results]):
        return None
    factors = tuple(range(len(shape)))
    return FactorRule(shape, (factors,) * len(operands), (factors,) * len(results))


def batched(last: int) -> RuleMaker:
    """Leading dimensions are batch; the last `last` dimensions of each value stay whole."""

    def make(operands: list[Shape], results: list[Shape], op: Any) -> FactorRule | None:
        batch = results[0][: len(results[0]) - last]
        if any(s[: len(batch)] != batch for s in [*operands, *results]):
            return None
        sizes = list(batch)

        def mapping(shape: Shape) -> tuple[int, ...]:
            found = list(range(len(batch)))
            for size in shape[len(batch) :]:
                found.append(len(sizes))
                sizes.append(size)
            return tuple(found)

        ins = tuple(mapping(s) for s in operands)
        outs = tuple(mapping(s) for s in results)
        whole = tuple(range(len(batch), len(sizes)))
        return FactorRule(tuple(sizes), ins, outs, whole)

    return make


def top_k(operands: list[Shape], results: list[Shape], op: Any) -> FactorRule | None:
    """The searched dimension stays whole; nothing propagates."""
    found = batched(1)(operands, results, op)
    return None if found is None else replace(found, blocked=tuple(range(len(found.sizes))))


def matrices(operands: list[Shape], results: list[Shape], op: Any) -> FactorRule | None:
    """The last two dimensions of the first operand, and all that follow a batch, stay whole."""
    depth = len(operands[0]) - 2
    batch = operands[0][:depth]
    if depth < 0 or any(s[:depth] != batch for s in [*operands, *results]):
        return None
    return _whole_after(depth, operands, results)


def opaque(operands: list[Shape], results: list[Shape], op: Any) -> FactorRule | None:
    """Nothing is known: the operation sees all of its operands and makes all of its results."""
    return _whole_after(0, operands, results)


def _whole_after(depth: int, operands: list[Shape], results: list[Shape]) -> FactorRule:
    """`depth` leading dimensions are batch, every other one is a factor that stays whole."""
    sizes = list(operands[0][:depth]) if operands else []

    def mapping(shape: Shape) -> tuple[int, ...]:
        found = list(range(depth))
        for size in shape[depth:]:
            found.append(len(sizes))
            sizes.append(size)
        return tuple(found)

    ins, outs = tuple(map(mapping, operands)), tuple(map(mapping, results))
    return FactorRule(tuple(sizes), ins, outs, need_replication=tuple(range(depth, len(sizes))))


def approx_top_k(operands: list[Shape], results: list[Shape], op: Any) -> FactorRule | None:
    """The searched dimension stays whole, in operands and results.

    Shardy's own rule lets operands be sharded there and says nothing of putting shards together.
    """
    inputs = operands[: len(results)]
    found, made = inputs[0], results[0]
    config = op.attributes.get("mhlo.backend_config", None)
    if config is None or "reduction_dim" not in config:
        return opaque(operands, results, op)
    searched = int(config["reduction_dim"].value)
    rank = len(found)
    before = tuple(range(rank))
    after = tuple(rank if d == searched else d for d in range(rank))
    scalars = tuple(() for _ in operands[len(results) :])
    if any(operands[len(results) :]):
        return opaque(operands, results, op)
    return FactorRule(
        (*found, made[searched]),
        (*(before for _ in inputs), *scalars),
        tuple(after for _ in results),
        need_replication=(searched, rank),
    )


def select_and_scatter(operands: list[Shape], results: list[Shape], op: Any) -> FactorRule | None:
    """A window's source is beside what it covers; neighbours exchange what windows share."""
    operand, source, initial = operands
    factors = tuple(range(len(operand)))
    slid = tuple(d for d in factors if source[d] != operand[d])
    mappings = (factors, factors, tuple(range(len(initial))))
    return FactorRule(operand, mappings, (factors,), permutation=slid)


def ragged_dot(operands: list[Shape], results: list[Shape], op: Any) -> FactorRule | None:
    """Like `dot_general` for each group; how rows divide into groups every device must know.

    Rows may be sharded: a device finds its part of each group from the group sizes, which are
    whole everywhere.
    """
    from jaxlib.mlir.dialects import chlo

    numbers = chlo.RaggedDotDimensionNumbers(op.attributes["ragged_dot_dimension_numbers"])
    left, right = operands[0], operands[1]
    batch = dict(zip(numbers.lhs_batching_dimensions, numbers.rhs_batching_dimensions, strict=True))
    contract = dict(
        zip(numbers.lhs_contracting_dimensions, numbers.rhs_contracting_dimensions, strict=True)
    )
    lhs = tuple(range(len(left)))
    sizes = list(left)
    same = {r: d for d, r in {**batch, **contract}.items()}
    groups = set(numbers.rhs_group_dimensions)
    rhs = []
    for r, size in enumerate(right):
        rhs.append(same[r] if r in same else len(sizes))
        if r not in same:
            sizes.append(size)
    group = next((rhs[r] for r in groups), len(sizes))
    if group == len(sizes):
        sizes.append(operands[2][-1])
    free = [d for d in lhs if d not in batch and d not in contract]
    made = [*batch, *free, *(f for f in rhs if f not in lhs and f != group)]
    if len(made) < len(results[0]):
        made.insert(0, group)  # the contracted dimension is ragged: one product for each group
    sizes_factors = _group_sizes(operands[2], group, sizes)
    whole = tuple({group, *sizes_factors})
    return FactorRule(
        tuple(sizes), (lhs, tuple(rhs), sizes_factors), (tuple(made),), whole, tuple(contract)
    )


def _group_sizes(shape: Shape, group: int, sizes: list[int]) -> tuple[int, ...]:
    """Factors of the operand that holds group sizes; its leading dimensions, if any, stay whole."""
    leading = tuple(range(len(sizes), len(sizes) + len(shape) - 1))
    sizes.extend(shape[:-1])
    return (*leading, group)


#: Factorisations of TPUs: of each matrix of a batch alone.
FACTORED = ("LuDecomposition", "Qr")
#: Element-wise operations of CHLO, which JAX writes for functions that StableHLO lacks.
_CHLO = [
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "bessel_i1e",
    "broadcast_add",
    "broadcast_and",
    "broadcast_atan2",
    "broadcast_compare",
    "broadcast_complex",
    "broadcast_divide",
    "broadcast_maximum",
    "broadcast_minimum",
    "broadcast_multiply",
    "broadcast_next_after",
    "broadcast_or",
    "broadcast_polygamma",
    "broadcast_power",
    "broadcast_remainder",
    "broadcast_select",
    "broadcast_shift_left",
    "broadcast_shift_right_arithmetic",
    "broadcast_shift_right_logical",
    "broadcast_subtract",
    "broadcast_xor",
    "broadcast_zeta",
    "conj",
    "cosh",
    "digamma",
    "erf",
    "erf_inv",
    "erfc",
    "is_inf",
    "is_neg_inf",
    "is_pos_inf",
    "lgamma",
    "mulhi",
    "next_after",
    "polygamma",
    "sinh",
    "square",
    "tan",
    "zeta",
]
#: Operation name to rule maker. For custom calls the key is `custom_call:TARGET`.
RULES: dict[str, RuleMaker] = {
    **dict.fromkeys((f"chlo.{name}" for name in _CHLO), pointwise),
    **dict.fromkeys((f"custom_call:mhlo.{name}" for name in _CHLO), pointwise),
    **dict.fromkeys(
        ("custom_call:LayoutConstraint",),
        pointwise,
    ),
    "chlo._asin_acos_kernel": pointwise,
    **dict.fromkeys((f"custom_call:{name}" for name in (*PLACEMENTS, *MOVES.values())), pointwise),
    "chlo.ragged_dot": ragged_dot,
    **dict.fromkeys(("chlo.top_k", "custom_call:mhlo.topk"), top_k),
    "custom_call:ApproxTopK": approx_top_k,
    "custom_call:Eigh": matrices,
    **dict.fromkeys((f"custom_call:{name}" for name in FACTORED), matrices),
    "stablehlo.select_and_scatter": select_and_scatter,
}
#: Custom calls that Shardy has rules for, that communicate, or that only annotate.
KNOWN_CALLS = frozenset(
    f"custom_call:{name}"
    for name in (
        "CompactWyHelper",
        CALLBACK_TARGET + ON_SHARDS,
        "CustomSPMDPartitioning",
        "PartialReduce",
        "ProductOfElementaryHouseholderReflectors",
        "SPMDFullToShardShape",
        "SPMDShardToFullShape",
        "Sharding",
        "X64Combine",
        "X64SplitHigh",
        "X64SplitLow",
        "ragged_all_to_all",
        "xla.megascale.provide_metadata",
    )
)


def rule_maker(op: Any) -> RuleMaker | None:
    """What makes the rule of an operation, or None if Shardy knows it (or nothing does).

    Raises FlintError FL880 and FL882 for a rule of it that other packages register wrongly.
    """
    key = key_of(op)
    others = registered(SHARDING_RULES)
    maker = load(SHARDING_RULES, key) if key in others else RULES.get(key)
    if maker is None and key.startswith("custom_call:") and key not in KNOWN_CALLS:
        return opaque
    return maker


def attach_rules(module: Any, bytecode: bytes | None = None) -> None:
    """Give every operation without a rule that `rule_maker` knows a custom sharding rule.

    `bytecode` is what the module was read from: it tells whether any were there before. Raises FlintError
    FL880 and FL882 for a rule that another package registers wrongly.
    """
    from jaxlib.mlir import ir

    given = bytecode is None or RULE.encode() in bytecode
    known = {key.split(":")[0] for key in (*RULES, *registered(SHARDING_RULES))} - {"custom_call"}
    errors: list[FlintError] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if not (given or op.name in known or op.name == _CALL) or RULE in op.attributes:
            return ir.WalkResult.ADVANCE
        # Shardy takes no rule of an operation that reads nothing or makes nothing
        try:
            rule = rule_of(op) if len(op.operands) and len(op.results) else None
        except FlintError as error:  # none may leave a walk
            errors.append(error)
            return ir.WalkResult.INTERRUPT
        if rule is not None:
            op.attributes[RULE] = rule
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    if errors:
        raise errors[0]


def rule_of(op: Any) -> Any | None:
    """The rule that an operation is to have."""
    rule = attention_rule(op) or _scaled_dot_rule(op) if op.name == _CALL else None
    if rule is not None:
        return rule
    maker = rule_maker(op)
    made = maker(_shapes(op.operands), _shapes(op.results), op) if maker is not None else None
    return _attribute(made, is_custom=True) if made is not None else None


def factors_of(attribute: Any) -> list[list[int]]:
    """Factor numbers of every dimension of one tensor."""
    from jaxlib.mlir.dialects import sdy

    dimensions = sdy.TensorMappingAttr(attribute).dim_mappings
    return [list(sdy.DimMappingAttr(d).factor_indices) for d in dimensions]


def _shapes(values: Any) -> list[Shape]:
    return [shape_of(v) for v in values]


def _attribute(rule: FactorRule, *, is_custom: bool) -> Any:
    from jaxlib.mlir.dialects import sdy

    def tensors(mappings: tuple[tuple[int, ...], ...]) -> list[Any]:
        return [
            sdy.TensorMappingAttr.get([sdy.DimMappingAttr.get([f]) for f in m]) for m in mappings
        ]

    return sdy.OpShardingRuleAttr.get(
        list(rule.sizes),
        tensors(rule.operands),
        tensors(rule.results),
        reduction_factors=sorted(rule.reduction),
        need_replication_factors=sorted(rule.need_replication),
        permutation_factors=sorted(rule.permutation),
        blocked_propagation_factors=sorted(rule.blocked),
        is_custom=is_custom,
    )


def _scaled_dot_rule(call: Any) -> Any | None:
    """The Shardy rule of cuDNN's block-scaled product (`jax.nn.scaled_matmul`), None for other calls.

    Operands are (batch, m, k) and (batch, n, k), each with scales for blocks of k. Whole blocks may
    be on different devices: their products are then summed.
    """
    if call.attributes["call_target_name"].value != SCALED_DOT:
        return None
    from jaxlib.mlir.dialects import sdy

    lhs, rhs, scales = (shape_of(v) for v in list(call.operands)[:3])
    (batch, m, k), n, blocks = lhs, rhs[1], scales[2]
    sizes, inside = [batch, m, n, blocks], k // max(blocks, 1)
    whole: list[int] = []
    contracted = [3]
    if inside > 1:  # Shardy takes no second factor of size 1
        sizes.append(inside)
        whole, contracted = [4], [3, 4] if blocks > 1 else [4]
    left, right = [[0], [1], contracted], [[0], [2], contracted]
    operands = [left, right, [[0], [1], [3]], [[0], [2], [3]]]

    def tensors(mappings: list[list[list[int]]]) -> list[Any]:
        return [sdy.TensorMappingAttr.get([sdy.DimMappingAttr.get(d) for d in m]) for m in mappings]

    return sdy.OpShardingRuleAttr.get(
        sizes,
        tensors(operands[: len(call.operands)]),
        tensors([[[0], [1], [2]]]),
        reduction_factors=[3],
        need_replication_factors=whole,
        is_custom=True,
    )
