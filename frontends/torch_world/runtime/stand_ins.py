"""Public functions of PyTorch that need hardware or other ranks, and what stands in for them.

`cuda` means the virtual device, `nccl` and every other backend the fake process group. Undone
afterwards like the patches on private names.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from flint.errors import FlintError
from flint.frontends.torch_private import fake_store, without_modes
from flint.frontends.torch_world.device.cuda import device_functions
from flint.frontends.torch_world.device.device import NAME, SHOWN
from flint.frontends.torch_world.device.devices import DEVICES
from flint.frontends.torch_world.device.lazy import LAZY
from flint.frontends.torch_world.device.tensors import TENSORS
from flint.frontends.torch_world.record.session import Session
from flint.frontends.torch_world.runtime.attention import ATTENTION
from flint.frontends.torch_world.runtime.coalesced import COALESCED
from flint.frontends.torch_world.runtime.compilers import COMPILERS
from flint.frontends.torch_world.runtime.files import FILES, SAFETENSORS
from flint.frontends.torch_world.runtime.graphs import GRAPHS
from flint.frontends.torch_world.runtime.objects import MEETINGS
from flint.frontends.torch_world.runtime.patching import Function, Make, Patch, Patches
from flint.frontends.torch_world.runtime.recurrent import RECURRENT

PUBLIC = Patches()
_C10D = "torch.distributed.distributed_c10d"
_BOTH = ("torch.distributed", _C10D)

#: Where PyTorch keeps functions of devices; a name is that of the device's module, except these.
_MODULES = (
    *("torch.cuda", "torch.cuda.memory", "torch.cuda.random", "torch.cuda.streams"),
    "torch.accelerator",
)
_ACCELERATOR = {"set_device_index": "set_device", "set_device_idx": "set_device"}


def stand_ins() -> list[Patch]:
    """All of them, those of `torch.cuda` and `torch.accelerator` that this version has."""
    found = [
        Patch(f"{module}:{name}", _device_function(name))
        for module in _MODULES
        for name in device_functions()
    ]
    found += [
        Patch(f"torch.accelerator:{name}", _device_function(own))
        for name, own in _ACCELERATOR.items()
    ]
    always = [
        *DEVICES.all,
        *TENSORS.all,
        *LAZY.all,
        *RECURRENT.all,
        *FILES.all,
        *ATTENTION.all,
        *COALESCED.all,
        *COMPILERS.all,
        *GRAPHS.all,
        *PUBLIC.all,
        *MEETINGS.all,
    ]
    return [*always, *(patch for patch in (*found, *SAFETENSORS.all) if patch.holds())]


def _device_function(name: str) -> Make:
    def make(session: Session, original: object) -> object:
        return getattr(getattr(torch, NAME), name)

    return make


# --- modules and compilers ------------------------------------------------------------------------


@PUBLIC.replaces("torch.nn:Module.__call__")
def module_call(session: Session, original: Function) -> Function:
    """Follows which module runs, also when an exception leaves it (checkpointing stops early)."""
    modules, phases = session.modules, session.phases

    def call(module: nn.Module, *args: object, **kwargs: object) -> object:
        phases.module_starts(len(modules.stack), module)
        modules.enter(module)
        try:
            return original(module, *args, **kwargs)
        finally:
            modules.leave()

    return call


@PUBLIC.replaces("torch.jit:script")
def no_script(session: Session, original: Function) -> Function:
    """Scripts would run in C++, and cannot be compiled over functions that are replaced.

    Those of forward-mode derivatives are PyTorch's own, and it keeps their graphs.
    """

    def script(obj: object = None, *args: object, **kwargs: object) -> object:
        if getattr(obj, "__module__", None) in _DERIVATIVES:
            with without_modes():
                return original(obj, *args, **kwargs)
        return obj

    return script


_DERIVATIVES = ("torch._decomp.decompositions", "torch._decomp.decompositions_for_jvp")


@PUBLIC.replaces("torch.nn:DataParallel.__init__")
def data_parallel(session: Session, original: object) -> Function:
    """A process of a distributed program has one device."""

    def init(*args: object, **kwargs: object) -> None:
        raise FlintError(
            "FL235",
            "torch.nn.DataParallel divides a batch among the devices of one process, but a recorded rank has one",
            help="use torch.nn.parallel.DistributedDataParallel",
        )

    return init


@PUBLIC.replaces("threading:excepthook")
def thread_ends(session: Session, original: Function) -> Function:
    """Modes belong to a thread: others may fail at what they find, which is said."""

    def hook(args: threading.ExceptHookArgs) -> None:
        first = str(args.exc_value).splitlines()[:1]
        session.warnings.setdefault(
            f"a thread of the program ended with {args.exc_type.__name__}: {' '.join(first)[:200]}"
        )
        original(args)

    return hook


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


# --- process groups -------------------------------------------------------------------------------


@PUBLIC.replaces(
    *(f"{module}:init_process_group" for module in (*_BOTH, "torch.distributed.device_mesh"))
)
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
        session.backends[dist.group.WORLD.group_name] = _backend(backend)

    return init


@PUBLIC.replaces("torch.multiprocessing:spawn")
def spawn(session: Session, original: object) -> Function:
    """A script that starts the ranks of a node itself is recorded as the one that Flint asks for."""

    def start(
        fn: Callable[..., object],
        args: tuple[object, ...] = (),
        nprocs: int = 1,
        *rest: object,
        **options: object,
    ) -> None:
        fn(session.rank % nprocs, *args)

    return start


@PUBLIC.replaces("torch.distributed.rpc:init_rpc", adds=True)
def no_rpc(session: Session, original: object) -> Function:
    """Calls of other processes run their functions there, which nothing here answers."""

    def init(name: object = "", *args: object, **kwargs: object) -> None:
        raise FlintError(
            "FL235",
            "torch.distributed.rpc cannot be recorded: its calls run in another process",
            help="record a program that communicates through collectives or messages",
        )

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
        members = tuple(sorted(range(session.world_size) if ranks is None else ranks))
        session.world_groups[members] = None
        if session.rank not in members:
            return dist.GroupMember.NON_GROUP_MEMBER
        names = ("timeout", "backend", "pg_options", "use_local_synchronization", "group_desc")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        backend = given.pop("backend", None)
        for name in ("pg_options", "device_id"):
            given.pop(name, None)
        made = original(ranks, **given)
        copy = session.made_of.get(members, int(len(members) == session.world_size))
        session.copies[made.group_name], session.made_of[members] = copy, copy + 1
        session.backends[made.group_name] = _backend(backend)
        return made

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
                SHOWN if device_type == NAME else device_type, mesh_shape, *args, **kwargs
            )

    return make


@PUBLIC.replaces(*(f"torch.distributed:is_{name}_available" for name in ("nccl", "gloo")))
def has_backend(session: Session, original: object) -> Function:
    """Every backend is there."""
    return lambda: True


@PUBLIC.replaces(*(f"{module}:get_backend" for module in _BOTH))
def get_backend(session: Session, original: Callable[..., str]) -> Function:
    """What the program asked for: it chooses by it."""

    def backend(group: dist.ProcessGroup | None = None) -> str:
        if not dist.is_initialized():
            return original(group)  # an error
        return session.backends.get((group or dist.group.WORLD).group_name, _DEFAULT_BACKEND)

    return backend


_DEFAULT_BACKEND = "nccl"


def _backend(asked: object) -> str:
    """The backend of device tensors: of `cpu:gloo,cuda:nccl` the second."""
    if not isinstance(asked, str) or asked in ("", "undefined"):
        return _DEFAULT_BACKEND
    of_devices = dict(part.partition(":")[::2] for part in asked.lower().split(","))
    return of_devices.get(SHOWN) or next(iter(of_devices))


@PUBLIC.replaces("socket:gethostname", "platform:node")
def host_name(session: Session, original: Function) -> Function:
    """This machine is the first node; the others have names of their own."""
    node = session.node

    def name() -> str:
        own: str = original()
        return f"{own}-node{node}" if node else own

    return name


@contextlib.contextmanager
def single_thread() -> Iterator[None]:
    """Backward runs in the calling thread, where the modes are."""
    before = torch.autograd.is_multithreading_enabled()
    torch.autograd.set_multithreading_enabled(False)
    try:
        yield
    finally:
        torch.autograd.set_multithreading_enabled(before)
