"""Disaggregated: prefill and decode on separate pools, with the caches sent between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flint.errors import FlintError
from flint.io.fields import NAMED, TEXT, Allowed, check_fields, count, each, one_of, optional
from flint.steps.step import Step, TorchStep

if TYPE_CHECKING:
    from flint.ir.mesh import Mesh
    from flint.steps.captured import Captured

_STEP = Allowed("a flint.Step or flint.TorchStep", lambda v: isinstance(v, Step | TorchStep))
_NAMES = Allowed(
    "a mapping from names of results to names of arguments",
    lambda v: isinstance(v, Mapping) and all(map(TEXT.holds, (*v, *v.values()))),
    "{\"result[1]['*']\": \"cache['*']\"}",
)
_DIMENSION = count(0, 63)


def _each_key(rule: Allowed) -> Allowed:
    """A dimension, or a mapping that has one for each key of `caches`."""
    return one_of(
        rule,
        Allowed("a mapping to them", lambda v: NAMED.holds(v) and all(map(rule.holds, v.values()))),
    )


@dataclass(frozen=True)
class Disaggregated:
    """A prefill and a decode step, each on some positions of the mesh axis `axis`.

    Every position is a replica with the whole of the other axes, for which both steps are written;
    neither may shard over `axis`. `decode_positions` are by default all other positions.

    `caches` maps results of the prefill step to arguments of the decode step, by name or glob (`*`
    matches any text): `{"result[1]['*']": "cache['*']"}`. Results that match a glob go one by one
    to the arguments that match the other, in their order.

    `batch_dimension` is the dimension of a cache that counts requests, one for all or one for each
    key of `caches`. With g the greatest common divisor of the numbers of positions, the i-th
    prefill position serves the decode positions j with j % g == i % g: each shard of its requests
    is divided evenly among them, and takes free places of the decode batch, the same number on each
    shard. The decode batch may be larger. `length_dimension`, likewise, is one along which the
    decode argument may be longer: the sent data fill its beginning. All other sizes are equal.
    """

    prefill: Step | TorchStep
    decode: Step | TorchStep
    caches: Mapping[str, str]
    axis: str = "pool"
    prefill_positions: tuple[int, ...] = (0,)
    decode_positions: tuple[int, ...] = ()
    batch_dimension: int | Mapping[str, int] = 0
    length_dimension: int | Mapping[str, int | None] | None = None
    name: str = ""

    def __post_init__(self) -> None:
        positions = each(count(0), "a tuple of positions on the axis", "(0, 1)")
        check_fields(
            self,
            "FL240",
            prefill=_STEP,
            decode=_STEP,
            caches=_NAMES,
            axis=TEXT,
            prefill_positions=positions,
            decode_positions=positions,
            batch_dimension=_each_key(_DIMENSION),
            length_dimension=_each_key(optional(_DIMENSION)),
            name=TEXT,
        )

    def positions(self, mesh: Mesh) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Positions of the prefill and of the decode pool on `mesh`, ascending.

        Raises FlintError FL240 unless the mesh has the axis and the pools divide it between them.
        """
        if self.axis not in mesh.names:
            raise FlintError(
                "FL240",
                f"mesh {mesh} has no axis '{self.axis}' for the pools",
                help=f"add {self.axis}=N to the mesh, or name another axis in Disaggregated(axis=)",
            )
        size = mesh.axis_size(self.axis)
        prefill = tuple(sorted(self.prefill_positions))
        others = tuple(p for p in range(size) if p not in prefill)
        decode = tuple(sorted(self.decode_positions)) or others
        if not prefill or not decode or sorted(prefill + decode) != list(range(size)):
            raise FlintError(
                "FL240",
                f"prefill positions {list(prefill)} and decode positions {list(decode)} do not "
                f"divide axis '{self.axis}' of size {size} between them",
                help="each position belongs to exactly one pool, and neither pool is empty",
            )
        return prefill, decode


@dataclass(frozen=True)
class CacheName:
    """One entry of `Disaggregated.caches`, with its dimensions."""

    result: str
    argument: str
    batch_dimension: int
    length_dimension: int | None


@dataclass(frozen=True)
class CapturedPools:
    """Both steps, each captured once for the whole mesh, and what one sends to the other."""

    mesh: Mesh
    prefill: Captured
    decode: Captured
    axis: str
    prefill_positions: tuple[int, ...]
    decode_positions: tuple[int, ...]
    caches: tuple[CacheName, ...]
    name: str
    source: str
    warnings: tuple[str, ...] = field(default_factory=tuple)
