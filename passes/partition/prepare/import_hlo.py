"""A whole-program HLO module, from before SPMD partitioning, to StableHLO with Shardy's attributes.

JAX writes Shardy's shardings into HLO as frontend attributes and custom calls; they become
attributes and operations of the Shardy dialect again here. Runs in the child of `xla_process`.
"""

from __future__ import annotations

import re
from typing import Any

from flint.errors import FlintError
from flint.passes.jax_private import hlo_to_stablehlo
from flint.passes.mlir import FRONTEND_ATTRIBUTES
from flint.passes.partition.prepare.gspmd import is_gspmd

_PIPELINE = "builtin.module(xla-sdy-round-trip-import-shardy-attrs)"
_TO_LOCAL, _TO_GLOBAL = "xla.sdy.GlobalToLocalShape", "xla.sdy.LocalToGlobalShape"


def import_hlo(proto: bytes, donated: list[int], *, keep_gspmd: bool = False) -> bytes:
    """A serialised HloModuleProto to bytecode as `Captured` wants it.

    `donated` are the numbers of the donated parameters. With `keep_gspmd` the module's shardings are
    GSPMD's (`Captured.is_gspmd`), and stay. Raises FlintError FL303 if XLA cannot
    convert the module, FL305 if it annotates shardings in a way that Shardy does not read.
    """
    from jaxlib.mlir import ir, passmanager

    from flint.passes.mlir import make_context, write_bytecode

    with make_context():
        try:
            module = ir.Module.parse(hlo_to_stablehlo(proto))
            if keep_gspmd:
                return _with_gspmd(module, donated)
            passmanager.PassManager.parse(_PIPELINE).run(module.operation)
        except (ir.MLIRError, RuntimeError, ValueError) as error:
            raise FlintError("FL303", str(error).strip().splitlines()[0][:400]) from error
        functions = {f.operation.attributes["sym_name"].value: f for f in module.body if _named(f)}
        for function in functions.values():
            for block in function.operation.regions[0]:
                _import_block(block, functions)
        _mark_donated(functions["main"], donated)
        _require_shardy(module)
        return write_bytecode(module)


def _with_gspmd(module: Any, donated: list[int]) -> bytes:
    from flint.passes.mlir import write_bytecode

    main = next(f for f in module.body if _named(f) and f.sym_name.value == "main")
    _mark_donated(main, donated)
    written = write_bytecode(module)
    if not is_gspmd(module, written):
        _require_shardy(module)
    return written


def _named(op: Any) -> bool:
    return bool(op.operation.name == "func.func")


def _import_block(block: Any, functions: dict[str, Any]) -> None:
    for op in list(block):
        for region in op.operation.regions:
            for inner in region:
                _import_block(inner, functions)
        if op.operation.name == "stablehlo.dot":
            _import_dot(op.operation)
        elif op.operation.name == "stablehlo.custom_call":
            target = op.operation.attributes["call_target_name"].value
            if target == "Sharding" and "sdy.sharding" in op.operation.attributes:
                _import_constraint(op.operation)
            elif target == _TO_LOCAL:
                _import_manual(op.operation, functions)


def _import_dot(op: Any) -> None:
    """`stablehlo.dot`, which JAX never writes, to the `dot_general` that everything else reads."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    lhs, rhs = op.operands
    numbers = stablehlo.DotDimensionNumbers.get(
        lhs_batching_dimensions=[],
        rhs_batching_dimensions=[],
        lhs_contracting_dimensions=[ir.RankedTensorType(lhs.type).rank - 1],
        rhs_contracting_dimensions=[0],
    )
    with op.location, ir.InsertionPoint(op):
        general = stablehlo.DotGeneralOp(op.results[0].type, lhs, rhs, numbers)
    op.results[0].replace_all_uses_with(general.result)
    op.erase()


def _import_constraint(op: Any) -> None:
    """`custom_call @Sharding` to `sdy.sharding_constraint`."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import sdy

    shardings = sdy.TensorShardingPerValueAttr(op.attributes["sdy.sharding"]).shardings
    with op.location, ir.InsertionPoint(op):
        constrained = sdy.ShardingConstraintOp(op.operands[0], shardings[0])
    op.results[0].replace_all_uses_with(constrained.result)
    op.erase()


