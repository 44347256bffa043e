"""Names that a cluster file may use in its tables of numbers, and what the numbers may be.

What each constant means is told where it is used: `backends/cost/chips/gpu/constants.py`,
`backends/cost/chips/systolic/constants.py`, and docs/clusters.md for those of networks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, BeforeValidator

from flint.cluster.errors import unknown, wrong
from flint.cluster.load import chips_with_constants
from flint.cluster.quantity import Positive, Quantity
from flint.errors import nearest

#: StableHLO's element types, and "tf32", which a GPU multiplies f32 matrices in.
ELEMENT_TYPES = (
    *("bf16", "f16", "f32", "tf32", "f64"),
    *("f4E2M1FN", "f6E2M3FN", "f6E3M2FN", "f8E3M4", "f8E4M3", "f8E4M3B11FNUZ", "f8E4M3FN"),
    *("f8E4M3FNUZ", "f8E5M2", "f8E5M2FNUZ", "f8E8M0FNU"),
    *("i1", "i2", "i4", "i8", "i16", "i32", "i64"),
    *("ui2", "ui4", "ui8", "ui16", "ui32", "ui64"),
    *("complex64", "complex128"),
)


class Limit(NamedTuple):
    """What a constant may be: from `least` to `most`, without `least` itself where it is `open`."""

    least: float = 0.0
    most: float = math.inf
    is_open: bool = False

    def allows(self, value: float) -> bool:
        """Whether a value is inside."""
        return (self.least < value if self.is_open else self.least <= value) and value <= self.most

    def __str__(self) -> str:
        least = f"greater than {self.least:g}" if self.is_open else f"at least {self.least:g}"
        return least if math.isinf(self.most) else f"{least} and at most {self.most:g}"


_ANY = Limit()
_POSITIVE = Limit(0, math.inf, True)
_SHARE = Limit(0, 1, True)
#: Nothing that was measured reaches more of a datasheet's number.
_EFFICIENCY = Limit(0, 0.95, True)
#: No GPU starts and ends a kernel in less than 1.5 us.
_LAUNCH = Limit(1500)

#: Efficiencies of attention by head size; chips have those that were measured on them.
HEAD_SIZES = "attention.efficiency."
_HEAD_SIZE = re.compile("[1-9][0-9]{0,5}")
#: Constants of GPUs, beside those by head size.
GPU: Mapping[str, Limit] = {
    "gemm.efficiency": _EFFICIENCY,
    "gemm.memory_efficiency": _EFFICIENCY,
    "gemm.write_efficiency": _SHARE,  # of what reads reach
    "gemm.launch_ns": _LAUNCH,
    "gemm.step_ns": _ANY,
    "gemm.split_ns": _ANY,
    "gemm.epilogue_k": _ANY,
    "gemm.throttle": _ANY,
    "gemm.l2_share": _SHARE,
    "gemm.overlap": Limit(1),
    "attention.launch_ns": _LAUNCH,
    "attention.memory_efficiency": _EFFICIENCY,
    "attention.backward_efficiency": _SHARE,  # of what the forward pass reaches
    "decode.launch_ns": _LAUNCH,
    "decode.memory_efficiency": _EFFICIENCY,
    "decode.head_ns": _ANY,
    "elementwise.launch_ns": _LAUNCH,
    "elementwise.memory_efficiency": _EFFICIENCY,
    "elementwise.cycles": _ANY,
    "softmax.launch_ns": _LAUNCH,
    "softmax.memory_efficiency": _EFFICIENCY,
    "softmax.cycles": _ANY,
    "norm.launch_ns": _LAUNCH,
    "norm.memory_efficiency": _EFFICIENCY,
    "norm.row_cycles": _ANY,
}
#: Constants of chips with systolic arrays. Their programs are launched whole: a kernel may start in
#: less time than on a GPU.
SYSTOLIC: Mapping[str, Limit] = {
    "gemm.efficiency": _EFFICIENCY,
    "gemm.memory_efficiency": _EFFICIENCY,
    "gemm.launch_ns": _ANY,
    "gemm.exposed_loads": _ANY,
    "gemm.fused_operations": _ANY,
    "vmem.bandwidth_ratio": _POSITIVE,
    "attention.register_cycles": _ANY,
    "attention.backward_register_cycles": _ANY,
    "attention.step_cycles": _ANY,
    "attention.query_cycles": _ANY,
    "attention.launch_ns": _ANY,
    "decode.launch_ns": _ANY,
    "decode.memory_efficiency": _EFFICIENCY,
    "decode.head_ns": _ANY,
    "elementwise.launch_ns": _ANY,
    "elementwise.memory_efficiency": _EFFICIENCY,
    "elementwise.vmem_ratio": _POSITIVE,
    "norm.launch_ns": _ANY,
    "norm.vmem_ratio": _POSITIVE,
    "gather.launch_ns": _ANY,
    "gather.row_ns": _ANY,
    "vector.clock_ghz": _POSITIVE,
}
#: Constants that every tier of the network has.
_TIER: Mapping[str, Limit] = {
    "a0_ns": _ANY,
    "a1_ns": _ANY,
    "c": _ANY,
    "efficiency": _SHARE,
    "own_part": _ANY,
    "host_bytes_per_s": _POSITIVE,
}


class _OfNetworks(Mapping[str, Limit]):
    """Those that every tier has, and then those that algorithms of collectives declare."""

    def _all(self) -> dict[str, Limit]:
        # here, not above: they read clusters
        from flint.backends.cost.collectives.algorithm import constants

        return {**_TIER, **{name: constant.limit for name, constant in constants().items()}}

    def __getitem__(self, name: str) -> Limit:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


#: Constants of a tier of the network.
NETWORK: Mapping[str, Limit] = _OfNetworks()


def limit_of(known: Mapping[str, Limit], name: str) -> Limit | None:
    """What a constant of the table `known` may be; None if it has no constant of that name."""
    if known is GPU and name.startswith(HEAD_SIZES):
        size = name.removeprefix(HEAD_SIZES)
        return _EFFICIENCY if _HEAD_SIZE.fullmatch(size) else None
    return known.get(name)


def names_of(known: Mapping[str, Limit]) -> list[str]:
    """The names that a table `known` allows, for people."""
    return [*known, f"{HEAD_SIZES}128"] if known is GPU else list(known)


def _named(known: Mapping[str, Limit]) -> BeforeValidator:
    """Refuse constants that the table `known` does not have."""

    def check(table: Any) -> Any:
        for name in table if isinstance(table, dict) else ():
            if limit_of(known, name) is None:
                raise unknown(name, names_of(known), table[name])
        return table

    return BeforeValidator(check)


def _limited(known: Mapping[str, Limit]) -> AfterValidator:
    """Refuse constants with values that the table `known` does not allow."""

    def check(table: dict[str, Quantity]) -> dict[str, Quantity]:
        for name, quantity in table.items():
            limit = limit_of(known, name)
            if limit is not None and not limit.allows(quantity.value):
                raise wrong(f"should be {limit}, it is {quantity.value:g}", name)
        return table

    return AfterValidator(check)


def _typed(table: Any) -> Any:
    """Refuse peaks of types that are none."""
    for name in table if isinstance(table, dict) else ():
        if name not in ELEMENT_TYPES:
            raise unknown(name, list(ELEMENT_TYPES), table[name])
    return table


def _has_constants(name: str) -> str:
    """Refuse a chip to be `like` that has no constants."""
    known = chips_with_constants() if name else {}
    if name and name not in known:
        said = f"is '{name}', which is no chip with constants{nearest(name, list(known))}"
        raise wrong(said, help=f"one of {', '.join(known)}")
    return name


GpuConstants = Annotated[dict[str, Quantity], _named(GPU), _limited(GPU)]
SystolicConstants = Annotated[dict[str, Quantity], _named(SYSTOLIC), _limited(SYSTOLIC)]
NetworkConstants = Annotated[dict[str, Quantity], _named(NETWORK), _limited(NETWORK)]
Peaks = Annotated[dict[str, Positive], BeforeValidator(_typed)]
Like = Annotated[str, AfterValidator(_has_constants)]
