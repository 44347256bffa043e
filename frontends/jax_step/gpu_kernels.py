"""Kernels that JAX lowers only beside a GPU: cuDNN attention, and Pallas (`pallas`).

JAX asks the installed GPU libraries for versions, calls back into Python while XLA partitions,
and compiles Pallas kernels as it lowers. Flint needs none of that: shapes, a sharding rule and the
declared cost are enough.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from flint.frontends.jax_step.callbacks import callback_rules
from flint.passes.jax_private import (
    PARAMETERS,
    cudnn_versions,
    custom_partitioning,
    need_devices,
    pallas_call,
    set_cudnn_versions,
)

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
        from flint.frontends.jax_step.pallas import pallas_rule

        rules.append((pallas, pallas_rule(platform, program)))
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
