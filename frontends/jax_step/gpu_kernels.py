"""Kernels that JAX lowers only beside a GPU: cuDNN attention and Pallas.

JAX asks the installed GPU libraries for versions, calls back into Python while XLA partitions,
and compiles Pallas kernels as it lowers. Flint needs none of that: shapes, a sharding rule and the
declared cost are enough.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from flint.frontends.jax_step.callbacks import callback_rules
from flint.frontends.jax_step.kernel_counts import counts_of
from flint.frontends.jax_step.splash import blocks_of_masks
from flint.passes.jax_private import (
    PARAMETERS,
    cost_estimate,
    cudnn_versions,
    custom_call,
    custom_partitioning,
    lower_interpreted_pallas,
    need_devices,
    pallas_call,
    set_cudnn_versions,
)
from flint.passes.mlir import FRONTEND_ATTRIBUTES
from flint.passes.work.blocks import BLOCKS, MaskBlocks
from flint.passes.work.declared import declaration_of

if TYPE_CHECKING:
    from jax.extend.core import ClosedJaxpr, Primitive
    from jax.interpreters.mlir import LoweringRuleContext
    from jaxlib.mlir import ir

#: cuDNN version that JAX is told of where no GPU is installed (9.10 has every layout it asks for).
CUDNN_VERSION = 91_002


class _NoGpu:
    """Makes JAX trace and lower GPU kernels without a GPU, while any step is being captured.

    JAX is given a cuDNN version if it finds none, and its list of operations that need a device to
    be lowered loses those that `lowering_options` lowers without.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._removed: set[Primitive] = set()
        self._found: object | None = None

    def cudnn_get_version(self) -> int:
        """What JAX asks `jaxlib.cuda._versions` for."""
        return CUDNN_VERSION

    @contextmanager
    def active(self) -> Iterator[None]:
        """Active until the last of nested or parallel uses ends."""
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._start()
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._stop()

    def _start(self) -> None:
        needing = need_devices()
        self._removed = {p for p in needing if p.name.startswith(_LOWERED_HERE)}
        needing -= self._removed
        self._found = cudnn_versions()
        if not _has_cudnn(self._found):
            set_cudnn_versions(self)

    def _stop(self) -> None:
        needing = need_devices()
        needing |= self._removed
        if cudnn_versions() is self:
            set_cudnn_versions(self._found)


def _has_cudnn(versions: Any) -> bool:
    """Whether JAX finds cuDNN: its plugin alone, without CUDA's libraries, raises instead."""
    try:
        return versions is not None and versions.cudnn_get_version() > 0
    except RuntimeError:
        return False


_LOWERED_HERE = (
    *("custom_partitioning", "dot_product_attention", "scaled_matmul"),
    *("pure_callback", "io_callback", "debug_callback", "debug_print", "inspect_sharding"),
)
_NO_GPU = _NoGpu()


def without_gpu() -> AbstractContextManager[None]:
    """Context in which GPU kernels can be traced and lowered although there is no GPU."""
    return _NO_GPU.active()


def lowering_options(platform: str, program: ClosedJaxpr | None = None) -> dict[str, object]:
    """What to pass to `Traced.lower` of a program, so that kernels become custom calls without a
    device."""
    from jax.interpreters import mlir

    rules: list[tuple[Primitive, Callable[..., object]]] = [
        (custom_partitioning(), _lower_custom_partitioning),
        *callback_rules(),
    ]
    pallas = pallas_call()
    if pallas is not None and platform != "cpu":
        on_gpu = platform in ("cuda", "rocm")
        masks = {} if on_gpu or program is None else blocks_of_masks(program)
        rules.append((pallas, _lower_pallas if on_gpu else partial(_lower_for_tpu, masks)))
    parameters = mlir.LoweringParameters(override_lowering_rules=tuple(rules))
    return {"lowering_platforms": (platform,), PARAMETERS: parameters}


def _lower_custom_partitioning(
    context: LoweringRuleContext, *values: ir.Value, call: ClosedJaxpr, **_: object
) -> Sequence[ir.Value]:
    """The function inside, in place: its operations are partitioned by their own rules."""
    from jax.extend import core
    from jax.interpreters import mlir

    lower = mlir.lower_fun(core.jaxpr_as_fun(call), multiple_results=True)
    results: Sequence[ir.Value] = lower(context, *values)
    return results


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
