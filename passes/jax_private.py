"""Every private name of JAX and jaxlib that Flint reads, calls or replaces.

Each stands here once, under a plain word, and is looked for when it is first asked for: importing
this module imports neither. A name that the installed release does not have is the error FL234,
which names all that are missing. `jaxlib.mlir` counts as public: it is MLIR's own Python bindings,
and modules are made of them. `jaxlib.xla_client` does not, although it has no underscore.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import inspect
import operator
import sys
from collections.abc import Callable, MutableSet, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any

from flint.errors import FlintError

if TYPE_CHECKING:
    from jax.extend.core import Primitive
    from jax.sharding import Sharding
    from jaxlib.mlir import ir

#: The oldest and the newest release in which each name was seen.
SEEN = ("0.10.2", "0.12.0")
#: The log in which JAX says what platforms it finds.
PLATFORM_LOG = "jax._src.xla_bridge"

_NAMES: list[str] = []
_KEYWORDS: list[tuple[str, str]] = []


def _find(target: str) -> Any:
    """What is at `module:path`, or the module of `module:`."""
    module, _, path = target.partition(":")
    found = importlib.import_module(module)
    return operator.attrgetter(path)(found) if path else found


def _later(target: str, *names: str) -> Callable[[], Any]:
    """A function that finds a name, or a module in which `names` are read.

    It raises FlintError FL234, and ImportError where the whole package is not installed.
    """
    wanted = [target + name for name in names] or [target]
    _NAMES.extend(wanted)

    @cache
    def find() -> Any:
        try:
            return [_find(name) for name in wanted] and _find(target)
        except (ImportError, AttributeError):
            check()
            raise

    return find


def _keyword(name: str, of: str) -> str:
    """The name of an argument; `of` is the function that `check` looks for it in."""
    _KEYWORDS.append((of, name))
    return name


def check() -> None:
    """Raise FlintError FL234 with all private names that the installed JAX lacks."""
    names = [name for name in _NAMES if _is_gone(name)]
    names += [f"{of}.{name}" for of, name in _KEYWORDS if _is_gone(of, name)]
    if names:
        raise _changed([name.strip(":").replace(":", ".") for name in names])


def _is_gone(target: str, keyword: str = "") -> bool:
    if importlib.util.find_spec(target.partition(".")[0]) is None:
        return False  # the package is not installed: another error
    try:
        found = _find(target)
    except (ImportError, AttributeError):
        return True
    return bool(keyword) and keyword not in inspect.signature(found).parameters


def _changed(names: list[str]) -> FlintError:
    return FlintError(
        "FL234",
        f"JAX {importlib.metadata.version('jaxlib')} changed {', '.join(sorted(names))}: programs "
        "cannot be captured with it",
        help=f"install a release from jax {SEEN[0]} to {SEEN[1]} beside Flint",
    )


# MLIR -----------------------------------------------------------------------------------------

_register_dialects = _later("jaxlib.mlir._mlir_libs._jax_mlir_ext:register_dialects")
_inlined_call = _later("jaxlib.mlir._mlir_libs._jax_mlir_ext:inlined_func_call")
_hlo_to_stablehlo = _later("jaxlib._jax:mlir.hlo_to_stablehlo")
_hlo = _later("jaxlib._hlo:", "hlo_module_from_text", "HloModule.as_serialized_hlo_module_proto")


def register_dialects(registry: ir.DialectRegistry) -> None:
    """Add the dialects that JAX lowers to."""
    _register_dialects()(registry)


def inlined_call(function: ir.Operation, operands: list[ir.Value]) -> list[ir.Value]:
    """Write a function's body at the insertion point; returns its results."""
    results: list[ir.Value] = _inlined_call()(function, operands)
    return results


def hlo_to_stablehlo(proto: bytes) -> bytes:
    """A serialized HloModuleProto as bytecode of StableHLO."""
    return bytes(_hlo_to_stablehlo()(proto))


def proto_of_hlo_text(text: str) -> bytes:
    """HLO text as a serialized HloModuleProto."""
    return bytes(_hlo().hlo_module_from_text(text).as_serialized_hlo_module_proto())


