"""Kernels that JAX lowers only beside a GPU: cuDNN attention and Pallas.

JAX asks the installed GPU libraries for versions, calls back into Python while XLA partitions,
and compiles Pallas kernels as it lowers. Flint needs none of that: shapes, a sharding rule and the
declared cost are enough. The names from `jax._src` used here are those of jax 0.10.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

#: cuDNN version that JAX is told of where no GPU is installed (9.10 has every layout it asks for).
CUDNN_VERSION = 91_002


class _NoGpu:
    """Makes JAX trace and lower GPU kernels without a GPU, while any step is being captured.

    JAX is given a cuDNN version if it has none, and its list of operations that need a device to
    be lowered loses those that `lowering_parameters` lowers without.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._removed: set[Any] = set()

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
        from jax._src import dispatch
        from jax._src.cudnn import fused_attention_stablehlo as attention

        need_devices = dispatch.prim_requires_devices_during_lowering
        self._removed = {p for p in need_devices if p.name.startswith(_LOWERED_HERE)}
        need_devices -= self._removed
        if attention.cuda_versions is None:
            attention.cuda_versions = self

    def _stop(self) -> None:
        from jax._src import dispatch
        from jax._src.cudnn import fused_attention_stablehlo as attention

        dispatch.prim_requires_devices_during_lowering |= self._removed
        if attention.cuda_versions is self:
            attention.cuda_versions = None


_LOWERED_HERE = ("custom_partitioning", "dot_product_attention", "scaled_matmul")
_NO_GPU = _NoGpu()


def without_gpu() -> Any:
    """Context in which GPU kernels can be traced and lowered although there is no GPU."""
    return _NO_GPU.active()


def lowering_parameters(platform: str) -> Any:
    """What to pass to `Traced.lower` so that GPU kernels become custom calls without a GPU."""
    from jax._src.custom_partitioning import custom_partitioning_p
    from jax._src.interpreters import mlir

    rules: list[tuple[Any, Any]] = [(custom_partitioning_p, _lower_custom_partitioning)]
    pallas = sys.modules.get("jax._src.pallas.pallas_call")
    if pallas is not None and platform in ("cuda", "rocm"):
        rules.append((pallas.pallas_call_p, _lower_pallas))
    return mlir.LoweringParameters(override_lowering_rules=tuple(rules))


def _lower_custom_partitioning(context: Any, *values: Any, call: Any, **_: Any) -> Any:
    """The function inside, in place: its operations are partitioned by their own rules."""
    from jax._src.interpreters import mlir
    from jax.extend import core

    return mlir.lower_fun(core.jaxpr_as_fun(call), multiple_results=True)(context, *values)


def _lower_pallas(context: Any, *values: Any, interpret: Any, **parameters: Any) -> Any:
    """One custom call `pallas_call` with the declared cost; the kernel is not compiled."""
    from jax._src.interpreters import mlir
    from jax._src.pallas import pallas_call

    if interpret:
        return pallas_call._pallas_call_lowering(
            context, *values, interpret=interpret, **parameters
        )
    estimate = parameters.get("cost_estimate")
    config: dict[str, Any] = {"name": str(parameters.get("name") or "kernel")}
    if estimate is not None:
        fields = ("flops", "bytes_accessed", "transcendentals")
        config["cost_estimate"] = {f: int(getattr(estimate, f)) for f in fields}
    types = [mlir.aval_to_ir_type(context.module_context, a) for a in context.avals_out]
    out = mlir.custom_call(
        "pallas_call",
        result_types=types,
        operands=list(values),
        backend_config=json.dumps(config),
        api_version=2,
    )
    return list(out.results)
