"""The MLIR context that Flint's modules live in, and what is read from operations and types."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from flint.errors import FlintError
from flint.ir.program import CAUSAL
from flint.passes.jax_private import register_dialects

#: Attribute of operations that frontends of XLA write what they like into, by name.
FRONTEND_ATTRIBUTES = "mhlo.frontend_attributes"
#: Among these: every device draws its part of these random numbers alone.
LOCAL_DRAW = "flint_local_draw"


def missing_jax(package: str) -> FlintError:
    """The FlintError FL206 for an installation without `package` (jax or jaxlib)."""
    return FlintError(
        "FL206", f"this needs {package}, which is not installed", help='pip install "flint-ir[jax]"'
    )


def make_context() -> Any:
    """Return an `ir.Context` with StableHLO, Shardy, CHLO, func and arith loaded.

    Unregistered dialects are allowed: Pallas and other custom dialects may appear in attributes.
    Raises FlintError FL206 without jaxlib.
    """
    try:
        from jaxlib.mlir import ir
        from jaxlib.mlir.dialects import chlo, sdy, stablehlo
    except ImportError as error:
        raise missing_jax("jaxlib") from error
    context = ir.Context()
    # Its threads would report what they find wrong to Python and wait for the interpreter's lock,
    # which the thread that waits for them holds: one error in a nested function, and both hang.
    context.enable_multithreading(False)
    registry = ir.DialectRegistry()
    register_dialects(registry)
    context.append_dialect_registry(registry)
    stablehlo.register_dialect(context)
    sdy.register_dialect(context)
    chlo.register_dialect(context)
    context.load_all_available_dialects()
    context.allow_unregistered_dialects = True
    return context


def shape_of(value: Any) -> tuple[int, ...]:
    """The shape of an MLIR value, which is a ranked tensor."""
    from jaxlib.mlir import ir

    return tuple(ir.RankedTensorType(value.type).shape)


def defining_operation(value: Any) -> Any:
    """The `ir.Operation` that defines an MLIR value, or None for a block argument."""
    from jaxlib.mlir import ir

    if isinstance(value, ir.BlockArgument):
        return None
    return getattr(value.owner, "operation", value.owner)


def functions_of(module: Any) -> dict[str, Any]:
    """The functions of a module by name."""
    return {
        f.attributes["sym_name"].value: f.operation
        for f in module.body
        if f.operation.name == "func.func"
    }


def operations_named(module: Any, name: str) -> list[Any]:
    """All operations called `name` in a module, nested ones too: safe to change while iterated."""
    from jaxlib.mlir import ir

    found: list[Any] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name == name:
            found.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return found


def write_bytecode(module: Any) -> bytes:
    """Serialize an `ir.Module` with its debug locations."""
    import io

    out = io.BytesIO()
    module.operation.write_bytecode(out)
    return out.getvalue()


def rewritten(bytecode: bytes, change: Callable[[Any], None]) -> bytes:
    """A module after a change. What cannot be read stays as it is: whoever compiles it says why."""
    from jaxlib.mlir import ir

    with make_context():
        try:
            module = ir.Module.parse(bytecode)
        except ir.MLIRError:
            return bytecode
        change(module)
        return write_bytecode(module)


def element_bits(element_type: Any) -> int:
    """Width of a tensor element in bits, as it lies in memory (booleans take a byte)."""
    name = str(element_type)
    if name.startswith("complex<"):
        return 2 * _bits_of(name[len("complex<") : -1])
    return _bits_of(name)


def _bits_of(name: str) -> int:
    if name == "i1":
        return 8
    if name in ("index", "!stablehlo.token", "token"):
        return 0
    if name.startswith("!quant.uniform<"):
        return _bits_of(name[len("!quant.uniform<") :].split(":")[0])
    found = re.match(r"[a-z!]*?(\d+)", name)
    return int(found.group(1)) if found else 8


def is_attention(target: str) -> bool:
    """Whether a custom call is attention: cuDNN's, or Flint's own for PyTorch programs."""
    return target.startswith(("__cudnn$fmha", "flint.attention"))


def is_attention_backward(target: str) -> bool:
    """Whether an attention call computes gradients."""
    return target.startswith("flint.attention_backward") or "Backward" in target


def attention_mask(target: str, config: Mapping[str, Any]) -> int:
    """The mask (`Program.mask`) that a call of attention is configured with, cuDNN's or Flint's.

    A causal one omits what is after each query, a window of 512 also all but the last 512
    keys before it. cuDNN's windows are causal.
    """
    if target.startswith("flint."):
        return CAUSAL if config.get("causal") else 0
    given = config.get("cudnn_fmha_backend_config")
    found = given if isinstance(given, dict) else {}
    said = str(found.get("sliding_window_length") or "")
    window = int(said) if re.fullmatch("[0-9]{1,18}", said) else 0
    return window if window > 0 else CAUSAL if "CAUSAL" in str(found.get("mask_type", "")) else 0


def attention_name(target: str, mask: int) -> str:
    """The opcode of a call of attention: its mask is there for people. Flint's own names say it."""
    shown = f"[window={mask}]" if mask > 0 else "[causal]" if mask else ""
    return f"custom_call.{target.removesuffix(shown)}{shown}"


def target_of(op: Any) -> str:
    """The target of a custom call."""
    return str(op.attributes["call_target_name"].value)


def key_of(op: Any) -> str:
    """The name of an operation, of a custom call with that of its target: `custom_call:mhlo.topk`."""
    return f"custom_call:{target_of(op)}" if op.name == "stablehlo.custom_call" else str(op.name)


def is_heads_first(op: Any) -> bool:
    """Whether queries of an attention call are (batch, heads, sequence, size)."""
    if op.attributes["call_target_name"].value.startswith("flint.attention"):
        return True
    config = json.loads(op.attributes["backend_config"].value)["cudnn_fmha_backend_config"]
    numbers = (
        config.get("bmm1_dot_dimension_numbers") or config["bmm2_grad_gemm2_dot_dimension_numbers"]
    )
    return list(numbers["lhs_batch_dimensions"]) == ["0", "1"]
