"""Tensors without data that behave as tensors of a GPU: moved, copied, printed, read and pickled."""

from __future__ import annotations

import copy
import functools
import itertools
import threading
from collections.abc import Callable, Sequence
from inspect import Parameter, Signature
from types import GetSetDescriptorType
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from flint.frontends.torch_private import (
    FakeTensor,
    OpOverload,
    apply_to,
    local_tensor,
    nested_int_of,
    own_buffers,
    own_parameters,
    storage_address,
)
from flint.frontends.torch_world.device.device import virtual_device
from flint.frontends.torch_world.device.devices import on_virtual
from flint.frontends.torch_world.record.session import Session
from flint.frontends.torch_world.runtime.patching import Function, Patches

TENSORS = Patches()
_FAKE = "torch._subclasses.fake_tensor"
_PINNED = "_flint_pinned"


# --- one kind of tensor ---------------------------------------------------------------------------


@TENSORS.replaces("torch:Tensor._make_subclass")
def one_kind(session: Session, original: Function) -> object:
    """Tensors of host and device are of one kind to C++: `parameter.data = moved` asks for that."""

    def make_subclass(
        cls: Any, data: torch.Tensor, requires_grad: bool = False, **kwargs: Any
    ) -> Any:
        device = kwargs.get("device_for_backend_keys")
        if device is not None and device.type in ("cpu", "meta"):
            kwargs["device_for_backend_keys"] = virtual_device()
        return original(cls, data, requires_grad, **kwargs)

    # The compiler, where a program imports it, holds its own version against this.
    make_subclass.__signature__ = _SIGNATURE  # type: ignore[attr-defined]
    return staticmethod(make_subclass)


_BY_NAME = Parameter.POSITIONAL_OR_KEYWORD
_SIGNATURE = Signature(
    [
        Parameter("cls", _BY_NAME, annotation=type[Any]),
        Parameter("data", _BY_NAME, annotation=torch.Tensor),
        Parameter("requires_grad", _BY_NAME, default=False, annotation=bool),
        Parameter("kwargs", Parameter.VAR_KEYWORD, annotation=Any),
    ],
    return_annotation=Any,
)


@TENSORS.replaces("torch:Tensor._make_wrapper_subclass")
def wrapper_of_one_kind(session: Session, original: Function) -> object:
    """Tensors that hold others (8-bit states, float8 weights) are on the device that C++ knows."""

    @functools.wraps(original)
    def make_wrapper(cls: Any, *args: Any, **kwargs: Any) -> Any:
        known = {k: on_virtual(v) if k == "device" else v for k, v in kwargs.items()}
        places = (on_virtual(a) if isinstance(a, torch.device) else a for a in args)
        return original(cls, *places, **known)

    return staticmethod(make_wrapper)


@TENSORS.replaces("torch.utils._foreach_utils:_group_tensors_by_device_and_dtype")
@TENSORS.replaces("torch.optim.optimizer:_group_tensors_by_device_and_dtype")
def grouped(session: Session, original: object) -> Function:
    """C++ would not know that counts of steps are on the host, as they are of one kind."""

    def group(
        lists: Sequence[Sequence[Any]], with_indices: bool = False
    ) -> dict[tuple[torch.device, torch.dtype], tuple[list[list[Any]], list[int]]]:
        found: dict[Any, tuple[list[list[Any]], list[int]]] = {}
        for index, first in enumerate(lists[0]):
            key = (first.device, first.dtype)
            into, indices = found.setdefault(key, ([[] for _ in lists], []))
            for target, source in zip(into, lists, strict=True):
                if source:
                    target.append(source[index])
            if with_indices:
                indices.append(index)
        return found

    return group