# compiling with XLA ---------------------------------------------------------------------------

#: The module of jaxlib that compiles without JAX.
xla_client = _later(
    "jaxlib.xla_client:",
    "CompileOptions",
    "DeviceAssignment",
    "DeviceList",
    "make_cpu_client",
    "register_custom_call_target",
)

#: The module of jaxlib that hands a compilation's module to Python.
xla_transforms = _later("jaxlib._xla:", "register_xla_transform", "clear_xla_transform")

_hardware = _later("jax._src.hardware_utils:", "num_available_amd_gpus")


def pretend_amd_gpus() -> None:
    """Let JAX's ROCm plugin start in this process, which it does where the driver has a GPU."""
    _hardware().num_available_amd_gpus = lambda stop_at=None: 1


# tracing and lowering -------------------------------------------------------------------------

full_tracebacks = _later("jax._src.config:include_full_tracebacks_in_locations")
_settings = _later("jax._src.config:")
#: The operations that JAX refuses to lower without a device: it reads this very set.
need_devices: Callable[[], MutableSet[Primitive]] = _later(
    "jax._src.dispatch:prim_requires_devices_during_lowering"
)
_cudnn_attention = _later("jax._src.cudnn.fused_attention_stablehlo:", "cuda_versions")
custom_partitioning: Callable[[], Primitive] = _later(
    "jax._src.custom_partitioning:custom_partitioning_p"
)
custom_call = _later("jax._src.interpreters.mlir:custom_call")
#: The argument of `Traced.lower` that takes `jax.interpreters.mlir.LoweringParameters`.
PARAMETERS = _keyword("_private_parameters", of="jax.stages:Traced.lower")
#: The module of `jax.pmap`.
pmap_module = _later("jax._src.pmap:", "_get_mesh_devices", "_cached_shard_map")
_pallas_call = _later("jax._src.pallas.pallas_call:pallas_call_p")
#: Pallas' own record of a kernel's cost.
cost_estimate = _later("jax._src.pallas.core:CostEstimate")
lower_interpreted_pallas = _later("jax._src.pallas.pallas_call:_pallas_call_lowering")
_callbacks = _later("jax._src.callback:", "pure_callback_p", "io_callback_p")
_debugging = _later(
    "jax._src.debugging:", "debug_callback_p", "debug_print_p", "inspect_sharding_p"
)
_without_dead_code = _later("jax.interpreters.partial_eval:dce_jaxpr")
_own_sharding = _later("jax:ShapeDtypeStruct._sharding")


def setting(name: str, value: bool) -> AbstractContextManager[object]:
    """A switch of JAX's inside, for this thread. A release without it behaves as if it was set."""
    state = getattr(_settings(), name, None)
    found: AbstractContextManager[object] = nullcontext() if state is None else state(value)
    return found


def cudnn_versions() -> object | None:
    """What JAX asks which cuDNN is installed; None where none is."""
    versions: object | None = _cudnn_attention().cuda_versions
    return versions


def set_cudnn_versions(versions: object | None) -> None:
    """Let JAX ask another object, or none."""
    _cudnn_attention().cuda_versions = versions


def pallas_call() -> Primitive | None:
    """The primitive of Pallas kernels, None in a process that did not import Pallas."""
    return _pallas_call() if "jax._src.pallas.pallas_call" in sys.modules else None


def host_primitives() -> tuple[Primitive, ...]:
    """What calls back into Python: callbacks, debugging prints, looks at shardings."""
    called, debugging = _callbacks(), _debugging()
    return (
        called.pure_callback_p,
        called.io_callback_p,
        debugging.debug_callback_p,
        debugging.debug_print_p,
        debugging.inspect_sharding_p,
    )


def own_sharding(struct: object) -> Sharding | object | None:
    """What a ShapeDtypeStruct was given: its `sharding` resolves a bare PartitionSpec in a mesh."""
    return _own_sharding().__get__(struct)