def _import_manual(to_local: Any, functions: dict[str, Any]) -> None:
    """Conversion to local shapes, a call, conversion back: `sdy.manual_computation`."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import sdy

    call = _only_user(to_local, "func.call")
    to_global = _only_user(call, "stablehlo.custom_call")
    entering, leaving = _frontend_attributes(to_local), _frontend_attributes(to_global)
    attributes = [
        ir.Attribute.parse(text)
        for text in (
            entering["xla.sdy.in_shardings"],
            leaving["xla.sdy.out_shardings"],
            entering["xla.sdy.manual_axes"],
        )
    ]
    body = functions[call.attributes["callee"].value].operation.regions[0].blocks[0]
    operands = list(to_local.operands)
    if list(call.operands) != list(to_local.results):
        raise _unreadable("a shard_map whose body takes values that are not its operands")
    with to_global.location, ir.InsertionPoint(to_global):
        manual = sdy.ManualComputationOp([r.type for r in to_global.results], operands, *attributes)
    inside = manual.regions[0].blocks.append(
        *[a.type for a in body.arguments], arg_locs=[a.location for a in body.arguments]
    )
    _copy_body(body, inside)
    _import_block(inside, functions)
    for old, new in zip(to_global.results, manual.results, strict=True):
        old.replace_all_uses_with(new)
    for op in (to_global, call, to_local):
        op.erase()


def _copy_body(body: Any, inside: Any) -> None:
    """Clone a function's body into an empty block that ends in `sdy.return`."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import sdy

    values = dict(zip(body.arguments, inside.arguments, strict=True))
    with ir.InsertionPoint(inside):
        for op in body:
            if op.operation.name == "func.return":
                with op.location:
                    sdy.ReturnOp([values[o] for o in op.operands])
                return
            copy = op.operation.clone()
            _rewire(copy, values)
            values.update(zip(op.operation.results, copy.results, strict=True))


def _rewire(op: Any, values: dict[Any, Any]) -> None:
    for k, operand in enumerate(op.operands):
        if operand in values:
            op.operands[k] = values[operand]
    for region in op.regions:
        for block in region:
            for inner in block:
                _rewire(inner.operation, values)


def _only_user(op: Any, name: str) -> Any:
    users = {u.owner.operation for r in op.results for u in r.uses}
    if len(users) != 1 or next(iter(users)).name != name:
        raise _unreadable("a shard_map that is not a conversion, one call and a conversion back")
    return next(iter(users))


def _frontend_attributes(op: Any) -> dict[str, str]:
    from jaxlib.mlir import ir

    if FRONTEND_ATTRIBUTES not in op.attributes:
        return {}
    found = ir.DictAttr(op.attributes[FRONTEND_ATTRIBUTES])
    return {a.name: ir.StringAttr(a.attr).value for a in found}


def _mark_donated(main: Any, donated: list[int]) -> None:
    from jaxlib.mlir import ir

    attributes = [ir.DictAttr(a) for a in main.arg_attrs] if donated else []
    for number in donated:
        if number < len(attributes):
            known = {a.name: a.attr for a in attributes[number]}
            marked = {**known, "jax.buffer_donor": ir.BoolAttr.get(True)}
            attributes[number] = ir.DictAttr.get(marked)
    if donated:
        main.operation.attributes["arg_attrs"] = ir.ArrayAttr.get(attributes)


def _require_shardy(module: Any) -> None:
    text = module.operation.get_asm(large_elements_limit=8)
    left = re.search(r"mhlo\.sharding|@(Sharding|SPMD\w+Shape|xla\.sdy\.\w+)\(", text)
    if left:
        raise _unreadable(f"shardings as {left.group(0).strip('@(')}")


def _unreadable(what: str) -> FlintError:
    return FlintError(
        "FL305",
        f"the HLO module is from before SPMD partitioning and holds {what}",
        help="dump it after partitioning (--xla_dump_hlo_pass_re=spmd-partitioning), or capture "
        "the JAX program itself",
    )
