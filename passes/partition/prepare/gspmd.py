"""Shardings in XLA's old form (GSPMD): files that hold them go to XLA's partitioner.

Where Shardy's are expected beside them they are refused, never dropped.
"""

from __future__ import annotations

import re
from typing import Any

from flint.errors import FlintError
from flint.passes.locations import decode_location

#: Shardings that say nothing: the whole array on every device, or on one.
_WHOLE = re.compile(r"\{(replicated|maximal device=\d+|manual)?\}")
_MARKS = (b"mhlo.sharding", b"Sharding", b"SPMDFullToShardShape")


def refuse_gspmd(module: Any, bytecode: bytes, code: str, source: str) -> None:
    """Raise FlintError `code` if a module holds shardings as `mhlo.sharding`, without Shardy's.

    `bytecode` is the module written out, `source` what it is called in the message.
    """
    found = _annotated(module, bytecode)
    if found is not None:
        text, location = found
        raise FlintError(
            code,
            f"{source} annotates shardings as mhlo.sharding (GSPMD), which Shardy does not read: "
            f"{text}",
            place=decode_location(location)[1].replace("-:", f"{source}:", 1) or None,
            help="lower (or export) it with jax_use_shardy_partitioner=True, JAX's default",
        )


def is_gspmd(module: Any, bytecode: bytes) -> bool:
    """Whether a module holds shardings as `mhlo.sharding`, and none of Shardy's."""
    return b"sdy" not in bytecode and _annotated(module, bytecode) is not None


def _annotated(module: Any, bytecode: bytes) -> tuple[str, Any] | None:
    """The first `mhlo.sharding` that splits something, and its location."""
    if not any(mark in bytecode for mark in _MARKS):
        return None
    from jaxlib.mlir import ir

    found: list[tuple[str, Any]] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        for attributes in _attributes(op):
            text = _sharding(attributes)
            if text and not _WHOLE.fullmatch(text):
                found.append((text, op.location))
        return ir.WalkResult.INTERRUPT if found else ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return found[0] if found else None


def _attributes(op: Any) -> list[Any]:
    """The attributes of an operation and, of a function, of its arguments and results."""
    from jaxlib.mlir import ir

    found = [op.attributes]
    for name in ("arg_attrs", "res_attrs"):
        if name in op.attributes:
            found += [ir.DictAttr(a) for a in ir.ArrayAttr(op.attributes[name])]
    return found


def _sharding(attributes: Any) -> str:
    from jaxlib.mlir import ir

    if "mhlo.sharding" not in attributes or "sdy.sharding" in attributes:
        return ""
    return str(ir.StringAttr(attributes["mhlo.sharding"]).value)
