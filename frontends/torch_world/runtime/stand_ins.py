"""Public functions of PyTorch that need hardware or other ranks, and what stands in for them.

`cuda` means the virtual device, `nccl` and every other backend the fake process group. Undone
afterwards like the patches on private names.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from flint.errors import FlintError
from flint.frontends.torch_private import device_constructors, fake_store, without_modes
from flint.frontends.torch_world.record.session import Session
from flint.frontends.torch_world.runtime.device import NAME, Device
from flint.frontends.torch_world.runtime.objects import OBJECT_COLLECTIVES
from flint.frontends.torch_world.runtime.patching import Function, Make, Patch, Patches
from flint.frontends.torch_world.runtime.weights import SafeTensors, load_file

PUBLIC = Patches()
_C10D = "torch.distributed.distributed_c10d"
_BOTH = ("torch.distributed", _C10D)

#: Functions of `torch.cuda` that are the device module's own.
_CUDA = (
    *("is_available", "is_initialized", "device_count", "current_device", "set_device", "device"),
    *("synchronize", "empty_cache", "init", "_lazy_init", "_is_compiled", "is_bf16_supported"),
    *("Stream", "Event", "stream", "StreamContext", "set_stream", "current_stream"),
    *("default_stream", "memory_stats", "memory_summary", "mem_get_info", "memory_allocated"),
    *("max_memory_allocated", "memory_reserved", "max_memory_reserved", "ipc_collect"),
    *("reset_peak_memory_stats", "reset_max_memory_allocated", "utilization"),
    *("reset_accumulated_memory_stats", "set_per_process_memory_fraction"),
    *("get_device_properties", "get_device_name", "get_device_capability"),
    *("get_rng_state", "set_rng_state", "get_rng_state_all", "set_rng_state_all", "initial_seed"),
    *("manual_seed", "manual_seed_all", "seed", "seed_all", "is_current_stream_capturing"),
)
_ACCELERATOR = {
    "current_stream": "current_stream",
    "set_stream": "set_stream",
    "synchronize": "synchronize",
    "current_device_index": "current_device",
    "set_device_index": "set_device",
    "device_count": "device_count",
    "is_available": "is_available",
    "empty_cache": "empty_cache",
    "memory_stats": "memory_stats",
    "memory_allocated": "memory_allocated",
    "max_memory_allocated": "max_memory_allocated",
    "memory_reserved": "memory_reserved",
    "max_memory_reserved": "max_memory_reserved",
    "reset_peak_memory_stats": "reset_peak_memory_stats",
}


def stand_ins() -> list[Patch]:
    """All of them, those of `torch.cuda` and `torch.accelerator` that this version has."""
    cuda = [Patch(f"torch.cuda:{name}", _device_function(name)) for name in _CUDA]
    memory = [Patch(f"torch.cuda.memory:{name}", _device_function(name)) for name in _MEMORY]
    accelerator = [
        Patch(f"torch.accelerator:{name}", _device_function(own))
        for name, own in _ACCELERATOR.items()
    ]
    files = [
        Patch("safetensors:safe_open", lambda session, original: SafeTensors),
        Patch("safetensors.torch:load_file", lambda session, original: load_file),
    ]
    return [*PUBLIC.all, *(p for p in (*cuda, *memory, *accelerator, *files) if p.holds())]


_MEMORY = tuple(name for name in _CUDA if "memory" in name)


def _device_function(name: str) -> Make:
    def make(session: Session, original: object) -> object:
        return getattr(getattr(torch, NAME), name)

    return make


# --- devices --------------------------------------------------------------------------------------


@PUBLIC.replaces("torch:Tensor.is_cuda")
def is_cuda(session: Session, original: object) -> property:
    """Programs assert that their tensors are on the device."""
    return property(lambda tensor: tensor.device.type == NAME)


def _on_device(device: Device) -> Device:
    """The virtual device for whatever means `cuda`, anything else as it is."""
    if isinstance(device, str) and device.partition(":")[0] in ("cuda", NAME):
        return torch.device(NAME, 0)
    if isinstance(device, torch.device) and device.type in ("cuda", NAME):
        return torch.device(NAME, 0)
    return device


@PUBLIC.replaces("torch:Tensor.to")
def to(session: Session, original: Function) -> Function:
    """PyTorch looks `cuda` up before an operator is called, and finds no such device."""

    @functools.wraps(original)
    def move(tensor: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        if args and isinstance(args[0], (str, torch.device)):
            args = (_on_device(args[0]), *args[1:])
        elif args and type(args[0]) is int:
            args = (torch.device(NAME, 0), *args[1:])
        if "device" in kwargs:
            kwargs["device"] = _on_device(kwargs["device"])
        return original(tensor, *args, **kwargs)

    return move


@PUBLIC.replaces("torch:Tensor.cuda")
def cuda(session: Session, original: object) -> Function:
    """As above."""

    def move(
        tensor: torch.Tensor,
        device: object = None,
        non_blocking: bool = False,
        memory_format: object = None,
    ) -> torch.Tensor:
        return tensor.to(torch.device(NAME, 0), non_blocking=non_blocking)

    return move


@PUBLIC.replaces("torch:tensor", "torch:as_tensor", "torch:asarray", "torch:Tensor.new_tensor")
def tensor_of_data(session: Session, original: Function) -> Function:
    """As above."""
    # `with torch.device(...)` knows functions by identity, and remembers them from here on.
    device_constructors()

    @functools.wraps(original)
    def make(*args: object, **kwargs: object) -> object:
        if kwargs.get("device") is not None:
            kwargs["device"] = _on_device(kwargs["device"])
        return original(*args, **kwargs)

    return make


@PUBLIC.replaces("torch.utils._device:DeviceContext.__init__")
def device_context(session: Session, original: Function) -> Function:
    """`with torch.device("cuda")` and `torch.set_default_device("cuda")`, as above."""
    return lambda context, device: original(context, _on_device(torch.device(device)))


@PUBLIC.replaces("torch:Generator")
def generator(session: Session, original: type) -> type:
    """Random numbers are not drawn; the host's generator does."""

    class Generator(original):
        def __new__(cls, device: object = "cpu") -> torch.Generator:
            return original.__new__(cls, "cpu")

    return Generator