@TENSORS.replaces(f"{_FAKE}:FakeTensor.__torch_dispatch__")
def other_threads(session: Session, original: Function) -> object:
    """Modes belong to a thread: what others calculate is not recorded, which is said."""
    recorded = threading.get_ident()

    def dispatch(
        cls: type, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        if threading.get_ident() != recorded and not str(func).startswith("prim."):
            session.warnings.setdefault(
                f"a thread of the program computes ({func}), which is not recorded"
            )
        return original(func, types, args, kwargs or {})

    return classmethod(dispatch)


@TENSORS.replaces("torch:Tensor.data")
def tensor_data(session: Session, original: GetSetDescriptorType) -> property:
    """`p.data = p.to(device)` moves a parameter: fake ones keep their device in Python."""

    def set_data(tensor: torch.Tensor, value: torch.Tensor) -> None:
        original.__set__(tensor, value)
        if isinstance(tensor, FakeTensor):
            _take_attributes(tensor, value)

    return property(original.__get__, set_data)


def _take_attributes(tensor: FakeTensor, value: torch.Tensor) -> None:
    """What a fake tensor knows of its memory, beside what C++ knows."""
    if isinstance(value, FakeTensor):
        tensor.fake_device, tensor.constant = value.fake_device, value.constant
    else:
        tensor.fake_device, tensor.constant = value.device, None
    for name in list(vars(tensor)):
        if name.startswith("_flint"):
            delattr(tensor, name)
    vars(tensor).update({k: v for k, v in vars(value).items() if k.startswith("_flint")})


@TENSORS.replaces("torch.nn:Module._apply", parameters=("self", "fn"))
def module_apply(session: Session, original: object) -> Function:
    """`Module.to` keeps each parameter the object that it is, as on CUDA: optimizers hold it."""
    return _apply


def _apply(module: nn.Module, fn: Callable[[Any], Any], recurse: bool = True) -> nn.Module:
    if recurse:
        for child in module.children():
            apply_to(child, fn)
    for parameter in own_parameters(module).values():
        if parameter is not None:
            _apply_to_parameter(parameter, fn)
    buffers = own_buffers(module)
    for name, buffer in list(buffers.items()):
        if buffer is not None:
            buffers[name] = fn(buffer)
    return module


def _apply_to_parameter(parameter: nn.Parameter, fn: Callable[[Any], Any]) -> None:
    gradient = parameter.grad
    with torch.no_grad():
        new = fn(parameter)
        new_gradient = fn(gradient) if gradient is not None else None
    if new is parameter:
        return
    parameter.grad = None  # its type and device have to be the parameter's
    if isinstance(parameter, DTensor) and isinstance(new, DTensor):
        _exchange(parameter, new)  # `.data` would leave the part of it that it is made of
    else:
        parameter.data = new
    parameter.grad = new_gradient


def _exchange(tensor: DTensor, value: DTensor) -> None:
    """Give `tensor`, which stays the same object, all that `value` is, as PyTorch does it."""
    made = nn.Parameter(value.detach(), requires_grad=tensor.requires_grad)
    own = {k: v for k, v in vars(tensor).items() if k not in vars(made)}
    torch.utils.swap_tensors(tensor, made)
    vars(tensor).update(own)  # marks that the program put there


@TENSORS.replaces(f"{_FAKE}:FakeTensorMode.__deepcopy__", adds=True)
def deepcopy_mode(session: Session, original: object) -> Function:
    """A deep copy of a fake parameter would copy the mode, and two modes do not mix."""
    return lambda mode, memo: mode


@TENSORS.replaces(f"{_FAKE}:FakeTensor.__deepcopy__", adds=True)
def deepcopy_tensor(session: Session, original: object) -> Function:
    """A deep copy sets the storage of the copy, which fake tensors on `meta` refuse."""

    def deepcopy(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
        if id(tensor) not in memo:
            made = memo[id(tensor)] = tensor.detach().clone()
            made.requires_grad_(tensor.requires_grad)
            own = {k: v for k, v in vars(tensor).items() if k not in vars(made)}
            own = {k: v for k, v in own.items() if not k.startswith("_flint")}
            vars(made).update(copy.deepcopy(own, memo))
        return memo[id(tensor)]

    return deepcopy


@TENSORS.replaces(f"{_FAKE}:FakeTensor.get_nested_int")
def ragged_size(session: Session, original: object) -> Function:
    """The size of a ragged dimension is one of its own, as of real tensors; fake ones ask for symbols."""
    numbers = itertools.count()

    def nested_int(tensor: Any, *, coeff: int = 1) -> Any:
        if not hasattr(tensor, _RAGGED):
            setattr(tensor, _RAGGED, next(numbers))
        return nested_int_of(getattr(tensor, _RAGGED), coeff)

    return nested_int


_RAGGED = "_flint_ragged"


# --- what a program reads and prints --------------------------------------------------------------


@TENSORS.replaces(f"{_FAKE}:FakeTensor.tolist", parameters=("self",))
def tolist(session: Session, original: object) -> Function:
    """Fake tensors have no values to list."""
    return lambda tensor: session.values.tolist(tensor)


@TENSORS.replaces(f"{_FAKE}:FakeTensor.numpy", adds=True)
def numpy(session: Session, original: object) -> Function:
    """An array of what the tensor is said to hold; refused where PyTorch refuses it."""

    def array(tensor: torch.Tensor, *, force: bool = False) -> Any:
        if not force:
            _refuse_numpy(tensor)
        return session.values.numpy(tensor)

    return array


def _refuse_numpy(tensor: torch.Tensor) -> None:
    if tensor.requires_grad:
        raise RuntimeError(
            "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead."
        )
    if tensor.device.type != "cpu":
        raise TypeError(
            f"can't convert {tensor.device} device type tensor to numpy. Use Tensor.cpu() to copy "
            "the tensor to host memory first."
        )


@TENSORS.replaces(f"{_FAKE}:FakeTensor.__array__", adds=True)
def array(session: Session, original: object) -> Function:
    """`np.asarray(tensor)`."""

    def make(tensor: torch.Tensor, dtype: Any = None, copy: object = None) -> Any:
        found = tensor.numpy()
        return found if dtype is None else found.astype(dtype)

    return make


@TENSORS.replaces(f"{_FAKE}:FakeTensor.__format__", adds=True)
def format_(session: Session, original: object) -> Function:
    """`f"{loss:.3f}"` formats the number, of plain tensors alone."""

    def text(tensor: torch.Tensor, spec: str) -> str:
        if tensor.dim() == 0 and not tensor.is_meta:
            return format(tensor.item(), spec)
        return object.__format__(tensor, spec)

    return text


@TENSORS.replaces(f"{_FAKE}:FakeTensor.__repr__")
def representation(session: Session, original: object) -> Function:
    """As a tensor is printed; its numbers have no values, so only their shape is."""

    def text(tensor: torch.Tensor, *, tensor_contents: object = None) -> str:
        parts = ["...", f"size={tuple(tensor.shape)}"]
        if tensor.device.type != "cpu":
            parts.append(f"device='{tensor.device}'")
        parts.append(f"dtype={tensor.dtype}")
        if tensor.grad_fn is not None:
            parts.append(f"grad_fn=<{type(tensor.grad_fn).__name__}>")
        elif tensor.requires_grad:
            parts.append("requires_grad=True")
        made = f"tensor({', '.join(parts)})"
        return f"Parameter containing:\n{made}" if isinstance(tensor, nn.Parameter) else made

    return text


@TENSORS.replaces(f"{_FAKE}:FakeTensor.data_ptr", adds=True)
def data_ptr(session: Session, original: object) -> Function:
    """FSDP1 compares addresses to tell whether a tensor is a view of another."""

    def pointer(tensor: torch.Tensor) -> int:
        return _storage_id(tensor) + int(tensor.storage_offset() * tensor.element_size())

    return pointer


@TENSORS.replaces("torch:UntypedStorage.data_ptr")
def storage_pointer(session: Session, original: Function) -> Function:
    """Libraries find tied weights by it."""

    def pointer(storage: torch.UntypedStorage) -> int:
        meta = storage.device.type == "meta"
        return int(storage_address(storage) if meta else original(storage))

    return pointer


@TENSORS.replaces("torch.distributed.fsdp._flat_param:_same_storage", parameters=("a", "b"))
def same_storage(session: Session, original: object) -> Function:
    """As above, for whole storages."""
    return lambda a, b: _storage_id(a) == _storage_id(b)


def _storage_id(tensor: torch.Tensor) -> int:
    local = local_tensor(tensor) if isinstance(tensor, DTensor) else tensor
    return int(storage_address(local.untyped_storage()))


@TENSORS.replaces("torch:Tensor.pin_memory")
def pin_memory(session: Session, original: object) -> Function:
    """Pinning allocates."""

    def pin(tensor: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        setattr(tensor, _PINNED, True)
        return tensor

    return pin


@TENSORS.replaces("torch:Tensor.is_pinned")
def is_pinned(session: Session, original: object) -> Function:
    """As above."""
    return lambda tensor, *args: getattr(tensor, _PINNED, False)


# --- pickles --------------------------------------------------------------------------------------


@TENSORS.replaces(f"{_FAKE}:FakeTensor.__reduce_ex__", adds=True)
def reduce_(session: Session, original: object) -> Function:
    """A pickle has the shape, the type and the device, and the values that follow from the program."""

    def reduce_ex(tensor: FakeTensor, protocol: int) -> tuple[Function, tuple[Any, ...]]:
        own = {k: v for k, v in vars(tensor).items() if k not in _FAKE_STATE and k[0] != "_"}
        shape, stride = tuple(tensor.shape), tensor.stride()
        is_parameter = isinstance(tensor, nn.Parameter)
        known = session.values.known_list(tensor)
        geometry = (shape, stride, tensor.dtype, str(tensor.device))
        return unpickled, (*geometry, tensor.requires_grad, is_parameter, known, own)

    return reduce_ex


_FAKE_STATE = frozenset(
    ("fake_mode", "constant", "real_tensor", "pytype", "dispatch_keys", "fake_device")
    + ("nonzero_memo", "item_memo", "unique_memo", "unique_consecutive_memo", "nested_int_memo")
)


def unpickled(
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    dtype: torch.dtype,
    device: str,
    requires_grad: bool,
    is_parameter: bool,
    known: Any,
    own: dict[str, Any],
) -> torch.Tensor:
    """A tensor as one that was pickled while a program was recorded."""
    if known is not None:
        made = torch.tensor(known, dtype=dtype, device=device).reshape(shape)
    else:
        made = torch.empty_strided(shape, stride, dtype=dtype, device=device)
    if is_parameter:
        made = nn.Parameter(made, requires_grad=requires_grad)
    elif requires_grad:
        made.requires_grad_()
    vars(made).update(own)
    return made


# --- operators that are others without data ---------------------------------------------------------


@TENSORS.replaces("torch.nn.functional:one_hot")
def one_hot(session: Session, original: Function) -> Function:
    """Zeros that are written into, as for data on CUDA: tensors without data are compared instead."""

    def made(tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
        if num_classes < 1 or isinstance(tensor, DTensor):
            found: torch.Tensor = original(tensor, num_classes)
            return found
        zeros = tensor.new_zeros((*tensor.shape, num_classes))
        return zeros.scatter_(-1, tensor.unsqueeze(-1), 1)

    return made


@TENSORS.replaces("torch._C:_conv_determine_backend_memory_format")
def layout_of_convolution(session: Session, original: Function) -> Function:
    """How cuDNN leaves its results: channels last if the input or the weight is."""

    def layout(x: torch.Tensor, weight: torch.Tensor, backend: object) -> torch.memory_format:
        last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(weight.dim())
        if last is None or torch.float64 in (x.dtype, weight.dtype):
            return torch.contiguous_format
        is_last = any(
            t.is_contiguous(memory_format=last) and not t.is_contiguous() for t in (x, weight)
        )
        return last if is_last else torch.contiguous_format

    return layout
