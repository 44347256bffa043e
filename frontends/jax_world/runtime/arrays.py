"""Arrays without data that JAX, and every library on it, takes for its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flint.frontends.jax_world.values.known import Known

if TYPE_CHECKING:
    from jax.sharding import Sharding

    from flint.frontends.jax_world.values.answers import Answers


class Placed:
    """Where an array is: its sharding, and whether it was put there (committed)."""

    def __init__(self, sharding: Sharding, committed: bool) -> None:
        self.sharding = sharding
        self.committed = committed


class ArrayWithoutData:
    """What an array of a shape, a type and a sharding says of itself. See `array_class`.

    Its methods are those of `jax.Array` that ask for places or elements; JAX gives it the others.
    """

    answers: Answers
    mesh_before: Any = None
    #: The call that it is a result of, and which.
    made_by: tuple[Any, int] | None = None
    #: What JAX keeps the elements in that it has copied to the host: here there are none.
    _npy_value = None

    def __init__(
        self,
        aval: Any,
        sharding: Any,
        arrays: Sequence[Any] = (),
        committed: bool = True,
        _skip_checks: bool = False,
    ) -> None:
        self.aval = aval
        self.known: Known | None = None
        self._placed: Placed | None = Placed(sharding, committed)
        self._place: Callable[[], Placed] | None = None
        self._deleted = False

    @classmethod
    def made(cls, aval: Any, known: Known | None, place: Callable[[], Placed]) -> Any:
        """An array of which `place` says where it is, asked at most once."""
        array = cls(aval, None)
        array.known, array._placed, array._place = known, None, place
        return array

    # where it is

    def place(self) -> Placed:
        """Where it is, found out now if nobody has asked before."""
        if self._placed is None:
            assert self._place is not None, "an array is placed, or knows who places it"
            try:
                self._placed, self._place = self._place(), None
            except AttributeError as error:  # getattr(array, "sharding", None) would hide it
                raise RuntimeError("the place of an array cannot be found") from error
        return self._placed

    @property
    def is_placed(self) -> bool:
        """Whether somebody has found out where it is."""
        return self._placed is not None

    @property
    def sharding(self) -> Any:
        return self.place().sharding

    @property
    def _sharding(self) -> Any:
        return self.place().sharding

    @property
    def _committed(self) -> bool:
        return self.place().committed

    @property
    def committed(self) -> bool:
        return self._committed

    @property
    def format(self) -> Any:
        from jax.experimental.layout import Format

        return Format(None, self.sharding)

    @property
    def device(self) -> Any:
        sharding = self.sharding
        return next(iter(sharding.device_set)) if sharding.num_devices == 1 else sharding

    def devices(self) -> set[Any]:
        return set(self.sharding.device_set)

    @property
    def is_fully_replicated(self) -> bool:
        return bool(self.sharding.is_fully_replicated)

    @property
    def is_fully_addressable(self) -> bool:
        return bool(self.sharding.is_fully_addressable)

    @property
    def addressable_shards(self) -> list[Any]:
        return self._shards(self.sharding.addressable_devices_indices_map(self.shape))

    @property
    def global_shards(self) -> list[Any]:
        return self._shards(self.sharding.devices_indices_map(self.shape))

    def _shards(self, indices: Any) -> list[Any]:
        from flint.passes import jax_private

        shape = self.sharding.shard_shape(self.shape)
        return [
            jax_private.arrays().Shard(
                device, self.sharding, self.shape, self._shard(shape, device, index)
            )
            for device, index in indices.items()
        ]

    def _shard(self, shape: tuple[int, ...], device: Any, index: Any) -> Any:
        from jax.sharding import SingleDeviceSharding

        shard = type(self)(
            self.aval.update(shape=shape, sharding=None), SingleDeviceSharding(device)
        )
        if self.known is not None:
            shard.known = Known(self.known.data[index], self.known.made_up)
        return shard

    def addressable_data(self, index: int) -> Any:
        found = self.addressable_shards[index].data
        return found

    @property
    def _arrays(self) -> list[Any]:
        return [shard.data for shard in self.addressable_shards]

    def on_device_size_in_bytes(self) -> int:
        shape = self.sharding.shard_shape(self.shape)
        return int(np.prod(shape)) * int(self.dtype.itemsize)

    # what it is

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.aval.shape)

    @property
    def dtype(self) -> Any:
        return self.aval.dtype

    @property
    def ndim(self) -> int:
        return len(self.aval.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.aval.shape))

    @property
    def weak_type(self) -> bool:
        return bool(self.aval.weak_type)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __iter__(self) -> Any:
        if not self.shape:
            raise TypeError("iteration over a 0-d array")
        whole: Any = self  # JAX gives it its way to take elements
        return iter([whole[i] for i in range(self.shape[0])])

    # its life

    def block_until_ready(self) -> Any:
        self._check_if_deleted()
        return self

    def copy_to_host_async(self) -> None:
        self._check_if_deleted()

    def delete(self) -> None:
        self._deleted = True

    def is_deleted(self) -> bool:
        return self._deleted

    def is_ready(self) -> bool:
        return True

    def _check_if_deleted(self) -> None:
        if self._deleted:
            text = f"Array has been deleted with shape={self.aval.str_short()}."
            raise RuntimeError(text)

    # its elements, as far as there are any

    @property
    def _value(self) -> Any:
        self._check_if_deleted()
        return self.answers.read(self.shape, self.dtype, self.known)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        found = self._value
        return found.astype(dtype) if dtype is not None else np.array(found, copy=copy)

    def _scalar(self, convert: Any) -> Any:
        if self.size != 1:
            raise TypeError("Only scalar arrays can be converted to Python scalars")
        return convert(self._value.reshape(()))

    def __bool__(self) -> bool:
        if self.size != 1:
            text = "The truth value of an array with more than one element is ambiguous. Use a.any() or a.all()"
            raise ValueError(text)
        return bool(self._scalar(bool))

    def __float__(self) -> float:
        return float(self._scalar(float))

    def __int__(self) -> int:
        return int(self._scalar(int))

    def __complex__(self) -> complex:
        return complex(self._scalar(complex))

    def __index__(self) -> int:
        if self.shape or not np.issubdtype(self.dtype, np.integer):
            raise TypeError("Only integer scalar arrays can be converted to a scalar index.")
        return int(self._scalar(int))

    def __format__(self, spec: str) -> str:
        if self.ndim:
            return format(str(self), spec)
        number = self.answers.printed(self.dtype, self.known)
        return "?" if number is None else format(number, spec)

    def item(self, *args: int) -> Any:
        return self._value.item(*args)

    def tolist(self) -> Any:
        return self._value.tolist()

    def tobytes(self, order: Any = "C") -> bytes:
        return bytes(self._value.tobytes(order))

    def __reduce__(self) -> Any:
        return _from_host, (np.asarray(self._value),)

    def __dlpack__(self, **_: Any) -> Any:
        raise NotImplementedError("an array without data cannot be shared with other libraries")

    def unsafe_buffer_pointer(self) -> int:
        raise NotImplementedError("an array without data has no address")

    def __repr__(self) -> str:
        if self.known is not None and self.size <= 100:
            return f"Array({np.array2string(self.known.data)}, dtype={self.dtype})"
        return f"Array({self.aval.str_short()}, without data)"

    __str__ = __repr__

    __hash__ = None  # type: ignore[assignment]  # as JAX's own
    __array_priority__ = 100


def array_class(base: type, answers: Answers) -> type:
    """A subclass of `jax.Array` (`base`) whose instances have no data.

    Instances are made as JAX makes its own, `(aval, sharding, arrays, committed)`, or by `made`
    with a function that finds out where they are when somebody asks. `known` holds their numbers
    where these are known. Reading others asks `answers`.
    """
    return type("VirtualArray", (ArrayWithoutData, base), {"answers": answers})


def _from_host(data: Any) -> Any:
    import jax

    return jax.device_put(data)
