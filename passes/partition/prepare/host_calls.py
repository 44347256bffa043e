"""Calls of the host taken apart: copies to it, the call, copies from it.

These are the callbacks of JAX as it lowers them for CPUs and GPUs (`xla_ffi_python_gpu_callback`),
as Flint's own frontend lowers them (`flint.host_callback`), and StableHLO's infeed, outfeed and
transfers to and from the host. Without this they would be work that nothing knows.
"""

from __future__ import annotations

import re
from typing import Any

from flint.ir.op_class import OpClass
from flint.passes.mlir import operations_named, target_of
from flint.passes.rewrites.host_memory import placement
from flint.passes.work.host_copies import (
    CALLBACK_TARGET,
    LOAD,
    MOVES,
    ON_SHARDS,
    PLACEMENTS,
    STORE,
)

#: Targets of JAX's callbacks; `partitioned` ones run on each device's own part.
_CALLBACK = re.compile(
    rf"xla_(?:ffi_)?(partitioned_)?python_(?:cpu|gpu)_callback|{re.escape(CALLBACK_TARGET)}({ON_SHARDS})?"
)
#: Bytes of which one is in every module that has such a call.
MARKS = (b"_callback", b"infeed", b"outfeed", b"is_host_transfer")
_FEEDS = ("stablehlo.infeed", "stablehlo.outfeed", "stablehlo.send", "stablehlo.recv")


def take_host_calls_apart(module: Any, bytecode: bytes) -> None:
    """Replace every call of the host of a module. `bytecode` is what the module was read from."""
    if not any(mark in bytecode for mark in MARKS):
        return
    for op in operations_named(module, "stablehlo.custom_call"):
        found = _CALLBACK.fullmatch(target_of(op))
        if found is not None:
            _take_apart(op, is_local=any(found.groups()))
    for name in _FEEDS:
        for op in operations_named(module, name):
            if _is_of_the_host(op):
                _take_apart(op, is_local=True)


def rename_moves(module: Any) -> None:
    """Give every call that moves a value to or from the host a name that XLA does not know.

    It has no effect, as of XLA's own forms: of one that has, XLA's partitioner expects a sharding.
    """
    from jaxlib.mlir import ir

    for op in operations_named(module, "stablehlo.custom_call"):
        if target_of(op) in PLACEMENTS:
            name = MOVES[placement(op) or OpClass.FROM_HOST]
            op.attributes["call_target_name"] = ir.StringAttr.get(name)
            op.attributes["has_side_effect"] = ir.BoolAttr.get(False)


def _is_of_the_host(op: Any) -> bool:
    if op.name in ("stablehlo.infeed", "stablehlo.outfeed"):
        return True
    return "is_host_transfer" in op.attributes and bool(op.attributes["is_host_transfer"].value)


def _take_apart(op: Any, *, is_local: bool) -> None:
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    with op.location, ir.InsertionPoint(op):
        # each device's own part is copied as it lies, whatever is called as a whole is gathered
        to_host, to_device = ("MoveToHost", "MoveToDevice") if is_local else (STORE, LOAD)
        values = [_copy(v, to_host) for v in op.operands if _is_array(v)]
        results = [r for r in op.results if _is_array(r)]
        target = CALLBACK_TARGET + (ON_SHARDS if is_local else "")
        nothing = ir.RankedTensorType.get([], ir.IntegerType.get_signless(1))
        types = [r.type for r in results] or [nothing]  # Shardy expects a result
        called = _call(types, values, target, _has_effect(op))
        for result, made in zip(results, called.results, strict=False):
            result.replace_all_uses_with(_copy(made, to_device))
        for token in (r for r in op.results if not _is_array(r)):
            given = [v for v in op.operands if not _is_array(v)]
            token.replace_all_uses_with(given[0] if given else stablehlo.create_token())
    op.erase()


def _is_array(value: Any) -> bool:
    from jaxlib.mlir import ir

    return isinstance(value.type, ir.RankedTensorType)


def _has_effect(op: Any) -> bool:
    if op.name != "stablehlo.custom_call":
        return True
    return "has_side_effect" in op.attributes and bool(op.attributes["has_side_effect"].value)


def _copy(value: Any, target: str) -> Any:
    return _call([value.type], [value], target, False).results[0]


def _call(types: list[Any], operands: list[Any], target: str, effect: bool) -> Any:
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    return stablehlo.CustomCallOp(
        types,
        operands,
        call_target_name=ir.StringAttr.get(target),
        has_side_effect=ir.BoolAttr.get(effect),
    )
