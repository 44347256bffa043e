"""What calls of kernels say by name, where XLA keeps it: it drops it, or writes it as no JSON."""

from __future__ import annotations

import contextlib
import json
from typing import Any, Final

from flint.passes.mlir import FRONTEND_ATTRIBUTES, operations_named, rewritten
from flint.passes.work.declared import KERNEL_NAME, SAID

_BY_NAME: Final = "mhlo.backend_config"


def with_said(bytecode: bytes) -> bytes:
    """A StableHLO module in which calls have what they were given by name as JSON, as a frontend attribute."""
    is_any = b"custom_call" in bytecode and any(
        name.encode() in bytecode for name in (_BY_NAME, KERNEL_NAME)
    )
    return rewritten(bytecode, _keep) if is_any else bytecode


def _keep(module: Any) -> None:
    from jaxlib.mlir import ir

    for op in operations_named(module, "stablehlo.custom_call"):
        if said := _said(op):
            held = op.attributes.get(FRONTEND_ATTRIBUTES, ())
            more = {named.name: named.attr for named in held}
            more[SAID] = ir.StringAttr.get(json.dumps(said, sort_keys=True), module.context)
            op.attributes[FRONTEND_ATTRIBUTES] = ir.DictAttr.get(more, module.context)


def _said(op: Any) -> dict[str, Any]:
    """Numbers and texts that a call of the foreign-function interface was given, and Mosaic's name."""
    from jaxlib.mlir import ir

    found: dict[str, Any] = {}
    given = op.attributes.get(_BY_NAME, None)
    for named in given if isinstance(given, ir.DictAttr) else ():
        # Some have no value, and the bytes of a compiled kernel are no text.
        with contextlib.suppress(AttributeError, RuntimeError):
            found[named.name] = named.attr.value
    if KERNEL_NAME in op.attributes:
        found[KERNEL_NAME] = str(op.attributes[KERNEL_NAME].value)
    return {name: value for name, value in found.items() if isinstance(value, str | int | float)}
