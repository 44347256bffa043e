"""Calls that a compiler has to carry without their code: kernels of Flint, Pallas and users.

XLA's GPU compiler refuses a custom call that nobody registered. Those whose work Flint knows are
registered under their names, with code that never runs.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Collection
from typing import Any

from flint.passes import jax_private
from flint.passes.mlir import operations_named, target_of

#: What XLA looks up where a call says that it is of its first interface.
_FIRST_INTERFACE = 0
_CAPSULE = b"xla._CUSTOM_CALL_TARGET"
_OURS = ("flint.", "pallas_call")


def carry_calls(module: Any, declared: Collection[str], platform: str) -> None:
    """Let the compiler of a GPU platform take the calls of a StableHLO module that are Flint's or `declared`."""
    calls = operations_named(module, "stablehlo.custom_call")
    known = [op for op in calls if target_of(op).startswith(_OURS) or target_of(op) in declared]
    for op in known:
        _as_first_interface(op)
    for name in sorted({target_of(op) for op in known}):
        _register(name, platform)


def _as_first_interface(op: Any) -> None:
    """Say of a call that it is of XLA's first interface, whose configuration is a text."""
    from jaxlib.mlir import ir

    with op.context:
        config = op.attributes.get("mhlo.backend_config", None)
        if config is not None:
            del op.attributes["mhlo.backend_config"]
        if "backend_config" in op.attributes:
            given = op.attributes["backend_config"]
            config = given if isinstance(given, ir.DictAttr) else config
        if isinstance(config, ir.DictAttr):
            text = json.dumps({n.name: _plain(n.attr) for n in config}, sort_keys=True)
            op.attributes["backend_config"] = ir.StringAttr.get(text)
        op.attributes["api_version"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 1)


def _plain(attribute: Any) -> Any:
    """A number, a text or a truth value as JSON has it; the notation of everything else."""
    value = getattr(attribute, "value", None)
    return value if isinstance(value, bool | int | float | str) else str(attribute)


def _register(name: str, platform: str) -> None:
    """Register some function: compiling asks for its address alone."""
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = (
        ctypes.py_object,
        [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p],
    )
    address = ctypes.cast(ctypes.pythonapi.Py_IsInitialized, ctypes.c_void_p)
    capsule = make(address, _CAPSULE, None)
    jax_private.xla_client().register_custom_call_target(
        name, capsule, platform=platform.upper(), api_version=_FIRST_INTERFACE
    )
