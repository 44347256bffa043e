"""Shardings and the local tensors that follow from them.

Local shapes are computed here from (global type, sharding): each dimension is divided by the
sizes of its axes and rounded up, as XLA pads. Shardy's own conversion to local types fails on
loops, CHLO operations and dimensions that do not divide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from flint.ir.mesh import AxisRef, Mesh
from flint.passes.mlir import element_bits

#: Axes of every dimension, major to minor: Shardy's `[{"data"}, {}]`.
Sharding = tuple[tuple[AxisRef, ...], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A value on one device. `Tensors` makes one for each type and sharding."""

    shape: tuple[int, ...]
    dtype: str
    num_bytes: int
    global_shape: tuple[int, ...]
    sharding: Sharding

    @property
    def num_elements(self) -> int:
        """Number of elements on one device."""
        return math.prod(self.shape)


#: What a value that is not a tensor (a token) becomes.
NOTHING = Tensor((), "token", 0, (), ())


def show(sharding: Sharding) -> str:
    """Shardy's spelling of a sharding: `[{"data"}, {}]`."""
    dims = ("{" + ", ".join(_show_axis(a) for a in axes) + "}" for axes in sharding)
    return "[" + ", ".join(dims) + "]"


def _show_axis(axis: AxisRef) -> str:
    part = "" if axis.size is None else f":({axis.pre_size}){axis.size}"
    return f'"{axis.name}"{part}'


class Tensors:
    """Reads `Tensor`s from MLIR values, remembering what it has parsed."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self._shardings: dict[Any, Sharding] = {}
        self._types: dict[Any, tuple[tuple[int, ...], str, int] | None] = {}
        self._made: dict[Any, Tensor] = {}

    def parse(self, attribute: Any) -> Sharding:
        """Read a `#sdy.sharding` attribute. Axes that the mesh lacks (size one) are dropped."""
        found = self._shardings.get(attribute)
        if found is None:
            from jaxlib.mlir.dialects import sdy

            dims = sdy.TensorShardingAttr(attribute).dimension_shardings
            found = tuple(
                tuple(a for ref in sdy.DimensionShardingAttr(d).axes if (a := self._axis(ref)))
                for d in dims
            )
            self._shardings[attribute] = found
        return found

    def make(self, value_type: Any, sharding: Sharding) -> Tensor:
        """The local tensor of a global type under a sharding."""
        key = (value_type, sharding)
        tensor = self._made.get(key)
        if tensor is None:
            tensor = self._made[key] = self._make(value_type, sharding)
        return tensor

    def _make(self, value_type: Any, sharding: Sharding) -> Tensor:
        parsed = self._type(value_type)
        if parsed is None:
            return NOTHING
        shape, dtype, bits = parsed
        if len(sharding) != len(shape):
            sharding = ((),) * len(shape)
        local = tuple(
            -(-size // self.mesh.group_size(axes))
            for size, axes in zip(shape, sharding, strict=True)
        )
        num_bytes = -(-math.prod(local) * bits // 8)
        return Tensor(local, dtype, num_bytes, shape, sharding)

    def _type(self, value_type: Any) -> tuple[tuple[int, ...], str, int] | None:
        if value_type not in self._types:
            from jaxlib.mlir import ir

            try:
                ranked = ir.RankedTensorType(value_type)
            except ValueError:
                self._types[value_type] = None
            else:
                element = ranked.element_type
                shape = tuple(max(int(s), 0) for s in ranked.shape)
                self._types[value_type] = (shape, dtype_name(str(element)), element_bits(element))
        return self._types[value_type]

    def _axis(self, attribute: Any) -> AxisRef | None:
        from jaxlib.mlir.dialects import sdy

        ref = sdy.AxisRefAttr(attribute)
        if ref.name not in self.mesh.names:
            return None
        if ref.sub_axis_info is None:
            return AxisRef(ref.name)
        info = sdy.SubAxisInfoAttr(ref.sub_axis_info)
        return AxisRef(ref.name, info.pre_size, info.size)


_DTYPES = {
    "i1": "bool",
    "f8E4M3FN": "float8_e4m3fn",
    "f8E5M2": "float8_e5m2",
    "f8E4M3FNUZ": "float8_e4m3fnuz",
    "f8E5M2FNUZ": "float8_e5m2fnuz",
    "f8E4M3B11FNUZ": "float8_e4m3b11fnuz",
    "f8E8M0FNU": "float8_e8m0fnu",
    "f4E2M1FN": "float4_e2m1fn",
    "bf16": "bfloat16",
    "complex<f32>": "complex64",
    "complex<f64>": "complex128",
}


def dtype_name(element: str) -> str:
    """numpy's name of an MLIR element type (`f32` is float32, `ui8` is uint8)."""
    if element in _DTYPES:
        return _DTYPES[element]
    for prefix, name in (("ui", "uint"), ("i", "int"), ("f", "float")):
        if element.startswith(prefix) and element[len(prefix) :].isdigit():
            return name + element[len(prefix) :]
    return element
