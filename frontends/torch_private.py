"""Every private name of PyTorch that Flint reads, calls or derives from. Seen in PyTorch 2.13.0.

Each stands here once, under a plain word. A name that PyTorch no longer has is not an error when
this module is imported, but when `check` is called, which names all that are missing (FL234). What
is replaced while a program is recorded is named, and tested, by `torch_world/runtime/patching.py`.
Operators (`aten._to_copy`) are no names of this kind: graphs are made of them.
"""

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from flint.frontends.torch_world.runtime.versions import failed_self_tests

if TYPE_CHECKING:
    import torch
    from torch import nn

    # These are types as well, and others import them from here.
    from torch._ops import HigherOrderOperator as HigherOrderOperator  # noqa: PLC0414
    from torch._ops import OpOverload as OpOverload  # noqa: PLC0414
    from torch._subclasses.fake_tensor import FakeTensor as FakeTensor  # noqa: PLC0414
    from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode  # noqa: PLC0414
    from torch.autograd.graph import Node
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.pipelining import PipelineStage
    from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode  # noqa: PLC0414

_MISSING: list[str] = []
_FAKE_GROUPS = "torch.testing._internal.distributed.fake_pg"
#: What only recording needs, and `check` looks for.
_RECORDING = (
    "torch.distributed.tensor:DTensor._local_tensor",
    f"{_FAKE_GROUPS}:_create_fake_pg",
    f"{_FAKE_GROUPS}:FakeStore",
)


def _find(target: str) -> Any:
    """What is at `module:path`, or None, and then the name is kept for `check`."""
    module, _, path = target.partition(":")
    try:
        return operator.attrgetter(path)(importlib.import_module(module))
    except (ImportError, AttributeError):
        _MISSING.append(target.replace(":", "."))
        return None


def _attribute(name: str, of: str) -> Callable[[Any], Any]:
    """A function that reads a private attribute; `of` is where `check` looks for it."""
    _find(f"{of}.{name}")
    return operator.attrgetter(name)


def _field(name: str, of: str) -> Callable[[Any], Any]:
    """The same of an attribute that a class declares, and its instances have."""
    if name not in getattr(_find(of), "__annotations__", ()):
        _MISSING.append(f"{of.replace(':', '.')}.{name}")
    return operator.attrgetter(name)


def _later(target: str) -> Callable[[], Any]:
    """A function that finds a name when it is first asked for: its module takes long to import."""

    @cache
    def find() -> Any:
        found = _find(target)
        check()
        return found

    return find


if not TYPE_CHECKING:
    HigherOrderOperator = _find("torch._ops:HigherOrderOperator")
    OpOverload = _find("torch._ops:OpOverload")
    TorchDispatchMode = _find("torch.utils._python_dispatch:TorchDispatchMode")
    FakeTensor = _find("torch._subclasses.fake_tensor:FakeTensor")
    FakeTensorMode = _find("torch._subclasses.fake_tensor:FakeTensorMode")


def check(recording: bool = False) -> None:
    """Raise FlintError FL234 with all private names that this version of PyTorch lacks.

    Those that only recorded programs need are looked for when `recording`.
    """
    if recording:
        for name in _RECORDING:
            _find(name)
    if _MISSING:
        raise failed_self_tests(_MISSING, recording)


def schema_of(target: object) -> Any:
    """The schema of an operator, None of anything else."""
    return getattr(target, "_schema", None)


# operators and their kernels ------------------------------------------------------------------

