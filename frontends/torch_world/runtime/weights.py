"""Weights in safetensors files: their names, shapes and types are read, their values are not."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from flint.frontends.torch_world.device.device import Device

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
