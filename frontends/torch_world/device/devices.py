"""Where tensors are, as a program sees it: on `cuda`, which a build without CUDA cannot have.

C++ knows the virtual device under another name (`device.NAME`). Every way in which Python asks for
a device is answered here, so that a program cannot tell the difference: `tensor.device`, `.type()`,
`.is_cuda`, moves, constructors, contexts and automatic mixed precision.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from flint.frontends.torch_private import FakeTensor, device_constructors, operator_types
from flint.frontends.torch_world.device.device import (
    NAME,
    SHOWN,
    Device,
    is_virtual,
    virtual_device,
)
from flint.frontends.torch_world.device.generators import DeviceGenerator, host_generator
from flint.frontends.torch_world.record.session import Session
from flint.frontends.torch_world.runtime.patching import Function, Patches

DEVICES = Patches()
_FAKE = "torch._subclasses.fake_tensor:FakeTensor"


# --- what a tensor says of itself -----------------------------------------------------------------


@DEVICES.replaces(f"{_FAKE}.device", "torch:Tensor.device")
def shown_device(session: Session, original: Any) -> property:
    """A fake tensor of the virtual device is on `cuda`.

    Tensors that hold fake ones (DTensor) take their device from these, in C++.
    """
    shown = session.device

    def device(tensor: torch.Tensor) -> torch.device:
        found: torch.device = original.__get__(tensor)
        return shown if found.type == NAME else found

    return property(device)


@DEVICES.replaces(f"{_FAKE}._normalize_fake_device", parameters=("device",))
def known_to_cpp(session: Session, original: Function) -> object:
    """Autograd asks C++ for the streams of a device, and only the virtual one has any."""

    def normalize(device: torch.device) -> torch.device:
        return virtual_device() if is_virtual(device) else original(device)

    return staticmethod(normalize)


@DEVICES.replaces("torch:Tensor.is_cuda")
def is_cuda(session: Session, original: object) -> property:
    """Programs assert that their tensors are on the device."""
    return property(lambda tensor: tensor.device.type == SHOWN)


@DEVICES.replaces("torch:Tensor.get_device")
def get_device(session: Session, original: Function) -> Function:
    """The index of the device that the tensor names."""

    def index(tensor: torch.Tensor) -> int:
        return int(session.device.index if tensor.is_cuda else original(tensor))

    return index


@DEVICES.replaces("torch:Tensor.type")
def tensor_type(session: Session, original: Function) -> Function:
    """`torch.cuda.FloatTensor` and its kin, by which older code tells devices apart."""

    @functools.wraps(original)
    def type_(
        tensor: torch.Tensor, dtype: Any = None, non_blocking: bool = False, **unused: object
    ) -> object:
        if dtype is None:
            text: str = original(tensor)
            return text.replace(f"torch.{NAME}.", "torch.cuda.")
        named = dtype if isinstance(dtype, str) else _full_name(dtype)
        if isinstance(dtype, torch.dtype) or "Tensor" not in named:
            return tensor.to(dtype)
        return tensor.to("cuda" if ".cuda." in named else "cpu", dtype=_dtype_of(named))

    return type_


_DTYPES = {
    "Float": torch.float32,
    "Double": torch.float64,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Long": torch.int64,
    "Int": torch.int32,
    "Short": torch.int16,
    "Char": torch.int8,
    "Byte": torch.uint8,
    "Bool": torch.bool,
}


def _full_name(kind: Any) -> str:
    return f"{getattr(kind, '__module__', '')}.{getattr(kind, '__name__', '')}"


def _dtype_of(named: str) -> torch.dtype:
    return _DTYPES[named.rpartition(".")[2].removesuffix("Tensor")]


class _LegacyMeta(type):
    """`isinstance(x, torch.cuda.FloatTensor)` asks for the device and the type of the elements."""

    dtype: torch.dtype

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Tensor) and (
            instance.is_cuda and instance.dtype == cls.dtype
        )

    def __call__(cls, *given: Any, **unused: object) -> torch.Tensor:
        """Sizes make a tensor of that shape, a list its values."""
        if len(given) == 1 and not isinstance(given[0], (int, torch.Size)):
            return torch.tensor(given[0], dtype=cls.dtype, device=SHOWN)
        return torch.empty(*given, dtype=cls.dtype, device=SHOWN)


def _legacy(name: str, dtype: torch.dtype) -> None:
    @DEVICES.replaces(f"torch.cuda:{name}Tensor")
    def type_(session: Session, original: object) -> type:
        """The constructors of older code, which the C++ build has for CUDA alone."""
        return _LegacyMeta(
            f"{name}Tensor", (), {"dtype": dtype, "__module__": "torch.cuda", "__doc__": None}
        )


for _name, _dtype in _DTYPES.items():
    _legacy(_name, _dtype)


# --- moves ----------------------------------------------------------------------------------------


def on_virtual(device: Device) -> Device:
    """The device as C++ knows it for whatever means `cuda`, anything else as it is."""
    if isinstance(device, str) and device.partition(":")[0] in (SHOWN, NAME):
        return virtual_device()
    if isinstance(device, torch.device) and is_virtual(device):
        return virtual_device()
    return device


@DEVICES.replaces("torch:Tensor.to")
def to(session: Session, original: Function) -> Function:
    """PyTorch looks `cuda` up before an operator is called, and finds no such device."""

    @functools.wraps(original)
    def move(tensor: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        if args and isinstance(args[0], (str, torch.device)):
            args = (on_virtual(args[0]), *args[1:])
        elif args and type(args[0]) is int:
            args = (virtual_device(), *args[1:])
        if "device" in kwargs:
            kwargs["device"] = on_virtual(kwargs["device"])
        return original(tensor, *args, **kwargs)

    return move


@DEVICES.replaces("torch:Tensor.cuda")
def cuda(session: Session, original: object) -> Function:
    """As above."""

    def move(
        tensor: torch.Tensor,
        device: object = None,
        non_blocking: bool = False,
        memory_format: object = None,
    ) -> torch.Tensor:
        return tensor.to(virtual_device(), non_blocking=non_blocking)

    return move


@DEVICES.replaces("torch:tensor", "torch:as_tensor", "torch:asarray", "torch:Tensor.new_tensor")
def tensor_of_data(session: Session, original: Function) -> Function:
    """PyTorch looks `cuda` up, and numbers of tensors among the data, outside all modes."""
    # `with torch.device(...)` knows functions by identity, and remembers them from here on.
    device_constructors()
    data_at = 1 if original is torch.Tensor.new_tensor else 0

    @functools.wraps(original)
    def make(*args: Any, **kwargs: Any) -> object:
        if kwargs.get("device") is not None:
            kwargs["device"] = on_virtual(kwargs["device"])
        kwargs.pop("pin_memory", None)  # it allocates
        if len(args) > data_at and isinstance(args[data_at], (list, tuple)):
            data = args[data_at]
            if _holds_tensors(data):
                args = (*args[:data_at], session.values.numbers(data), *args[data_at + 1 :])
        return original(*args, **kwargs)

    return make


def _holds_tensors(data: Any) -> bool:
    if isinstance(data, (list, tuple)):
        return any(map(_holds_tensors, data))
    return isinstance(data, FakeTensor)


@DEVICES.replaces("torch.utils._device:DeviceContext.__init__")
def device_context(session: Session, original: Function) -> Function:
    """`with torch.device("cuda")` and `torch.set_default_device("cuda")`, as above."""
    return lambda context, device: original(context, on_virtual(torch.device(device)))


@DEVICES.replaces("torch:Generator")
def generator(session: Session, original: type[torch.Generator]) -> type:
    """Generators of the device keep a state; those of the host draw."""

    class Meta(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, original)

        def __call__(cls, device: Device = "cpu") -> torch.Generator:
            asked = torch.device("cpu" if device is None else device)
            if not is_virtual(asked):
                return host_generator(original, session.values.known)
            index = session.device.index if asked.index is None else asked.index
            return DeviceGenerator(torch.device(SHOWN, index), session.values.known)

    made = Meta("Generator", (), {"__module__": "torch"})
    return made


@DEVICES.replaces("torch:set_rng_state", "torch.random:set_rng_state")
def set_rng_state(session: Session, original: Function) -> Function:
    """States that other ranks sent have no values: this rank keeps its own."""

    def set_state(new_state: torch.Tensor) -> None:
        real = session.values.known(new_state)
        if real is not None:
            original(real)

    return set_state


@DEVICES.replaces("torch:device")
def device_class(session: Session, original: type) -> type:
    """`torch.device(0)` is that of the accelerator, which C++ knows under another name."""

    class Meta(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, original)

        def __call__(cls, *args: object, **kwargs: object) -> torch.device:
            made: torch.device = original(*args, **kwargs)
            return original(SHOWN, made.index) if made.type == NAME else made

    made = Meta("device", (), {"__module__": "torch"})
    operator_types.update({made: "Device", made | None: "Device?"})
    return made


@DEVICES.replaces("torch:get_default_device")
def default_device(session: Session, original: Callable[[], torch.device]) -> Function:
    """As above."""

    def ask() -> torch.device:
        found = original()
        return session.device if found.type == NAME else found

    return ask


@DEVICES.replaces("torch.accelerator:current_accelerator")
def accelerator(session: Session, original: object) -> Function:
    """As above."""
    return lambda check_available=False: torch.device(SHOWN)


@DEVICES.replaces("torch:_C._get_accelerator")
def accelerator_of_cpp(session: Session, original: object) -> Function:
    """As above."""
    return lambda *checked: torch.device(SHOWN)


@DEVICES.replaces("torch:Stream")
def stream_class(session: Session, original: object) -> object:
    """Streams of any accelerator are those of the device."""
    return getattr(torch, NAME).Stream


@DEVICES.replaces("torch:Event")
def event_class(session: Session, original: object) -> object:
    """As above."""
    return getattr(torch, NAME).Event


@DEVICES.replaces("torch.version:cuda")
def cuda_version(session: Session, original: object) -> str:
    """A build without CUDA has none; that of this version of PyTorch has 13.0."""
    return "13.0"


@DEVICES.replaces("torch.backends.cuda:is_built")
@DEVICES.replaces("torch.backends.cudnn:is_available", adds=True)  # of a module that is an object
def is_built(session: Session, original: object) -> Function:
    """As above."""
    return lambda: True


@DEVICES.replaces("torch.backends.cudnn:version", adds=True)
def cudnn_version(session: Session, original: object) -> Function:
    """As above."""
    return lambda: 91300


@DEVICES.replaces("torch:Tensor.record_stream", adds=True)
def record_stream(session: Session, original: object) -> Function:
    """Tells the allocator, which there is none of."""
    return lambda tensor, stream: None


@DEVICES.replaces("torch:clear_autocast_cache")
def clear_casts(session: Session, original: Function) -> Function:
    """Leaving the outermost autocast forgets the casts of parameters, those of this device too."""

    def clear() -> None:
        session.autocast.forget()
        original()

    return clear


@DEVICES.replaces(
    *(f"torch:{name}" for name in ("is_autocast_enabled", "get_autocast_dtype")),
    *(f"torch:{name}" for name in ("set_autocast_enabled", "set_autocast_dtype")),
)
def autocast_state(session: Session, original: Function) -> Function:
    """Autocast of `cuda` is that of the virtual device."""

    def state(*args: Any, **kwargs: Any) -> object:
        if not args or isinstance(args[0], bool):  # without a device it is CUDA's
            args = (SHOWN, *args)
        return original(NAME if args[0] == SHOWN else args[0], *args[1:], **kwargs)

    return state


@DEVICES.replaces("torch:get_autocast_gpu_dtype", "torch:set_autocast_gpu_dtype")
def autocast_gpu_dtype(session: Session, original: Function) -> Function:
    """As above, for the older spelling."""
    name = original.__name__.replace("_gpu", "")
    return lambda *dtype: getattr(torch, name)(SHOWN, *dtype)


@DEVICES.replaces("torch.cuda.nvtx:range_push", "torch.cuda.nvtx:range_pop", "torch.cuda.nvtx:mark")
def nvtx(session: Session, original: object) -> Function:
    """Marks for a profiler that is not there."""
    return lambda *args, **kwargs: 0


@DEVICES.replaces("torch.autograd.profiler:record_function.__enter__")
def enter_range(session: Session, original: object) -> Function:
    """Ranges of a profiler would be operators."""
    return lambda profiled: profiled


@DEVICES.replaces("torch.autograd.profiler:record_function.__exit__")
def leave_range(session: Session, original: object) -> Function:
    """As above."""
    return lambda profiled, *error: None


@DEVICES.replaces("torch.cuda.nccl:version")
def nccl_version(session: Session, original: object) -> Function:
    """Logged with every error; the CPU build has none."""
    return lambda: (2, 27, 3)


@DEVICES.replaces("torch.cuda.amp.common:amp_definitely_not_available")
def amp_available(session: Session, original: object) -> Function:
    """The virtual device has mixed precision."""
    return lambda: False
