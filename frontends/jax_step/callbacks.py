"""What calls back into Python on the host: kept as a call on the host, with what it is given and gives.

JAX gathers the operands of a callback on every device and runs it once; `jax.debug.callback` with
`partitioned=True`, and callbacks in a `shard_map`, run on each device's own part.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from flint.frontends.jax_step.equations import equations, place
from flint.passes.jax_private import custom_call, host_primitives
from flint.passes.work.host_copies import CALLBACK_TARGET, ON_SHARDS
from flint.text import plural

if TYPE_CHECKING:
    from jax.extend.core import ClosedJaxpr, Primitive
    from jax.interpreters.mlir import LoweringRuleContext
    from jaxlib.mlir import ir

_DEBUGGING = ("debug_callback", "debug_print")
_SHOWN = 3


def callback_rules() -> list[tuple[Primitive, Callable[..., object]]]:
    """Lowering rules of JAX's callbacks: calls of the host, for any platform and without a device."""
    return [(primitive, _rule(primitive.name)) for primitive in host_primitives()]


def _rule(name: str) -> Callable[..., object]:
    def lower(context: LoweringRuleContext, *values: ir.Value, **parameters: Any) -> Sequence[Any]:
        from jax.interpreters import mlir

        if len(context.tokens_in):
            context.set_tokens_out(context.tokens_in)
        if name == "inspect_sharding":
            return []
        types = [mlir.aval_to_ir_type(context.module_context, a) for a in context.avals_out]
        call = custom_call()(
            CALLBACK_TARGET + (ON_SHARDS if parameters.get("partitioned") else ""),
            result_types=types,
            operands=list(values),
            backend_config=json.dumps({"primitive": name}),
            has_side_effect=name != "pure_callback",
            api_version=2,
        )
        return list(call.results)

    return lower


def callbacks_of(program: ClosedJaxpr) -> str:
    """A sentence on what a program calls back, and where; "" if it does not."""
    found: dict[str, None] = {}
    for equation in equations(program):
        name = equation.primitive.name
        if name in _DEBUGGING or name in ("pure_callback", "io_callback"):
            where = place(equation)
            found.setdefault(f"{name} at {where}" if where else f"{name} of a library")
    if not found:
        return ""
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return (
        f"the step calls back into Python on the host in {plural(len(found), 'place')} "
        f"({', '.join(list(found)[:_SHOWN])}{more}): copies to and from the host are counted, "
        "Python's time is not"
    )
