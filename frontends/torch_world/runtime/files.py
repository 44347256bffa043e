"""Checkpoints that a recorded program writes: kept in memory, as their tensors have no data.

A file of that name may hold the weights of a real run, and must not be lost. What was saved can be
loaded again in the same run, and moved to another name.
"""

from __future__ import annotations

import io
import json
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from flint.frontends.torch_private import apply_to_tensors
from flint.frontends.torch_world.device.device import Device
from flint.frontends.torch_world.device.tensors import unpickled
from flint.frontends.torch_world.record.session import Session
from flint.frontends.torch_world.runtime.patching import Function, Patches
from flint.io.kept_files import KeptFiles

FILES = Patches()


class UnwrittenFiles:
    """What files would hold, by the copy that stands for each."""

    def __init__(self, warn: Callable[[str], None], kept: KeptFiles) -> None:
        self._held: dict[str, Any] = {}
        self._warn, self._kept = warn, kept

    def put(self, path: str | os.PathLike[str], content: object, written: bytes | None) -> None:
        """Keep the content of a file, and say that it was not written; `written` is None of a folder."""
        self._held[self._kept.unwritten(os.fspath(path), written)] = content
        name = Path(path).name
        self._warn(f"{name} was not written: its tensors have no data")

    def get(self, path: object) -> Any:
        """What would be in a file, None if the program did not write it."""
        is_path = isinstance(path, (str, PathLike))
        return self._held.get(str(self.path_for(path, ""))) if is_path else None

    def path_for(self, path: object, how: str = "w") -> object:
        """The path where a file is read or written in the place of `path`."""
        return self._kept.path_for(path, how)


@FILES.replaces(
    "torch:_C.PyTorchFileWriter.__init__",
    "torch:_C.ScriptModule.save",
    "torch:_C._autograd._ProfilerResult.save",
)
def written_by_torch(session: Session, original: Function) -> Function:
    """C++ opens these by itself: what an older file holds would be lost."""

    def write(made: object, file: object = None, *args: object, **kwargs: object) -> None:
        original(made, session.files.path_for(file), *args, **kwargs)

    return write


@FILES.replaces("torch.profiler.profiler:_add_execution_trace_observer")
def execution_trace(session: Session, original: Function) -> Function:
    """As above."""
    return lambda file: original(session.files.path_for(file))


@FILES.replaces("torch:save", "torch.serialization:save")
def save(session: Session, original: Function) -> Function:
    """A file of tensors without data would take the place of a real one."""

    def save_(obj: object, f: Any, *args: object, **kwargs: object) -> None:
        if not isinstance(f, (str, os.PathLike)):
            original(obj, f, *args, **kwargs)
            return
        held = io.BytesIO()
        original(obj, held, *args, **kwargs)
        session.files.put(f, held.getvalue(), held.getvalue())

    return save_


