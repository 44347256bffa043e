"""Results of operators on fake tensors, remembered: a layer does what the layer before it did.

FakeTensorMode infers shapes with PyTorch's own code, and remembers them too, but takes longer over
finding them again than over most operators. What is remembered here: for the same operator on
tensors of the same shapes, strides and types, which results are new, which are arguments
and which are views of them. Offsets of views are from those of the tensors that they see.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

import torch

from flint.frontends.torch_precision import require_one_type
from flint.frontends.torch_private import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    OpOverload,
    UnsupportedOperatorException,
    as_subclass,
    refuse_addresses,
    schema_of,
    storage_address,
    without_dispatch,
)
from flint.frontends.torch_world.device.device import virtual_device
from flint.frontends.torch_world.record.refusals import no_shapes, of_data, sparse

_META = torch.device("meta")
_UNSUITABLE = (
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
    torch.Tag.inplace_view,
)
_SCALARS = frozenset((int, float, bool, str, type(None), torch.dtype, complex))
#: Processes tell each other what they know by pickle, and it finds these, if at all, in any module
#: that has `torch`, which the other may not have. Nor may it have such a device.
_NAMED = (torch.device, torch.layout, torch.memory_format)
_NAMESPACES = ("aten", "prims", "fsdp", "_c10d_functional", "_c10d_functional_autograd")
_LISTS = (list, tuple, torch.Size)
#: Operators whose views are told from the start of the storage, and not of the tensor.
_FROM_START = frozenset(
    getattr(torch.ops.aten, name).default
    for name in ("as_strided", "as_strided_copy", "as_strided_scatter")
)


@dataclass(frozen=True, slots=True)
class _Result:
    """One result: argument number `source` itself, a view of it `offset` from it, or (-1) a new tensor."""

    source: int
    is_argument: bool
    shape: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    offset: int = 0
    dtype: Any = None


@dataclass(frozen=True, slots=True)
class _Entry:
    results: tuple[_Result | None, ...]
    sequence: type | None


#: Results by operator and arguments.
KnownResults: TypeAlias = dict[tuple[Any, ...], _Entry | None]


def told(known: KnownResults, since: int) -> list[tuple[str, tuple[Any, ...], _Entry | None]]:
    """What became known after the first `since` results, for other processes: operators by name."""
    return [(str(key[0]), key[1:], entry) for key, entry in islice(known.items(), since, None)]


def learn(known: KnownResults, found: Iterable[tuple[str, tuple[Any, ...], _Entry | None]]) -> None:
    """Add what another process tells."""
    for name, rest, entry in found:
        with contextlib.suppress(AttributeError):  # of a library that only the other has loaded
            known[functools.reduce(getattr, name.split("."), torch.ops), *rest] = entry


class Fakes:
    """Calls operators, or makes their results from what the last such call returned.

    Results on `device`, the virtual device by default, and on `meta` are remembered, in `known`.
    """

    def __init__(
        self, mode: FakeTensorMode, device: torch.device | None = None, known: Any = None
    ) -> None:
        self._mode = mode
        self._suitable: dict[Any, bool] = {}
        self._known: KnownResults = {} if known is None else known
        self._templates: dict[torch.device, dict[str, Any]] = {}
        self._devices = (device or virtual_device(), _META)
        #: While a program is recorded all tensors are of one kind (`device/tensors.py`).
        self._keys = virtual_device() if device is None else None

    def call(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> object:
        """`func(*args, **kwargs)`. Raises FlintError FL255, FL256, FL257."""
        suitable = self._suitable.get(func)
        if suitable is None:
            suitable = self._suitable[func] = _is_suitable(func)
        if not suitable or self._mode.in_kernel_invocation:
            return _inferred(func, args, kwargs)
        tensors: list[FakeTensor] = []
        parts: list[Any] = [func]
        if not self._describe(parts, args, tensors) or (
            kwargs and not self._describe(parts, tuple(kwargs.items()), tensors)
        ):
            return _inferred(func, args, kwargs)
        device = tensors[0].fake_device if tensors else kwargs.get("device")
        if device not in self._devices or any(t.fake_device != device for t in tensors):
            return _inferred(func, args, kwargs)
        parts += (str(device), torch.get_default_dtype())
        key = tuple(parts)
        entry = self._known.get(key)
        if entry is not None and device in self._templates:
            return self._make(entry, tensors, device)
        result = _inferred(func, args, kwargs)
        if key not in self._known or device not in self._templates:
            self._known[key] = self._learn(result, tensors, device)
        return result

    def _describe(self, parts: list[Any], args: Sequence[Any], tensors: list[FakeTensor]) -> bool:
        """Append what a result can depend on; false if there is more."""
        for arg in args:
            kind = type(arg)
            if kind is FakeTensor:
                if arg.constant is not None:
                    return False
                tensors.append(arg)
                parts += (arg.shape, arg.stride(), arg.dtype)
                if parts[0] in _FROM_START:
                    parts.append(arg.storage_offset())
            elif kind in _SCALARS:
                parts += (kind, arg)
            elif kind in _NAMED:
                parts += (kind, str(arg))
            elif kind in _LISTS:
                parts += (list, len(arg))
                if not self._describe(parts, arg, tensors):
                    return False
            else:
                return False
        return True

    def _learn(self, result: Any, tensors: list[FakeTensor], device: torch.device) -> _Entry | None:
        sequence = type(result) if isinstance(result, (list, tuple)) else None
        results = [self._learn_one(r, tensors, device) for r in (result if sequence else (result,))]
        if any(r is _NOT_KNOWN for r in results):
            return None
        fresh = [
            storage_address(r.untyped_storage())
            for r, known in zip(result if sequence else (result,), results, strict=True)
            if known is not None and known.source < 0
        ]
        if len(set(fresh)) != len(fresh):
            return None
        return _Entry(tuple(results), sequence)

    def _learn_one(
        self, result: FakeTensor | None, tensors: list[FakeTensor], device: torch.device
    ) -> _Result | None:
        if result is None:
            return None
        if type(result) is not FakeTensor or result.constant is not None:
            return _NOT_KNOWN
        for index, tensor in enumerate(tensors):
            if tensor is result:
                return _Result(index, True)
        if result.fake_device != device or result.is_conj() or result.is_neg():
            return _NOT_KNOWN
        self._templates.setdefault(device, {**vars(result)})
        storage = result.untyped_storage()
        seen = [
            (index, tensor.storage_offset())
            for index, tensor in enumerate(tensors)
            if storage_address(tensor.untyped_storage()) == storage_address(storage)
        ]
        if len({offset for _, offset in seen}) > 1:
            return _NOT_KNOWN  # a view of which of them?
        source, start = seen[0] if seen else (-1, 0)
        offset, shape = result.storage_offset() - start, tuple(result.shape)
        made = _Result(source, False, shape, result.stride(), offset, result.dtype)
        if source < 0 and (offset or storage.nbytes() != _bytes(made)):
            return _NOT_KNOWN
        if source >= 0 and result.dtype != tensors[source].dtype:
            return _NOT_KNOWN  # view_as_real and its like know how to share memory
        return made

    def _make(self, entry: _Entry, tensors: list[FakeTensor], device: torch.device) -> object:
        if entry.sequence is None:
            return self._make_one(entry.results[0], tensors, device)
        made = [self._make_one(result, tensors, device) for result in entry.results]
        return made if entry.sequence is list else tuple(made)

    def _make_one(
        self, result: _Result | None, tensors: list[FakeTensor], device: torch.device
    ) -> FakeTensor | None:
        if result is None:
            return None
        if result.is_argument:
            return tensors[result.source]
        with without_dispatch():
            if result.source < 0:
                plain = torch.empty_strided(
                    result.shape, result.stride, dtype=result.dtype, device=_META
                )
            else:
                plain = torch.empty_strided((0,), (1,), dtype=result.dtype, device=_META)
                seen = tensors[result.source]
                offset = seen.storage_offset() + result.offset
                plain.set_(seen.untyped_storage(), offset, result.shape, result.stride)
            keys = self._keys or device
            made = as_subclass(
                FakeTensor, plain, False, dispatch_device=True, device_for_backend_keys=keys
            )
        refuse_addresses(made)
        vars(made).update(self._templates[device])
        return made


_NOT_KNOWN = _Result(-2, False)


def _inferred(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> object:
    """What PyTorch makes of an operator on fake tensors, or its refusal by name."""
    require_one_type(schema_of(func).name, args)
    try:
        result = func(*args, **kwargs)
    except (DynamicOutputShapeException, DataDependentOutputException) as error:
        raise of_data(func) from error
    except UnsupportedOperatorException as error:
        raise no_shapes(func) from error
    except RuntimeError as error:
        if not str(error).startswith(_NO_KERNEL):
            raise
        raise no_shapes(func) from error
    for made in result if isinstance(result, (list, tuple)) else (result,):
        if isinstance(made, torch.Tensor) and _is_sparse(made):
            raise sparse(func)
    return result


def _is_sparse(made: torch.Tensor) -> bool:
    return made.layout is not torch.strided and made.device.type != "cpu"


#: How PyTorch says that an operator of its own, or of the program, has no kernel for the device.
_NO_KERNEL = ("Could not run", "There was no fake impl registered")


def _is_suitable(func: OpOverload) -> bool:
    if func.namespace not in _NAMESPACES or any(tag in func.tags for tag in _UNSUITABLE):
        return False
    name = schema_of(func).name
    return "lift" not in name and "resize" not in name and "set_" not in name


def _bytes(result: _Result) -> int:
    if 0 in result.shape:
        return 0
    last = sum((size - 1) * step for size, step in zip(result.shape, result.stride, strict=True))
    return int((last + 1) * result.dtype.itemsize)