def used_inputs(jaxpr: Any, wanted: Sequence[bool] | None = None) -> list[bool]:
    """For each argument of a jaxpr, whether its results, or those `wanted`, hang on it."""
    asked = [True] * len(jaxpr.outvars) if wanted is None else list(wanted)
    found: list[bool] = _without_dead_code()(jaxpr, asked)[1]
    return found


# running scripts ------------------------------------------------------------------------------

#: Which devices JAX has: its table of clients and the caches of what it asked them.
backends = _later(
    "jax._src.xla_bridge:",
    "backends",
    "_backends",
    "_default_backend",
    "backends_are_initialized",
    "get_backend.cache_clear",
    "local_devices.cache_clear",
    "process_count.cache_clear",
)
#: Its table of clients by platform, and the one that it takes where no platform is named.
CLIENTS, DEFAULT_CLIENT = "_backends", "_default_backend"
#: Where jitted functions, and all operations outside them, arrive to be executed.
jitted_calls = _later(
    *("jax._src.pjit:", "_pjit_call_impl_python", "_resolve_and_lower", "convert_to_metaty"),
    "jit_p",
)
#: The function that runs a call of a jitted function, and the one that lowers it.
RUN, LOWER = "_pjit_call_impl_python", "_resolve_and_lower"
#: Arrays of JAX and what is made of them.
arrays = _later("jax._src.array:", "ArrayImpl", "Shard")
base_array: Callable[[], type] = _later("jax._src.basearray:Array")
#: Where arrays are put on devices.
placing = _later(
    "jax._src.dispatch:", "device_put_p", "_batched_device_put_impl", "get_intermediate_shardings"
)
#: The function that puts several arrays on devices.
PUT = "_batched_device_put_impl"
results = _later(
    "jax._src.interpreters.pxla:",
    "batched_device_put",
    "shard_arg_handlers",
    "global_result_handlers",
    "get_default_device",
)
#: Methods and operators of arrays.
array_methods = _later(
    "jax._src.numpy.array_methods:",
    "_set_array_base_attributes",
    "_set_array_attributes",
    "_JAX_ARRAY_TYPES",
    "ArrayImpl",
)
#: The types of array that its functions take.
ARRAY_TYPES = "_JAX_ARRAY_TYPES"
core = _later(
    "jax._src.core:",
    "pytype_aval_mappings",
    "physical_aval",
    "ShapedArray",
    "update_aval_with_sharding",
    "EvalTrace.process_shard_map",
)
adders = _later("jax._src.ad_util:raw_jaxval_adders")
canonical_types = _later("jax._src.dtypes:", "register_canonicalize_value_handler")
random_keys: Callable[[], type] = _later("jax._src.random.prng:PRNGKeyArray")
shardings = _later("jax._src.sharding_impls:", "UNSPECIFIED", "physical_sharding")
#: jaxlib's own classes and functions as JAX looks them up.
runtime = _later("jax._src.lib:xla_client")
distributed = _later("jax._src.distributed:", "initialize", "global_state")


def give_array_methods(kind: type) -> None:
    """Give a class the methods and operators of `jax.Array`."""
    methods = array_methods()
    methods._set_array_base_attributes(kind)
    methods._set_array_attributes(kind)


def array_types() -> tuple[type, ...]:
    """The types of array that JAX's functions take."""
    return tuple(getattr(array_methods(), ARRAY_TYPES))


def lower_call() -> Callable[..., Any]:
    """What lowers a call of a jitted function now: JAX's own, or what replaces it."""
    found: Callable[..., Any] = getattr(jitted_calls(), LOWER)
    return found


def key_kind(dtype: Any) -> Any:
    """The generator of random keys of a type."""
    return dtype._impl


def key_parts(keys: Any) -> tuple[Any, Any]:
    """The generator of random keys, and the array of their bits."""
    return keys._impl, keys._base_array


def key_bits(array: Any) -> Any:
    """The array of bits that random keys are kept in; another array is itself."""
    return getattr(array, "_base_array", array)


def device_count(computation: Any) -> int:
    """How many devices a lowered computation is for, 1 where it does not say."""
    return max(len(computation._device_list or ()), 1)