@FILES.replaces("torch:load", "torch.serialization:load")
def load(session: Session, original: Function) -> Function:
    """What was saved in this run comes back; of other files the shapes are read."""
    torch.serialization.add_safe_globals([unpickled])

    def load_(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> object:
        held = session.files.get(f)
        if held is not None:
            f = io.BytesIO(held)
        loaded = original(f, "cpu" if held is None else None, *args, **kwargs)
        return apply_to_tensors(loaded, lambda tensor: _located(tensor, map_location))

    return load_


def _located(tensor: torch.Tensor, location: Any) -> torch.Tensor:
    if isinstance(location, dict):
        location = location.get(str(tensor.device))
    if location is None or callable(location):
        return tensor
    with torch.no_grad():
        moved = tensor.to(location)
    if isinstance(tensor, torch.nn.Parameter) and moved is not tensor:
        return torch.nn.Parameter(moved, requires_grad=tensor.requires_grad)
    return moved


# --- safetensors ----------------------------------------------------------------------------------

SAFETENSORS = Patches()


@SAFETENSORS.replaces("safetensors:safe_open", "safetensors.torch:safe_open")
def safe_open(session: Session, original: object) -> Function:
    """Names, shapes and types are read from files, values are not."""

    def opened(filename: Any, *args: Any, **kwargs: Any) -> SafeTensors:
        return SafeTensors(filename, *args, held=session.files.get(filename), **kwargs)

    return opened


@SAFETENSORS.replaces("safetensors.torch:load_file")
def load_file(session: Session, original: object) -> Function:
    """In the place of a function that maps the file's memory."""

    def loaded(filename: Any, device: Device = "cpu", **unused: object) -> dict[str, torch.Tensor]:
        opened = SafeTensors(filename, device=device, held=session.files.get(filename))
        return {name: opened.get_tensor(name) for name in opened}

    return loaded


@SAFETENSORS.replaces("safetensors.torch:save_file")
def save_file(session: Session, original: object) -> Function:
    """As `torch.save`."""

    def saved(
        tensors: dict[str, torch.Tensor], filename: Any, metadata: Any = None, **unused: object
    ) -> None:
        header = SafeTensors.header_of(tensors, metadata)
        session.files.put(filename, header, json.dumps(header).encode())

    return saved


# --- distributed checkpoints ----------------------------------------------------------------------

CHECKPOINTS = Patches()
CHECKPOINTS_MODULE = "torch.distributed.checkpoint"


@CHECKPOINTS.replaces(*(f"{CHECKPOINTS_MODULE}{where}:save" for where in ("", ".state_dict_saver")))
def checkpoint_save(session: Session, original: object) -> Function:
    """Writers read the memory of tensors."""

    def save_(state_dict: Any, *, checkpoint_id: Any = None, **kwargs: Any) -> object:
        from torch.distributed.checkpoint.metadata import Metadata

        path = _checkpoint(checkpoint_id, kwargs, "storage_writer")
        session.files.put(path, dict(state_dict), None)
        return Metadata({})

    return save_


@CHECKPOINTS.replaces(
    *(f"{CHECKPOINTS_MODULE}{where}:async_save" for where in ("", ".state_dict_saver"))
)
def checkpoint_async_save(session: Session, original: object) -> Function:
    """As above; it is over at once."""
    from concurrent.futures import Future

    def save_(state_dict: Any, *, checkpoint_id: Any = None, **kwargs: Any) -> Future[object]:
        path = _checkpoint(checkpoint_id, kwargs, "storage_writer")
        session.files.put(path, dict(state_dict), None)
        done: Future[object] = Future()
        done.set_result(None)
        return done

    return save_


@CHECKPOINTS.replaces(
    *(f"{CHECKPOINTS_MODULE}{where}:load" for where in ("", ".state_dict_loader"))
)
def checkpoint_load(session: Session, original: Function) -> Function:
    """Tensors keep their shapes, and have no values to load; a folder that is not there is an error."""

    def load_(state_dict: Any, *, checkpoint_id: Any = None, **kwargs: Any) -> None:
        path = _checkpoint(checkpoint_id, kwargs, "storage_reader")
        if session.files.get(path) is None and not os.path.isdir(path):
            original(state_dict, checkpoint_id=checkpoint_id, **kwargs)

    return load_


def _checkpoint(checkpoint_id: Any, kwargs: dict[str, Any], storage: str) -> str:
    if checkpoint_id is not None:
        return str(checkpoint_id)
    return str(getattr(kwargs.get(storage), "path", "checkpoint"))


# Weights in safetensors files: their names, shapes and types are read, their values are not.

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def _header(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header: dict[str, Any] = json.loads(file.read(size))
    return header


class SafeTensors:
    """What `safetensors.safe_open` returns, with tensors that hold no data."""

    def __init__(
        self,
        filename: str | PathLike[str],
        framework: str = "pt",
        device: Device = "cpu",
        *,
        held: Mapping[str, Any] | None = None,
        **unused: object,
    ) -> None:
        """Read the header of a file, or take it from `held`. `unused` is how newer versions read."""
        header: dict[str, Any] = dict(held) if held is not None else _header(Path(filename))
        self._metadata = header.pop("__metadata__", {})
        self._header = header
        self._device = f"cuda:{device}" if isinstance(device, int) else device

    @staticmethod
    def header_of(
        tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None
    ) -> dict[str, Any]:
        """The header of a file of these tensors, without their place in it."""
        header: dict[str, Any] = {"__metadata__": dict(metadata or {})}
        for name, tensor in tensors.items():
            header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape)}
        return header

    def __enter__(self) -> SafeTensors:  # noqa: PYI034 - it is not made to be subclassed
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def keys(self) -> list[str]:
        return list(self._header)

    offset_keys = keys

    def metadata(self) -> dict[str, str]:
        return dict(self._metadata)

    def get_tensor(self, name: str) -> torch.Tensor:
        """A tensor of the shape and type that the file has."""
        entry = self._header[name]
        return torch.empty(entry["shape"], dtype=_DTYPES[entry["dtype"]], device=self._device)

    def get_slice(self, name: str) -> Slice:
        """A tensor of which parts are taken."""
        return Slice(self.get_tensor(name), self._header[name]["dtype"])

    def get_keys(self) -> list[str]:
        return self.keys()

    def __iter__(self) -> Iterator[str]:
        return iter(self._header)


class Slice:
    """What `get_slice` returns: its shape and type, and parts of it by index."""

    def __init__(self, tensor: torch.Tensor, dtype: str) -> None:
        self._tensor, self._dtype = tensor, dtype

    def get_shape(self) -> list[int]:
        return list(self._tensor.shape)

    def get_dtype(self) -> str:
        return self._dtype

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self._tensor[index]
