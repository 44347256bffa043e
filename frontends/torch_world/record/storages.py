"""Numbers for the memory that tensors lie in."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from flint.frontends.torch_private import storage_address
from flint.frontends.torch_world.record.recording import (
    Event,
    Freed,
    TensorInfo,
    extent_of,
    order_of,
)

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

    A weak reference to each keeps its address from being given to another. `freed` is what the
    program let go of, with what `now` was then.
    """

    def __init__(self, now: Callable[[], int]) -> None:
        self.freed: list[Freed] = []
        self._known: tuple[Freed, ...] | None = None
        self._now = now
        self._numbers: dict[int, int] = {}
        self._references: list[StorageWeakRef] = []
        self._watched: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._infos: dict[_Key, TensorInfo] = {}
        self._num_bytes: list[int] = []
        self._on_device: set[int] = set()
        #: Bytes of what the device holds when the step starts.
        self._there: dict[int, int] = {}
        #: What the step allocated, and as a whole until an event uses it.
        self._allocated: set[int] = set()
        self._unused: dict[int, TensorInfo] = {}

    def number(self, tensor: torch.Tensor) -> int:
        storage = tensor.untyped_storage()
        found = self._numbers.get(storage_address(storage))
        if found is None:
            self._references.append(StorageWeakRef(storage))
            self._num_bytes.append(storage.nbytes())
            found = self._numbers[storage_address(storage)] = len(self._references) - 1
            self._watched[found] = weakref.ref(storage, partial(self._let_go, found))
            if tensor.is_cuda:
                self._on_device.add(found)
        return found

    def restart(self) -> None:
        """The recorded step starts here, unless another start follows."""
        self.freed.clear()
        self._known = None
        self._allocated.clear()
        self._unused.clear()
        watched = list(self._watched.items())  # which a collection of garbage shortens
        held = [(n, storage()) for n, storage in watched if n in self._on_device]
        self._there = {n: s.nbytes() for n, s in held if s is not None and s.nbytes()}

    def allocate(self, tensors: Iterable[torch.Tensor]) -> None:
        """The step allocates memory for tensors, and writes nothing into it."""
        for info in map(self.info, tensors):
            self._allocated.add(info.storage)
            self._unused[info.storage] = info

    def used(self, tensors: Sequence[TensorInfo], writes: Sequence[int]) -> Iterator[TensorInfo]:
        """Memory that the step allocated, and that the first event that uses it does not fill: it sees a part, makes
        a view, or reads what nobody wrote.
        """
        for tensor in tensors:
            whole = self._unused.pop(tensor.storage, None)
            if whole is not None and (
                tensor.storage not in writes or tensor.num_bytes < whole.num_bytes
            ):
                yield whole

    def older(self, events: Sequence[Event]) -> dict[int, int]:
        """Bytes of storages that are there when a step starts and that it never lets go of.

        What it changes and has not allocated was there too.
        """
        gone = {f.storage for f in self.freed_in(len(events)) if f.events < len(events)}
        changed = {s for event in events for s in event.writes} - self._allocated
        found = {s: self._num_bytes[s] for s in changed} | self._there
        return {storage: found[storage] for storage in sorted(found.keys() - gone)}

    def leaving(self, events: Sequence[Event]) -> dict[int, int]:
        """Bytes of storages that are there when a step starts, that it does not use, and lets go of on its way:
        logits of the step before stay while a module makes those that take their name.
        """
        used = {t.storage for event in events for t in (*event.inputs, *event.outputs)}
        way = {f.storage for f in self.freed_in(len(events)) if 0 < f.events < len(events)}
        return {
            storage: self._there[storage] for storage in sorted(way & self._there.keys() - used)
        }

    def emptied(self, storage: torch.UntypedStorage) -> None:
        """A storage has no bytes now, until the program gives it some again."""
        number = self._numbers.get(storage_address(storage))
        if number is not None:
            self.freed.append(Freed(number, self._now()))

    def settle(self) -> None:
        """The step is over: what the program still holds is there to its end.

        What only a cycle of references holds is not, and when it goes nobody knows.
        """
        if self._known is None:
            found = list(self.freed)
            gc.collect()
            self._known = (
                *found,
                *(Freed(number, self._now()) for number in sorted(self._watched)),
            )

    def freed_in(self, events: int) -> tuple[Freed, ...]:
        """What the program let go of in a step of so many events, or held when it was over."""
        self.settle()
        return tuple(Freed(f.storage, min(f.events, events)) for f in self._known or ())

    def _let_go(self, number: int, _: object) -> None:
        self.freed.append(Freed(number, self._now()))
        del self._watched[number]

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
