"""How a kernel of Pallas is lowered without its device: a custom call with its cost, on TPUs Mosaic's."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from flint.frontends.jax_step.kernel_counts import counts_of
from flint.frontends.jax_step.splash import blocks_of_masks
from flint.passes.jax_private import cost_estimate, custom_call, lower_interpreted_pallas
from flint.passes.mlir import FRONTEND_ATTRIBUTES
from flint.passes.work.blocks import BLOCKS, MaskBlocks
from flint.passes.work.declared import declaration_of

if TYPE_CHECKING:
    from jax.extend.core import ClosedJaxpr
    from jax.interpreters.mlir import LoweringRuleContext
    from jaxlib.mlir import ir


def pallas_rule(platform: str, program: ClosedJaxpr | None) -> Callable[..., object]:
    """The rule of `pallas_call` on a GPU's or a TPU's platform, for the kernels of a program."""
    if platform in ("cuda", "rocm"):
        return _lower_pallas
    return partial(_lower_for_tpu, {} if program is None else blocks_of_masks(program))


def _lower_pallas(
    context: LoweringRuleContext, *values: ir.Value, interpret: object, **parameters: Any
) -> Sequence[ir.Value]:
    """One custom call `pallas_call` with its cost; the kernel is not compiled."""
    if interpret:
        lower: Callable[..., Sequence[ir.Value]] = lower_interpreted_pallas()
        return lower(context, *values, interpret=interpret, **parameters)
    return _called(context, values, parameters, _estimate_of(parameters, is_pipelined=False))


def _called(
    context: LoweringRuleContext,
    values: Sequence[ir.Value],
    parameters: dict[str, Any],
    estimate: Any,
) -> Sequence[ir.Value]:
    from jax.interpreters import mlir

    config: dict[str, Any] = {"name": str(parameters.get("name") or "kernel")}
    if estimate is not None:
        fields = ("flops", "bytes_accessed", "transcendentals")
        config["cost_estimate"] = {f: int(getattr(estimate, f)) for f in fields}
    types = [mlir.aval_to_ir_type(context.module_context, a) for a in context.avals_out]
    out = custom_call()(
        "pallas_call",
        result_types=types,
        operands=list(values),
        backend_config=json.dumps(config),
        api_version=2,
    )
    return list(out.results)


def _lower_for_tpu(
    masks: Mapping[int, MaskBlocks],
    context: LoweringRuleContext,
    *values: ir.Value,
    interpret: object,
    **parameters: Any,
) -> Sequence[ir.Value]:
    """Mosaic's own lowering; a kernel that declares no cost gets what is counted of it.

    A kernel that is compiled only beside a TPU of some generation becomes a call, as on GPUs.
    """
    lower: Callable[..., Sequence[ir.Value]] = lower_interpreted_pallas()
    if interpret:
        return lower(context, *values, interpret=interpret, **parameters)
    parameters["cost_estimate"] = estimate = _estimate_of(parameters, is_pipelined=True)
    try:
        made = lower(context, *values, interpret=interpret, **parameters)
        _say_blocks(made, masks.get(id(parameters["jaxpr"])))
        return made
    except ValueError as error:
        if "device kind" not in str(error):
            raise
        return _called(context, values, parameters, estimate)


def _say_blocks(made: Sequence[ir.Value], blocks: MaskBlocks | None) -> None:
    """Write the blocks that a kernel runs beside its call."""
    from jaxlib.mlir import ir

    if blocks is None or not made or isinstance(made[0], ir.BlockArgument):
        return
    call = made[0].owner
    said = call.attributes.get(FRONTEND_ATTRIBUTES, ())
    full = {n.name: n.attr for n in said} | {BLOCKS: ir.StringAttr.get(str(blocks))}
    call.attributes[FRONTEND_ATTRIBUTES] = ir.DictAttr.get(full)


def _estimate_of(parameters: dict[str, Any], *, is_pipelined: bool) -> Any:
    """What a kernel declares, else what its body and grid say, unless `@flint.cost_of` does."""
    given = parameters.get("cost_estimate")
    name = str(parameters.get("name") or "kernel")
    if given is not None or declaration_of(f"pallas.{name}") is not None:
        return given
    counts = counts_of(parameters["jaxpr"], parameters["grid_mapping"], is_pipelined=is_pipelined)
    if counts is None:
        return None
    return cost_estimate()(
        flops=counts.flops,
        transcendentals=counts.transcendentals,
        bytes_accessed=counts.bytes_accessed,
    )