@PUBLIC.replaces("torch:Tensor.pin_memory")
def pin_memory(session: Session, original: object) -> Function:
    """Pinning allocates."""
    return lambda tensor, *args, **kwargs: tensor


@PUBLIC.replaces("torch:Tensor.record_stream", adds=True)
def record_stream(session: Session, original: object) -> Function:
    """Tells the allocator, which there is none of."""
    return lambda tensor, stream: None


@PUBLIC.replaces("torch.amp.autocast_mode:autocast.__init__")
def autocast(session: Session, original: Function) -> Function:
    """Autocast of `cuda` is that of the virtual device; half precision is bf16 or f16 as asked."""

    @functools.wraps(original)
    def init(
        self: object,
        device_type: str,
        dtype: torch.dtype | None = None,
        *args: object,
        **kwargs: object,
    ) -> None:
        if device_type in ("cuda", NAME):
            device_type, dtype = NAME, dtype or torch.float16
        original(self, device_type, dtype, *args, **kwargs)

    return init


@PUBLIC.replaces("torch:clear_autocast_cache")
def clear_casts(session: Session, original: Function) -> Function:
    """Leaving the outermost autocast forgets the casts of parameters, those of this device too."""

    def clear() -> None:
        session.autocast.forget()
        original()

    return clear


@PUBLIC.replaces("torch:is_autocast_enabled", "torch:get_autocast_dtype")
def autocast_state(session: Session, original: Function) -> Function:
    """As above."""

    def ask(device_type: str | None = None) -> object:
        return original(NAME if device_type in (None, "cuda") else device_type)

    return ask


@PUBLIC.replaces("torch.cuda.amp.autocast_mode:autocast.__init__")
def cuda_autocast(session: Session, original: object) -> Function:
    """As above, for the older spelling."""

    def init(
        self: object,
        enabled: bool = True,
        dtype: torch.dtype | None = torch.float16,
        cache_enabled: bool = True,
    ) -> None:
        torch.autocast.__init__(self, NAME, dtype, enabled, cache_enabled)

    return init


@PUBLIC.replaces("torch.cuda.nvtx:range_push", "torch.cuda.nvtx:range_pop", "torch.cuda.nvtx:mark")
def nvtx(session: Session, original: object) -> Function:
    """Marks for a profiler that is not there."""
    return lambda *args, **kwargs: 0


@PUBLIC.replaces("torch.autograd.profiler:record_function.__enter__")
def enter_range(session: Session, original: object) -> Function:
    """Ranges of a profiler would be operators."""
    return lambda profiled: profiled


@PUBLIC.replaces("torch.autograd.profiler:record_function.__exit__")
def leave_range(session: Session, original: object) -> Function:
    """As above."""
    return lambda profiled, *error: None


@PUBLIC.replaces("torch.cuda.nccl:version")
def nccl_version(session: Session, original: object) -> Function:
    """Logged with every error; the CPU build has none."""
    return lambda: (2, 27, 3)


@PUBLIC.replaces("torch.cuda.amp.common:amp_definitely_not_available")
def amp_available(session: Session, original: object) -> Function:
    """The virtual device has mixed precision."""
    return lambda: False


# --- modules and compilers ------------------------------------------------------------------------


