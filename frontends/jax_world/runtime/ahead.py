"""Functions that the program compiles before it calls them: `jit(f).lower(...).compile()`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flint.frontends.jax_step.gpu_kernels import lowering_options, without_gpu
from flint.frontends.jax_world.work import Weights
from flint.passes.jax_private import PARAMETERS, device_count, setting

Run = Callable[..., tuple[Any, ...]]


def lowering_ahead(original: Callable[..., Any], run: Run, platform: str) -> Callable[..., Any]:
    """JAX's lowering, whose result compiles to a `VirtualExecutable` that calls `run`.

    Without platforms of the program's own it lowers for `platform`, with rules that need no device.
    """

    def lower(types: Any, **parameters: Any) -> Any:
        if parameters["lowering_platforms"] is None:
            options = lowering_options(platform, parameters.get("jaxpr"))
            parameters["lowering_platforms"] = options["lowering_platforms"]
            parameters["lowering_parameters"] = options[PARAMETERS]
        with setting("use_shardy_partitioner", True), without_gpu():
            computation = original(types, **parameters)
        own = {k: v for k, v in parameters.items() if k not in _OF_LOWERING}

        def compiled(*_: object, **__: object) -> VirtualExecutable:
            return VirtualExecutable(computation, own, run)

        computation.compile = compiled
        return computation

    return lower


#: Parameters of a lowering that are not of the function.
_OF_LOWERING = ("lowering_platforms", "lowering_parameters", "pgle_profiler")


class VirtualExecutable:
    """What `jax.stages.Compiled` holds: runs nothing, and has no memory to speak of."""

    def __init__(self, computation: Any, parameters: dict[str, Any], run: Run) -> None:
        found = computation.compile_args
        self._computation = computation
        self._parameters = parameters
        self._run = run
        self.in_avals = found["global_in_avals"]
        self.out_avals = found["global_out_avals"]
        self._in_shardings = found["in_shardings"]
        self._out_shardings = found["out_shardings"]
        self._kept_var_idx = found["kept_var_idx"]
        self._all_args_info = found["all_args_info"]
        self._xla_in_layouts = [None] * len(self.in_avals)
        self._xla_out_layouts = [None] * len(self.out_avals)
        self.unsafe_call = self.call

    def call(self, *arguments: Any) -> Any:
        """Results without data."""
        return self._run(*arguments, **self._parameters)[0]

    def create_cpp_call(self, *_: Any) -> None:
        """There is no faster way."""

    def input_shardings(self) -> Any:
        """Where arguments have to be."""
        return self._in_shardings

    def output_shardings(self) -> Any:
        """Where the program says that results are."""
        return self._out_shardings

    def as_text(self) -> str:
        """StableHLO: nothing is compiled."""
        return str(self._computation.stablehlo())

    def cost_analysis(self) -> dict[str, float]:
        """FLOPs in products, of each device if they share all of them."""
        weight = Weights().of(self._parameters["jaxpr"])
        return {"flops": weight.flops / device_count(self._computation)}

    def memory_analysis(self) -> None:
        """XLA says nothing either where it does not know."""

    def runtime_executable(self) -> None:
        """There is none."""
