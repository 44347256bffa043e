"""Weights in safetensors files: their names, shapes and types are read, their values are not."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from flint.frontends.torch_world.runtime.device import Device

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


class SafeTensors:
    """What `safetensors.safe_open` returns, with tensors that hold no data."""

    def __init__(
        self, filename: str | PathLike[str], framework: str = "pt", device: Device = "cpu"
    ) -> None:
        with Path(filename).open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(size))
        self._metadata = header.pop("__metadata__", {})
        self._header: dict[str, Any] = header
        self._device = f"cuda:{device}" if isinstance(device, int) else device

    def __enter__(self) -> SafeTensors:  # noqa: PYI034 - it is not made to be subclassed
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def keys(self) -> list[str]:
        """Names of the tensors."""
        return list(self._header)

    offset_keys = keys

    def metadata(self) -> dict[str, str]:
        """What the file says of itself."""
        return dict(self._metadata)

    def get_tensor(self, name: str) -> torch.Tensor:
        """A tensor of the shape and type that the file has."""
        entry = self._header[name]
        return torch.empty(entry["shape"], dtype=_DTYPES[entry["dtype"]], device=self._device)

    get_slice = get_tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._header)


def load_file(filename: str | PathLike[str], device: Device = "cpu") -> dict[str, torch.Tensor]:
    """In the place of `safetensors.torch.load_file`, which maps the file's memory."""
    opened = SafeTensors(filename, device=device)
    return {name: opened.get_tensor(name) for name in opened}