@PUBLIC.replaces("torch.nn:Module.__call__")
def module_call(session: Session, original: Function) -> Function:
    """Follows which module runs, also when an exception leaves it (checkpointing stops early)."""
    modules, phases = session.modules, session.phases

    def call(module: nn.Module, *args: object, **kwargs: object) -> object:
        phases.module_starts(len(modules.stack))
        modules.enter(module)
        try:
            return original(module, *args, **kwargs)
        finally:
            modules.leave()

    return call


@PUBLIC.replaces("torch:compile")
def compile_nothing(session: Session, original: object) -> Function:
    """Operators are recorded as they are written; compiling would only take time."""

    def compile_(model: Function | None = None, **kwargs: object) -> Function:
        return model if model is not None else (lambda function: function)

    return compile_


@PUBLIC.replaces("torch.jit:script")
def no_script(session: Session, original: object) -> Function:
    """Scripts would run in C++, and cannot be compiled over functions that are replaced."""
    return lambda obj=None, *args, **kwargs: obj


@PUBLIC.replaces("torch.nn:Module.compile")
def compile_module(session: Session, original: object) -> Function:
    """As above."""
    return lambda module, *args, **kwargs: None


@PUBLIC.replaces("torch.utils.data:DataLoader.__init__")
def data_loader(session: Session, original: Function) -> Function:
    """Workers are processes that know nothing of fake tensors: data is loaded in this one."""
    alone = {
        "num_workers": 0,
        "pin_memory": False,
        "timeout": 0,
        "prefetch_factor": None,
        "persistent_workers": False,
        "multiprocessing_context": None,
    }

    @functools.wraps(original)
    def init(
        self: object,
        dataset: object,
        batch_size: object = 1,
        shuffle: object = None,
        *args: object,
        **kwargs: object,
    ) -> None:
        names = ("sampler", "batch_sampler", "num_workers", "collate_fn", "pin_memory", "drop_last")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        given = {name: alone.get(name, value) for name, value in given.items()}
        original(self, dataset, batch_size, shuffle, **given)

    return init


@PUBLIC.replaces(
    "torch.utils.data.sampler:RandomSampler.__iter__",
    "torch.utils.data.sampler:SubsetRandomSampler.__iter__",
    "torch.utils.data.distributed:DistributedSampler.__iter__",
)
def shuffle(session: Session, original: Function) -> Function:
    """Which samples come first is drawn for real: it is the host's work, and read at once."""

    @functools.wraps(original)
    def indices(sampler: Iterable[int]) -> Iterator[Any]:
        with without_modes():
            drawn = list(original(sampler))
        return iter(drawn)

    return indices


@PUBLIC.replaces("torch.nn.functional:scaled_dot_product_attention")
def attention(session: Session, original: Function) -> Function:
    """Attention stays one operator, forward and backward, as the fused kernels of a device."""

    @functools.wraps(original, assigned=("__name__",))  # context parallelism replaces it by name
    def attend(*args: Any, **kwargs: Any) -> torch.Tensor:
        return _attention(*args, **kwargs)

    return attend


# --- process groups -------------------------------------------------------------------------------


@PUBLIC.replaces(*(f"{module}:init_process_group" for module in _BOTH))
def init_process_group(session: Session, original: Function) -> Function:
    """The fake process group of the mesh's size, whatever backend the program names."""

    def init(
        backend: object = None,
        init_method: object = None,
        timeout: object = None,
        world_size: int = -1,
        rank: int = -1,
        *args: object,
        **kwargs: object,
    ) -> None:
        if world_size not in (-1, session.world_size):
            raise world_differs("init_process_group was given", world_size, session)
        fake = (NAME, None, timeout, session.world_size, session.rank, fake_store()())
        original(*fake, group_name=kwargs.get("group_name", ""))

    return init


@PUBLIC.replaces(*(f"{module}:destroy_process_group" for module in _BOTH))
def destroy_process_group(session: Session, original: object) -> Function:
    """The groups are asked for their ranks when the program is over."""
    return lambda group=None: None


def world_differs(what: str, size: int, session: Session) -> FlintError:
    """FL232: the program names another number of ranks than the mesh has."""
    help_ = "let the program read WORLD_SIZE"
    if size > 0:
        help_ = f"capture with a mesh of {size} devices, or {help_}"
    return FlintError(
        "FL232", f"{what} {size} ranks, but the mesh has {session.world_size}", help=help_
    )


@PUBLIC.replaces(
    *(f"{module}:new_group" for module in _BOTH), "torch.distributed.device_mesh:new_group"
)
def new_group(session: Session, original: Function) -> Function:
    """Notes the ranks of every group; those without this rank need nothing else."""

    @functools.wraps(original)
    def make(ranks: Sequence[int] | None = None, *args: object, **kwargs: object) -> object:
        members = range(session.world_size) if ranks is None else ranks
        session.world_groups[tuple(sorted(members))] = None
        if session.rank not in members:
            return dist.GroupMember.NON_GROUP_MEMBER
        names = ("timeout", "backend", "pg_options", "use_local_synchronization", "group_desc")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        for name in ("backend", "pg_options", "device_id"):
            given.pop(name, None)
        return original(ranks, **given)

    return make