_find("torch:ops.aten.add.Tensor._schema")
DispatchKey: Any = _find("torch._C:DispatchKey")
DispatchKeySet: Any = _find("torch._C:DispatchKeySet")
without_dispatch_keys: Callable[[Any], Any] = _find("torch._C:_ExcludeDispatchKeyGuard")
below_autograd: Callable[[], Any] = _find("torch._C:_AutoDispatchBelowADInplaceOrView")
without_dispatch: Callable[[], Any] = _find("torch._C:_DisableTorchDispatch")
plain_dispatch: Any = _find("torch._C:_disabled_torch_dispatch_impl")
names_of_operators: Callable[[], list[str]] = _find("torch._C:_dispatch_get_all_op_names")
has_kernel: Callable[[str, str], bool] = _find("torch._C:_dispatch_has_kernel_for_dispatch_key")
kernel_of = _attribute("_op_dk", "torch:ops.aten.add.Tensor")
cached_kernels = _attribute("_dispatch_cache", "torch:ops.aten.add.Tensor")
forget_library: Callable[[Any], None] = _find("torch.library:Library._destroy")
without_modes: Callable[[], Any] = _find("torch.utils._python_dispatch:_disable_current_modes")
core_decompositions: Callable[[], Any] = _find("torch._decomp:core_aten_decompositions")
pytree: Any = _find("torch.utils:_pytree")

# tensors, modules and autograd ----------------------------------------------------------------

storage_address = _attribute("_cdata", "torch:UntypedStorage")
own_parameters: Callable[[Any], Any] = operator.attrgetter("_parameters")
own_buffers: Callable[[Any], Any] = operator.attrgetter("_buffers")
own_modules: Callable[[Any], Any] = operator.attrgetter("_modules")
current_node: Callable[[], Any] = _find("torch._C:_current_autograd_node")
priorities_of_attention: Callable[[], list[int]] = _find("torch._C:_get_sdp_priority_order")
next_sequence_number: Callable[[], int] = _find("torch.autograd:_get_sequence_nr")
after_backward: Callable[[Any], None] = _find(
    "torch.autograd:Variable._execution_engine.queue_callback"
)
as_subclass: Callable[..., Any] = _find("torch:Tensor._make_subclass")
refuse_addresses: Callable[[Any], None] = _find("torch._C:_set_throw_on_mutable_data_ptr")
device_constructors: Callable[[], Any] = _find("torch.utils._device:_device_constructors")
#: What functions of operators may be annotated with, and what a schema calls it.
operator_types: dict[Any, str] = _find("torch._library.infer_schema:SUPPORTED_PARAM_TYPES")
MODULE_STATE = ("_parameters", "_buffers", "_modules")
own_parameters = _field("_parameters", "torch.nn:Module")
own_buffers = _field("_buffers", "torch.nn:Module")
own_modules = _field("_modules", "torch.nn:Module")
_find("torch.nn:Module._apply")
TracerBase: Any = _find("torch.fx.proxy:TracerBase")
_FAKES = "torch._subclasses.fake_tensor"
DataDependentOutputException: Any = _find(f"{_FAKES}:DataDependentOutputException")
DynamicOutputShapeException: Any = _find(f"{_FAKES}:DynamicOutputShapeException")
UnsupportedOperatorException: Any = _find(f"{_FAKES}:UnsupportedOperatorException")
DeviceGuard: Any = _find("torch:_C._acc.DeviceGuard")
private_device_type: Callable[[], Any] = _later("torch:_C._autograd.DeviceType.PrivateUse1")
make_device: Callable[..., None] = _find(
    "torch.utils.backend_registration:_setup_privateuseone_for_python_backend"
)


def apply_to(module: nn.Module, function: Callable[[Any], Any]) -> None:
    """Replace all tensors of a module by what a function makes of them."""
    module._apply(function)  # found at every call: it is replaced while a program is recorded


def apply_to_tensors(tree: object, function: Callable[[Any], Any]) -> Any:
    """Lists, tuples and dicts with every tensor in them replaced by what a function makes of it."""
    import torch

    return pytree.tree_map_only(torch.Tensor, function, tree)


def note_compiled(compiled: Callable[..., Any], function: Callable[..., Any]) -> None:
    """Say of what a function is the compiled form, as libraries ask PyTorch's."""
    vars(compiled)["_torchdynamo_orig_callable"] = function


