"""Numbers for the memory that tensors lie in."""

from __future__ import annotations

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from flint.frontends.torch_private import storage_address
from flint.frontends.torch_world.record.recording import TensorInfo, extent_of, order_of

#: PyTorch's types under StableHLO's names.
DTYPES = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint64: "ui64",
    torch.uint32: "ui32",
    torch.uint16: "ui16",
    torch.uint8: "ui8",
    torch.bool: "i1",
    torch.complex64: "complex<f32>",
    torch.complex128: "complex<f64>",
    torch.float8_e4m3fn: "f8E4M3FN",
    torch.float8_e4m3fnuz: "f8E4M3FNUZ",
    torch.float8_e5m2: "f8E5M2",
    torch.float8_e5m2fnuz: "f8E5M2FNUZ",
    torch.float8_e8m0fnu: "f8E8M0FNU",
}
#: Storage, shape, strides, offset and type of a tensor.
_Key = tuple[int, tuple[int, ...], tuple[int, ...], int, torch.dtype]


class Storages:
    """Gives every storage a number that is never used again.

    A weak reference to each keeps its address from being given to another.
    """

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._references: list[StorageWeakRef] = []
        self._infos: dict[_Key, TensorInfo] = {}

    def number(self, tensor: torch.Tensor) -> int:
        storage = tensor.untyped_storage()
        found = self._numbers.get(storage_address(storage))
        if found is None:
            self._references.append(StorageWeakRef(storage))
            found = self._numbers[storage_address(storage)] = len(self._references) - 1
        return found

    def info(self, tensor: torch.Tensor) -> TensorInfo:
        shape, strides, dtype = tuple(tensor.shape), tensor.stride(), tensor.dtype
        key = (self.number(tensor), shape, strides, tensor.storage_offset(), dtype)
        found = self._infos.get(key)
        if found is None:
            found = self._infos[key] = TensorInfo(
                key[0],
                shape,
                dtype_name(dtype),
                tensor.numel() * tensor.element_size(),
                order_of(shape, strides),
                extent_of(shape, strides, tensor.storage_offset(), tensor.element_size()),
            )
        return found


def dtype_name(dtype: torch.dtype) -> str:
    """StableHLO's name of a type; PyTorch's where it has none."""
    return DTYPES.get(dtype) or str(dtype).removeprefix("torch.")