@PUBLIC.replaces(
    *(f"{module}:split_group" for module in _BOTH), "torch.distributed.device_mesh:split_group"
)
def split_group(session: Session, original: object) -> Function:
    """Makes the group of this rank; the others are only noted."""

    def split(
        parent_pg: dist.ProcessGroup | None = None,
        split_ranks: Any = None,
        *args: object,
        **kwargs: object,
    ) -> dist.ProcessGroup | None:
        parent = dist.get_process_group_ranks(parent_pg or dist.group.WORLD)
        mine = None
        for ranks in split_ranks:
            members = tuple(parent[rank] for rank in ranks)
            session.world_groups[tuple(sorted(members))] = None
            mine = members if session.rank in members else mine
        if mine is None:
            return None
        return dist.new_group(list(mine), group_desc=kwargs.get("group_desc"))

    return split


@PUBLIC.replaces(
    "torch.distributed:init_device_mesh",
    "torch.distributed.device_mesh:init_device_mesh",
    "torch.distributed.tensor:init_device_mesh",
    "torch.distributed.fsdp._fully_shard._fsdp_init:init_device_mesh",
)
def init_device_mesh(session: Session, original: Function) -> Function:
    """A mesh of another size than the one that was asked for is an error that names both."""

    @functools.wraps(original)
    def make(
        device_type: str, mesh_shape: Sequence[int], *args: object, **kwargs: object
    ) -> object:
        size = 1
        for length in mesh_shape:
            size *= length
        if size != session.world_size:
            raise world_differs(f"init_device_mesh was given {tuple(mesh_shape)},", size, session)
        if not dist.is_initialized():
            dist.init_process_group()
        with torch.device("cpu"), without_modes():
            return original(
                NAME if device_type == "cuda" else device_type, mesh_shape, *args, **kwargs
            )

    return make


@PUBLIC.replaces(*(f"torch.distributed:is_{name}_available" for name in ("nccl", "gloo")))
def has_backend(session: Session, original: object) -> Function:
    """Every backend is there."""
    return lambda: True


@PUBLIC.replaces(*(f"{module}:get_backend" for module in _BOTH))
def get_backend(session: Session, original: object) -> Function:
    """Programs choose by it; they were written for nccl."""
    return lambda group=None: "nccl"


@PUBLIC.replaces(*(f"{module}:barrier" for module in _BOTH))
def barrier(session: Session, original: object) -> Function:
    """Host synchronisation moves no data."""
    return lambda *args, **kwargs: None


def _object_collective(name: str) -> Function:
    @PUBLIC.replaces(*(f"{module}:{name}" for module in _BOTH))
    def collective(session: Session, original: object) -> object:
        """Fake tensors carry no pickles."""
        return getattr(session.objects, name)

    return collective


for _name in OBJECT_COLLECTIVES:
    _object_collective(_name)


# --- attention ------------------------------------------------------------------------------------


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    aten = torch.ops.aten
    if query.dim() != 4:
        four = [_four_dimensions(tensor) for tensor in (query, key, value)]
        mask = _four_dimensions(attn_mask) if attn_mask is not None else None
        out = _attention(four[0], four[1], four[2], mask, dropout_p, is_causal, scale, enable_gqa)
        return out.reshape(*query.shape[:-1], value.shape[-1])
    same = query.shape[-1] == value.shape[-1]
    if attn_mask is None and same:
        return aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, scale=scale
        )[0]
    if key.shape[1] != query.shape[1]:
        repeat = query.shape[1] // key.shape[1]
        key, value = (t.repeat_interleave(repeat, 1) for t in (key, value))
    bias = _bias(attn_mask, query, key)
    return aten._scaled_dot_product_efficient_attention(
        query, key, value, bias, torch.is_grad_enabled(), dropout_p, is_causal, scale=scale
    )[0]


def _four_dimensions(tensor: torch.Tensor) -> torch.Tensor:
    missing = 4 - tensor.dim()
    return tensor[(None,) * missing] if missing > 0 else tensor.flatten(0, -missing)


def _bias(mask: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor | None:
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(~mask, float("-inf"))
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


@contextlib.contextmanager
def single_thread() -> Iterator[None]:
    """Backward runs in the calling thread, where the modes are."""
    before = torch.autograd.is_multithreading_enabled()
    torch.autograd.set_multithreading_enabled(False)
    try:
        yield
    finally:
        torch.autograd.set_multithreading_enabled(before)