def sequence_number(node: Node) -> int:
    """Which operator, counted by autograd, made a node of the backward pass."""
    return int(node._sequence_nr())


@contextmanager
def frames_of_traces(keep: Callable[[Any], Any]) -> Iterator[None]:
    """Inside, a traced operator's frames are what `keep` makes of the stack's summary."""
    before = TracerBase._filter_traceback_frames
    TracerBase._filter_traceback_frames = lambda _, summary: keep(summary)
    try:
        yield
    finally:
        TracerBase._filter_traceback_frames = before


_find("torch.fx.proxy:TracerBase._filter_traceback_frames")


def script_type(value: torch.ScriptObject) -> str:
    """The class of an object of TorchScript, in full."""
    return str(value._type())


_find("torch:ScriptObject._type")

# worlds ---------------------------------------------------------------------------------------

group_of_name: Callable[[str], Any] = _find(
    "torch.distributed.distributed_c10d:_resolve_process_group"
)
buckets_by_size: Callable[..., Any] = _find("torch.distributed:_compute_bucket_assignment_by_size")
#: What a GradScaler knows of each optimizer.
states_by_optimizer = operator.attrgetter("_per_optimizer_states")
local_tensor = operator.attrgetter("_local_tensor")
#: What two meshes are compared by, beside their ranks.
mesh_parts = operator.attrgetter("_layout", "_device_type", "_mesh_dim_names", "_thread_id")
mesh_ranks = operator.attrgetter("_flatten_rank_map")
stage_input = operator.attrgetter("_user_meta")
stage_shapes = operator.attrgetter("_stage_meta")


def set_mesh_ranks(mesh: DeviceMesh, ranks: tuple[int, ...]) -> None:
    """Let a mesh hold an equal list of ranks that others hold too."""
    mesh._flatten_rank_map = ranks


def nested_int_of(number: int, coefficient: int) -> Any:
    """The size of the ragged dimension `number` of nested tensors, times a coefficient."""
    import torch

    return torch.SymInt(_nested_int()(number, coefficient))


def set_inference(stage: PipelineStage, mode: object) -> None:
    """How a pipeline stage finds the shapes of its inputs."""
    stage._inference_mode = mode


def mark_as_parameter(tensor: Any) -> None:
    """Make a tensor one that modules take for a parameter."""
    tensor._is_param = True


def mark_as_buffer(tensor: Any, *, persistent: bool) -> None:
    """Make a tensor one that modules take for a buffer."""
    tensor.persistent, tensor._is_buffer = persistent, True


# what takes long to import --------------------------------------------------------------------

trace_forward_and_backward = _later(
    "torch._functorch.aot_autograd:aot_export_joint_with_descriptors"
)
descriptors = _later("torch._functorch._aot_autograd:descriptors")
meta_kernels = _later("torch:_meta_registrations")
new_fake_group = _later(f"{_FAKE_GROUPS}:_create_fake_pg")
fake_store = _later(f"{_FAKE_GROUPS}:FakeStore")
_nested_int = _later("torch.nested._internal.nested_int:NestedIntNode")
pipeline_modes = _later("torch.distributed.pipelining._utils:InferenceMode")
forward_shapes = _later("torch.distributed.pipelining._utils:_StageForwardMeta")
backward_shapes = _later("torch.distributed.pipelining._utils:_StageBackwardMeta")
_optimized_module = _later("torch._dynamo.eval_frame:OptimizedModule")


@cache
def compiled_module() -> Callable[[nn.Module, Callable[[Any], Any]], nn.Module]:
    """What `torch.compile` makes of a module, given what wraps its call."""

    class CompiledModule(_optimized_module()):  # type: ignore[misc]
        """As PyTorch's, but that nothing looks at how the module could be compiled."""

        def _initialize(self) -> None:
            self.forward = self.dynamo_ctx(self._orig_mod.__call__)

    return CompiledModule
