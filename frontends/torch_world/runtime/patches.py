"""Every private name of PyTorch that is replaced while a program is recorded. Made for 2.13.

Each function makes the replacement of the attributes that its decorator names; its docstring says
why they have to be replaced. All are undone afterwards, and `check` finds those that a version of
PyTorch does not have (FL234).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from flint.frontends.torch_private import (
    FakeTensor,
    local_tensor,
    mesh_parts,
    mesh_ranks,
    set_mesh_ranks,
    states_by_optimizer,
    without_modes,
)
from flint.frontends.torch_world.record.session import Session
from flint.frontends.torch_world.runtime import buckets, ddp
from flint.frontends.torch_world.runtime.chunks import LazyChunks
from flint.frontends.torch_world.runtime.patching import Function, Patches
from flint.ir.program import Phase

if TYPE_CHECKING:
    from torch.distributed import P2POp
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.pipelining import PipelineStage


PRIVATE = Patches()
#: Installed when the program imports PIPELINES, which takes a second.
PIPELINE = Patches()
PIPELINES = "torch.distributed.pipelining.schedules"
_FAKE = "torch._subclasses.fake_tensor"
_MESH = "torch.distributed.device_mesh"
_PROPAGATOR = "torch.distributed.tensor._sharding_prop:ShardingPropagator"
_RANDOM = "torch.distributed.tensor._random:OffsetBasedRNGTracker"


# --- fake tensors ---------------------------------------------------------------------------------


@PRIVATE.replaces(f"{_FAKE}:FakeTensorMode.avoid_device_init")
def avoid_device_init(session: Session, original: object) -> property:
    """`torch.tensor(data, device=...)` would allocate on the device, which does not exist."""
    return property(lambda mode: True)


@PRIVATE.replaces(
    *(
        f"torch.nn.init:_no_grad_{name}_"
        for name in ("uniform", "normal", "trunc_normal", "fill", "zero")
    ),
    parameters=("tensor",),
)
def no_initial_values(session: Session, original: object) -> Function:
    """Initial values do not matter, and a truncated normal distribution looks at its values."""
    return lambda tensor, *args, **kwargs: tensor


@PRIVATE.replaces("torch:UntypedStorage.resize_")
def freed_by_size(session: Session, original: Function) -> Function:
    """FSDP frees what it gathered by giving its storage no bytes."""

    def resize(storage: torch.UntypedStorage, size: int) -> object:
        if size == 0:
            session.on_emptied(storage)
        return original(storage, size)

    return resize


# --- autograd and optimizers ----------------------------------------------------------------------


@PRIVATE.replaces("torch.autograd.graph:_engine_run_backward", parameters=("t_outputs",))
@PRIVATE.replaces("torch.autograd:_engine_run_backward", parameters=("t_outputs",))
def run_backward(session: Session, original: Function) -> Function:
    """Tells backward from the rest, callbacks of the engine (FSDP's last reduction) included."""

    @functools.wraps(original)
    def run(*args: object, **kwargs: object) -> object:
        session.phases.backward_starts(len(session.modules.stack))
        try:
            return original(*args, **kwargs)
        except SystemError:
            first = session.lost.first()
            if first is None:
                raise
            raise first from None
        finally:
            session.phases.backward_ends()

    return run


@PRIVATE.replaces("torch.optim.optimizer:_foreach_supported_types")
@PRIVATE.replaces("torch.utils._foreach_utils:_foreach_supported_types")
def foreach_types(session: Session, original: list[type]) -> list[type]:
    """Optimizers take their multi-tensor form for plain tensors, which fake ones stand for."""
    return _SameList([*original, FakeTensor])


@PRIVATE.replaces(*(f"torch:_fused_{name}_" for name in ("adam", "adamw", "sgd", "adagrad")))
def fused_update(session: Session, original: Function) -> Function:
    """One operator updates all parameters; DTensor takes longer over it than over all else.

    Where every list is sharded alike the update is that of the local tensors.
    """

    @functools.wraps(original)
    def update(*args: object, **kwargs: object) -> object:
        lists = [arg for arg in args if isinstance(arg, (list, tuple)) and arg]
        if not _sharded_alike(lists):
            return original(*args, **kwargs)
        return original(*map(_local_tensors, args), **kwargs)

    return update


@PRIVATE.replaces("torch.amp.grad_scaler:GradScaler._maybe_opt_step", parameters=("self",))
def always_steps(session: Session, original: object) -> Function:
    """Whether a gradient overflowed depends on data: none did."""
    return lambda self, optimizer, state, *args, **kwargs: optimizer.step(*args, **kwargs)


@PRIVATE.replaces("torch.amp.grad_scaler:GradScaler.update", parameters=("self",))
def scale_stays(session: Session, original: object) -> Function:
    """The new scale depends on whether gradients overflowed."""

    def update(scaler: torch.amp.GradScaler, new_scale: object = None) -> None:
        if scaler.is_enabled():
            states_by_optimizer(scaler).clear()

    return update


@PRIVATE.replaces(
    "torch.utils.data.dataloader:_BaseDataLoaderIter.__init__", parameters=("self", "loader")
)
def loader_seed(session: Session, original: Function) -> Function:
    """Draws a seed for workers, and reads it."""
    return _real_tensors(original)


# --- device meshes and DTensor --------------------------------------------------------------------


def _real_tensors(method: Function) -> Function:
    @functools.wraps(method)
    def run(*args: object, **kwargs: object) -> object:
        with without_modes():
            return method(*args, **kwargs)

    return run


@PRIVATE.replaces(f"{_MESH}:DeviceMesh.__getitem__", parameters=("self", "mesh_dim_names"))
@PRIVATE.replaces(f"{_MESH}:DeviceMesh._flatten", parameters=("self",))
@PRIVATE.replaces(f"{_MESH}:DeviceMesh._unflatten", parameters=("self",))
def mesh_method(session: Session, original: Function) -> Function:
    """Meshes compute with a real tensor of ranks."""
    return _noting_mesh(session, _real_tensors(original))


@PRIVATE.replaces(f"{_MESH}:DeviceMesh.mesh")
def mesh_tensor(session: Session, original: property) -> property:
    """Meshes compute with a real tensor of ranks."""
    return property(_real_tensors(original.__get__))


@PRIVATE.replaces(f"{_MESH}:DeviceMesh.__init__", parameters=("self", "device_type", "mesh"))
def mesh_init(session: Session, original: Function) -> Function:
    """Meshes keep a real tensor of ranks."""

    @functools.wraps(original)
    def init(
        self: object, device_type: str, mesh: object = None, *args: object, **kwargs: object
    ) -> None:
        if isinstance(mesh, FakeTensor):
            mesh = session.values.tolist(mesh)
        ranks = kwargs.get("_rank_map")  # of an `init_device_mesh` imported before it was replaced
        with without_modes():
            if isinstance(ranks, FakeTensor):
                kwargs["_rank_map"] = torch.tensor(
                    session.values.tolist(ranks), dtype=ranks.dtype, device="cpu"
                )
            original(self, device_type, mesh, *args, **kwargs)
        ranks = mesh_ranks(self)
        set_mesh_ranks(self, session.rank_maps.setdefault(ranks, ranks))
        session.device_meshes.append(self)

    return init


@PRIVATE.replaces(f"{_MESH}:DeviceMesh.__eq__", parameters=("self", "other"))
def mesh_equal(session: Session, original: object) -> Function:
    """Meshes are compared at every operator of DTensor, rank by rank: seconds for many ranks.

    Each list of ranks is kept once, so that lists are equal where they are the same.
    """

    def equal(self: DeviceMesh, other: object) -> bool:
        if self is other:
            return True
        return (
            type(other) is type(self)
            and mesh_ranks(self) is mesh_ranks(other)
            and mesh_parts(self) == mesh_parts(other)
        )

    return equal


@PRIVATE.replaces(f"{_PROPAGATOR}._propagate_tensor_meta_non_cached", parameters=("self",))
@PRIVATE.replaces(f"{_PROPAGATOR}.propagate_op_sharding_non_cached", parameters=("self",))
def propagation(session: Session, original: Function) -> Function:
    """DTensor runs each operator once more on global shapes; that is no work of the device."""

    @functools.wraps(original)
    def run(*args: object, **kwargs: object) -> object:
        session.paused += 1
        try:
            return original(*args, **kwargs)
        finally:
            session.paused -= 1

    return run


@PRIVATE.replaces(f"{_RANDOM}.__init__", parameters=("self", "device_mesh"))
def tracker_init(session: Session, original: object) -> Function:
    """The state of the random generator would be broadcast, and read."""

    def init(self: Any, device_mesh: object, run_state_sync: bool = True) -> None:
        self._device = session.device
        self._device_handle = torch.cuda
        self._use_distribute_region = True
        self.rng_states = {}

    return init


@PRIVATE.replaces(f"{_RANDOM}._distribute_region", parameters=("self", "spec"))
def distribute_region(session: Session, original: object) -> Function:
    """DTensor computes with the state of the random generator, which has no values."""

    @contextlib.contextmanager
    def region(self: object, spec: object, generator: object = None) -> Iterator[None]:
        yield

    return region


@PRIVATE.replaces(f"{_RANDOM}._manual_seed", parameters=("self",))
def tracker_seed(session: Session, original: object) -> Function:
    """As above: seeds do not matter."""
    return lambda self, parallel_seed: None


@PRIVATE.replaces("torch.distributed.tensor._dispatch:run_dtensor_rng_op", adds=True)
def rng_operator(session: Session, original: object) -> Function:
    """DTensor draws on CUDA by an operator that sets the generator's state, which has no values."""
    return lambda start, end, operator, *args, **kwargs: operator(*args, **kwargs)


# --- FSDP and DDP ---------------------------------------------------------------------------------


@PRIVATE.replaces(
    "torch.distributed.fsdp._fully_shard._fsdp_param:_chunk_with_empty",
    parameters=("tensor", "num_chunks", "dim"),
)
def lazy_chunks(session: Session, original: object) -> type[LazyChunks]:
    """One chunk is used of as many as there are ranks: making all takes minutes for thousands."""
    return LazyChunks


@PRIVATE.replaces("torch.distributed:Reducer", "torch.distributed.nn.api:Reducer", adds=True)
def reducer(session: Session, original: object) -> type[ddp.Reducer]:
    """The reducer of DistributedDataParallel, in C++, reads gradients' memory."""
    return ddp.Reducer


@PRIVATE.replaces("torch.distributed:Logger")
def ddp_logger(session: Session, original: object) -> type[ddp.Logger]:
    """Takes the C++ reducer."""
    return ddp.Logger


@PRIVATE.replaces("torch.distributed:_register_comm_hook")
def ddp_hook(session: Session, original: object) -> Function:
    """Takes the C++ reducer."""
    return ddp.register_comm_hook


@PRIVATE.replaces("torch.distributed:_register_builtin_comm_hook")
def ddp_builtin_hook(session: Session, original: object) -> Function:
    """Takes the C++ reducer."""
    return ddp.register_builtin_comm_hook


@PRIVATE.replaces("torch.nn.parallel.distributed:DistributedDataParallel._check_comm_hook")
def ddp_check_hook(session: Session, original: object) -> Function:
    """Looks at annotations that hooks for the Python bucket cannot satisfy."""
    return ddp.check_comm_hook


@PRIVATE.replaces("torch.nn.parallel.distributed:_verify_param_shape_across_processes")
def ddp_shapes(session: Session, original: object) -> Function:
    """Compares values that ranks exchange."""
    return ddp.verify_param_shapes


@PRIVATE.replaces("torch._C._distributed_c10d:FakeWork.get_future", adds=True)
def work_future(session: Session, original: object) -> Function:
    """Fake work has no future; a communication hook needs one."""
    return lambda work: buckets.future_of(work, session.under_way)


@PRIVATE.replaces("torch._C._distributed_c10d:Work.wait")
@PRIVATE.replaces("torch._C._distributed_c10d:FakeWork.wait")
def work_wait(session: Session, original: object) -> Function:
    """What follows on the stream waits for the collective."""

    def wait(work: dist.Work, *args: object, **kwargs: object) -> bool:
        session.on_work(work)
        return True

    return wait


# --- pipelines ------------------------------------------------------------------------------------


@PIPELINE.replaces(
    f"{PIPELINES}:_PipelineSchedule._warmup_p2p",
    parameters=("self", "stages", "has_backward", "p2p_done"),
)
def pipeline_vote(session: Session, original: object) -> Function:
    """Stages vote by messages, and the vote is read."""
    from flint.frontends.torch_world.runtime.pipelining import warm_up

    return warm_up


def _stage_method(name: str) -> Function:
    @PIPELINE.replaces(f"torch.distributed.pipelining.stage:PipelineStage.{name}")
    def method(session: Session, original: Function) -> Function:
        """Stages tell each other the shapes of activations by messages."""
        from flint.frontends.torch_world.runtime.pipelining import StageShapes

        return StageShapes(session.handover).replacement(name, original)

    return method


for _name in ("_send_meta", "_recv_meta", "_forward_metadata_inference"):
    _stage_method(_name)


@PIPELINE.replaces(
    "torch.distributed.pipelining.stage:PipelineStage._prepare_forward_infra",
    "torch.distributed.pipelining.stage:PipelineStage._prepare_backward_infra",
    parameters=("self", "num_microbatches"),
)
def stage_setup(session: Session, original: Function) -> Function:
    """Before its first step a stage runs one microbatch, to see shapes."""

    @functools.wraps(original)
    def run(*args: object, **kwargs: object) -> object:
        with session.phases.setup():
            return original(*args, **kwargs)

    return run


@PIPELINE.replaces(f"{PIPELINES}:PipelineScheduleSingle.step", parameters=("self",))
@PIPELINE.replaces(f"{PIPELINES}:PipelineScheduleMulti.step", parameters=("self",))
def schedule_step(session: Session, original: Function) -> Function:
    """The forward pass begins here: schedules gather parameters before any module runs."""

    @functools.wraps(original)
    def step(*args: object, **kwargs: object) -> object:
        session.phases.module_starts(len(session.modules.stack))
        with session.phases.part(Phase.FORWARD):
            return original(*args, **kwargs)

    return step


def _schedule_part(targets: tuple[str, ...], phase: Phase) -> None:
    @PIPELINE.replaces(*targets)
    def method(session: Session, original: Function) -> Function:
        """Schedules gather, add up and reduce between modules and backward passes."""

        @functools.wraps(original)
        def run(*args: object, **kwargs: object) -> object:
            with session.phases.part(phase):
                return original(*args, **kwargs)

        return run


_STAGE = "torch.distributed.pipelining.stage:_PipelineStageBase"
_schedule_part(
    (
        f"{_STAGE}.backward_one_chunk",
        f"{_STAGE}.backward_weight_one_chunk",
        f"{_STAGE}.perform_reduce_grad",
    ),
    Phase.BACKWARD,
)


def _stage_messages(name: str, phase: Phase) -> None:
    @PIPELINE.replaces(f"{_STAGE}.{name}", parameters=("self",))
    def method(session: Session, original: Function) -> Function:
        """Schedules send and receive in batches, forward and backward together."""

        @functools.wraps(original)
        def ops(stage: PipelineStage, chunk: int) -> list[P2POp]:
            found: list[P2POp] = original(stage, chunk)
            for op in found:
                session.on_message(op.tensor, phase)
            return found

        return ops


for _name, _phase in (
    ("get_fwd_recv_ops", Phase.FORWARD),
    ("get_fwd_send_ops", Phase.FORWARD),
    ("get_bwd_recv_ops", Phase.BACKWARD),
    ("get_bwd_send_ops", Phase.BACKWARD),
):
    _stage_messages(_name, _phase)


# --- what the replacements are made of ------------------------------------------------------------


def _sharded_alike(lists: Sequence[Any]) -> bool:
    """Whether tensors that belong together lie on one mesh in one way; scalars lie anywhere."""
    for together in zip(*lists, strict=False):
        distributed = [t for t in together if isinstance(t, DTensor)]
        if any(t.placements != distributed[0].placements for t in distributed):
            return False
        if any(t.device_mesh != distributed[0].device_mesh for t in distributed):
            return False
        if distributed and any(t.dim() for t in together if not isinstance(t, DTensor)):
            return False
    return not any(p.is_partial() for t in lists[0] for p in getattr(t, "placements", ()))


def _local_tensors(given: object) -> Any:
    if isinstance(given, (list, tuple)):
        return [_local_tensors(entry) for entry in given]
    return local_tensor(given) if isinstance(given, DTensor) else given


class _SameList(list[Any]):
    """A list that modules which imported the original under another name may still extend."""


def _noting_mesh(session: Session, method: Function) -> Function:
    @functools.wraps(method)
    def run(*args: object, **kwargs: object) -> object:
        mesh = method(*args, **kwargs)
        if all(mesh is not known for known in session.device_meshes):
            session.device_meshes.append(mesh)
        return mesh

    return run
