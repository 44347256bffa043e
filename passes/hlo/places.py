"""Which part of a tensor each device keeps: slices at offsets that follow from the partition's number.

XLA's partitioner writes a shard as a dynamic-slice whose offsets are looked up in a table by
`partition-id`. Here such integers are evaluated for all devices at once, as one array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from flint.ir.mesh import AxisRef, Group, Mesh
from flint.passes.hlo import shapes
from flint.passes.hlo.module import Instruction

#: A value on every device: (devices, elements), or (1, elements) where it is the same on all.
Places: TypeAlias = NDArray[np.int64]
_LITERALS = ("s32s", "s64s", "u32s", "u64s")
_MOVES = frozenset({"reshape", "bitcast", "convert", "copy"})
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": lambda a, b: a // np.where(b == 0, 1, b),
    "remainder": lambda a, b: a % np.where(b == 0, 1, b),
    "minimum": np.minimum,
    "maximum": np.maximum,
}


class KnownPlaces:
    """Integers of one computation that depend on nothing but the partition, by instruction."""

    def __init__(self, devices: int) -> None:
        self._devices = devices
        self._known: dict[int, Places] = {}

    def see(self, i: Instruction) -> bool:
        """Note the value of `i`, whose operands were seen before; False if it is not known."""
        found = self._value(i)
        if found is not None:
            self._known[i.id] = found
        return found is not None

    def of(self, number: int) -> Places | None:
        """The value of an instruction that was seen, or None."""
        return self._known.get(number)

    def _value(self, i: Instruction) -> Places | None:
        if i.opcode == "partition-id":
            return np.arange(self._devices, dtype=np.int64)[:, None]
        if i.opcode == "constant":
            values = next((v for name in _LITERALS if (v := getattr(i.literal, name))), ())
            return np.array([values], dtype=np.int64) if len(values) else None
        operands = [self._known[o] for o in i.operand_ids if o in self._known]
        if not operands or len(operands) < len(i.operand_ids):
            return None
        if i.opcode == "dynamic-slice":
            return _looked_up(operands, shapes.num_elements(i.shape))
        if i.opcode in _BINARY and operands[0].shape[1] == operands[1].shape[1]:
            return np.asarray(_BINARY[i.opcode](*operands))
        return operands[0] if i.opcode in _MOVES else None


def _looked_up(operands: list[Places], size: int) -> Places | None:
    """An element of a table of one dimension that is the same on all devices."""
    if len(operands) != 2 or size != 1 or len(operands[0]) != 1:
        return None
    table, at = operands[0][0], operands[1][:, 0]
    return np.asarray(table[np.clip(at, 0, len(table) - 1)][:, None])


def kept_part(
    i: Instruction, operand: Instruction, places: KnownPlaces, mesh: Mesh
) -> Group | None:
    """The axes over which a dynamic-slice divides one dimension of its operand; None if it does not."""
    sizes = zip(operand.shape.dimensions, i.shape.dimensions, strict=True)
    cut = [(k, whole, part) for k, (whole, part) in enumerate(sizes) if whole != part]
    if len(cut) != 1:
        return None
    dimension, whole, part = cut[0]
    offsets = places.of(i.operand_ids[1 + dimension])
    if offsets is None or len(offsets) != mesh.size or not part or whole % part:
        return None
    index, rest = np.divmod(offsets[:, 0], part)
    axes = mesh.canonical(_moved_along(index, mesh))
    if rest.any() or mesh.group_size(axes) != whole // part:
        return None
    in_order = (index[mesh.groups(axes)] == np.arange(whole // part)).all()
    return Group(axes) if in_order else None


def _moved_along(index: NDArray[np.int64], mesh: Mesh) -> Iterator[AxisRef]:
    """The axes along which `index` moves, and of an axis the factors along which it does."""
    stride = mesh.size
    for name, size in zip(mesh.names, mesh.sizes, strict=True):
        before = 1
        for factor in _factors(size):
            stride //= factor
            if index[stride] != index[0]:
                yield AxisRef(name, before, factor)
            before *= factor


def _factors(size: int) -> Iterator[int]:
    """Prime factors, the smallest first."""
    divisor = 2
    while size > 1:
        if size % divisor:
            divisor += 1
        else:
            size //= divisor
            yield divisor
