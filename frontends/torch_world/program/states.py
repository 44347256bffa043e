"""Memory that has a name when the step is over: parameters, buffers, gradients, optimizer state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor

from flint.frontends.torch_private import local_tensor, without_modes
from flint.frontends.torch_world.program.found_memory import DONATED_ROLES
from flint.frontends.torch_world.record.modules import ModulePaths
from flint.frontends.torch_world.record.recorder import Recorder
from flint.frontends.torch_world.record.recording import DeviceMeshInfo, Placement, StorageInfo
from flint.frontends.torch_world.record.storages import dtype_name

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class States:
    """Collects the optimizers of the recorded step and names storages at its end."""

    def __init__(self, recorder: Recorder, modules: ModulePaths, meshes: list[Any]) -> None:
        self._recorder = recorder
        self._modules = modules
        self._meshes = meshes
        self._infos: list[DeviceMeshInfo] = []
        self._mesh_indices: dict[int, int] = {}
        self._optimizers: dict[int, Any] = {}
        self._gradients: dict[int, tuple[Any, Any, int]] = {}
        self._named: dict[int, StorageInfo] | None = None
        self._began: dict[int, StorageInfo] = {}

    def begin(self) -> None:
        """The recorded step starts, unless another start follows: what has a name is found by it."""
        self._gradients.clear()
        with without_modes():
            self._began = {s: i for s, i in self._find().items() if i.role in DONATED_ROLES}

    def optimizer_steps(self, optimizer: torch.optim.Optimizer) -> None:
        """Before `optimizer.step`: afterwards the gradients may be gone."""
        self._optimizers[id(optimizer)] = optimizer
        parameters = _parameters(optimizer)
        if any(_local(parameter).device.type == "cpu" for parameter in parameters):
            kind = type(optimizer).__name__
            self._recorder.session.warnings[
                f"{kind} updates parameters in host memory: its time is not in the step"
            ] = None
        for parameter in parameters:
            if parameter.grad is not None:
                local = _local(parameter.grad)
                if local.is_cuda:
                    number = self._recorder.storages.number(local)
                    self._gradients[number] = (parameter, local, number)

    @property
    def named(self) -> dict[int, StorageInfo]:
        """Storages by number, as they were named at the end of the step."""
        if self._named is None:
            self.settle()
        assert self._named is not None
        return self._named

    def settle(self) -> None:
        """Name storages now: trainers clean up when they are left, and move models to the host."""
        with without_modes():
            self._named = self._as_begun(self._find())
            self._recorder.storages.settle()

    def _as_begun(self, found: dict[int, StorageInfo]) -> dict[int, StorageInfo]:
        """Where the step puts other memory behind a name (`p.data = ...`), that which it finds has it.

        DDP makes its buckets anew in the first step and keeps them: they stand for those of later steps.
        """
        number = self._recorder.storages.number
        kept = {*self._began, *(number(_local(b)) for b in self._modules.buckets())}
        left: dict[tuple[str, str], list[int]] = {}
        for storage, info in self._began.items():
            if storage not in found or found[storage].role not in DONATED_ROLES:
                left.setdefault((info.role, info.name), []).append(storage)
        named: dict[int, StorageInfo] = {}
        for storage, info in found.items():
            places = left.get((info.role, info.name)) if storage not in kept else None
            place = places.pop(0) if places else storage
            named.setdefault(place, info if place == storage else self._began[place])
        return named

    def _find(self) -> dict[int, StorageInfo]:
        for mesh in self._meshes:
            self._mesh_index(mesh)
        parameters = self._modules.named_parameters()
        found: dict[int, StorageInfo] = {}
        for name, parameter in parameters.values():
            self._name(found, parameter, "parameter", name)
        for name, buffer in self._modules.named_buffers().items():
            self._name(found, buffer, "buffer", name)
        for name, parameter in parameters.values():
            if isinstance(gradient := getattr(parameter, "main_grad", None), torch.Tensor):
                self._name(found, gradient, "gradient", name)  # Megatron's, in one buffer
        for number, bucket in enumerate(self._modules.buckets()):
            self._name(found, bucket, "buffer", f"ddp.bucket{number}")
        for parameter, gradient, _ in self._gradients.values():
            name = parameters.get(id(parameter), ("", None))[0]
            self._name(found, gradient, "gradient", name, like=parameter)
        for optimizer in self._optimizers.values():
            self._name_states(found, optimizer, parameters)
        for storage, tensor in self._recorder.host_inputs.items():
            if storage not in found:
                found[storage] = StorageInfo(
                    tensor.num_bytes, "input", "", tensor.shape, tensor.dtype
                )
        return found

    def _name_states(
        self,
        found: dict[int, StorageInfo],
        optimizer: torch.optim.Optimizer,
        parameters: dict[int, tuple[str, Any]],
    ) -> None:
        updated, sources = _parameters(optimizer), self._recorder.host_sources
        # Where none is the model's they are copies in float32; else trained beside the model.
        copies = bool(parameters) and all(id(p) not in parameters for p in updated)
        role, name = ("optimizer", "master_weight") if copies else ("parameter", "")
        for parameter in updated:
            if id(parameter) not in parameters:
                self._name(found, parameter, role, name)
        for parameter, states in optimizer.state.items():
            path = parameters.get(id(parameter), ("", None))[0]
            offloaded = self._recorder.storages.number(_local(parameter)) in sources
            for key, value in states.items() if isinstance(states, dict) else ():
                if isinstance(value, torch.Tensor):
                    place = f"{path}/{key}" if path else str(key)
                    self._name(
                        found, value, "optimizer", place, offloaded=offloaded and value.dim() > 0
                    )

    def _name(
        self,
        found: dict[int, StorageInfo],
        tensor: torch.Tensor,
        role: str,
        name: str,
        like: DTensor | None = None,
        offloaded: bool = False,
    ) -> None:
        """Name a tensor: one of the host if it is `offloaded`, or the step copies from it."""
        local = _local(tensor)
        on_host = not local.is_cuda
        sources = self._recorder.host_sources
        if on_host and not sources:
            return
        number = self._recorder.storages.number(local)
        if number in found or (on_host and not offloaded and number not in sources):
            return
        found[number] = StorageInfo(
            num_bytes=int(local.untyped_storage().nbytes()),
            role=role,
            name=name,
            shape=tuple(local.shape),
            dtype=dtype_name(local.dtype),
            placement=self._placement(tensor if isinstance(tensor, DTensor) else like),
            on_host=on_host,
        )

    def _placement(self, tensor: torch.Tensor) -> Placement | None:
        if not isinstance(tensor, DTensor):
            return None
        placements = tensor.placements
        return Placement(
            mesh=self._mesh_index(tensor.device_mesh),
            global_shape=tuple(tensor.shape),
            shards=tuple(getattr(p, "dim", -1) if not p.is_replicate() else -1 for p in placements),
            strided=tuple(hasattr(p, "split_factor") for p in placements),
        )

    def _mesh_index(self, mesh: DeviceMesh) -> int:
        index = self._mesh_indices.get(id(mesh))
        if index is None:
            info = mesh_info(mesh)
            if info not in self._infos:
                self._infos.append(info)
            index = self._mesh_indices[id(mesh)] = self._infos.index(info)
        return index

    def meshes(self) -> tuple[DeviceMeshInfo, ...]:
        """All meshes of the program, each once, in the order in which they were made."""
        return tuple(self._infos)


def mesh_info(mesh: DeviceMesh) -> DeviceMeshInfo:
    """A DeviceMesh as plain data."""
    names = mesh.mesh_dim_names or tuple(f"dim_{i}" for i in range(mesh.ndim))
    return DeviceMeshInfo(tuple(names), tuple(mesh.shape), tuple(mesh.mesh.flatten().tolist()))


def _parameters(optimizer: torch.optim.Optimizer) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return local_tensor(tensor) if isinstance(tensor, DTensor) else tensor
