"""What libtpu has to know of a slice of TPUs to compile for it: a name such as `v5p:4x4x8`.

Largest tori are those of Google's documentation of each generation (cloud.google.com/tpu/docs/v4,
v5e, v5p, v6e, tpu7x, read on 2026-11-23).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from flint.errors import FlintError

#: Chips of a host in libtpu's usual layout: a slice that it does not divide has hosts of one chip.
_HOST: Final = (2, 2, 1)


@dataclass(frozen=True, slots=True)
class TpuSlice:
    """A torus of chips: what `topologies.get_topology_desc` takes as keywords."""

    topology_name: str
    chips_per_host_bounds: tuple[int, ...] = ()
    chip_config_name: str = ""

    def keywords(self) -> dict[str, Any]:
        """Those that differ from libtpu's own."""
        found: dict[str, Any] = {"topology_name": self.topology_name}
        if self.chips_per_host_bounds:
            found["chips_per_host_bounds"] = list(self.chips_per_host_bounds)
        if self.chip_config_name:
            found["chip_config_name"] = self.chip_config_name
        return found

    def __str__(self) -> str:
        return self.topology_name.partition(":")[2]


@dataclass(frozen=True, slots=True)
class TpuTarget:
    """One generation. `devices_per_chip` are what JAX sees of a chip; `torus` the largest slice.

    `memory_bytes` are of one device.
    """

    name: str
    torus: tuple[int, ...]
    memory_bytes: int
    library_name: str = ""
    devices_per_chip: int = 1
    chip_config_name: str = ""
    accelerator: str = field(default="v5p-16")  #: a type that libtpu takes for its own host
    caveat: str = ""
    platform: ClassVar[str] = "tpu"

    def slice_of(self, devices: int) -> TpuSlice:
        """The slice of a mesh: the torus that is as near to a cube or square as it goes.

        Raises FlintError FL414 if chips would be used in part, and for more chips than one slice has:
        several are joined by another network, and compiled apart.
        """
        if devices % self.devices_per_chip and devices > 1:
            raise FlintError(
                "FL414",
                f"a {self.name} chip is {self.devices_per_chip} devices, and {devices} are no "
                "whole number of chips",
                help=f"give a mesh of {devices + 1} devices, or another --chip",
            )
        shapes = self._shapes(max(devices // self.devices_per_chip, 1))
        if not shapes:
            raise self._no_slice(devices)
        # Sides that hosts divide go first.
        shape = min(shapes, key=lambda s: (s[0] % 2 + s[1] % 2, max(s) - min(s), s))
        whole = all(n % h == 0 for n, h in zip(shape, _HOST, strict=False))
        return TpuSlice(
            f"{self.library_name or self.name}:{'x'.join(map(str, shape))}",
            () if whole else (1, 1, 1),
            self.chip_config_name,
        )

    def _no_slice(self, devices: int) -> FlintError:
        largest = math.prod(self.torus) * self.devices_per_chip
        torus = "x".join(map(str, self.torus))
        why = "no such slice" if devices <= largest else f"at most {largest:,} in a slice"
        return FlintError(
            "FL414",
            f"there are {devices:,} devices in the mesh, and {self.name} has {why} (its torus is up "
            f"to {torus} chips)",
            help="give a mesh of another size, or another --chip",
        )

    def _shapes(self, chips: int) -> list[tuple[int, ...]]:
        pairs = [(a, chips // a) for a in range(1, chips + 1) if chips % a == 0]
        if len(self.torus) == 2:
            found: list[tuple[int, ...]] = [p for p in pairs if p[0] <= p[1]]
        else:
            found = [
                (a, b, rest // b)
                for a, rest in pairs
                for b in range(a, rest + 1)
                if a * a * a <= chips and rest % b == 0 and b <= rest // b
            ]
            found += [(2, 2, 1)] * (chips == 4)  # what Google calls a slice of four
        return [s for s in found if all(n <= m for n, m in zip(s, self.torus, strict=True))]


_ALL = (
    TpuTarget("v4", (12, 16, 16), 32 << 30, chip_config_name="megacore"),
    TpuTarget("v5e", (16, 16), 16 << 30),
    TpuTarget("v5p", (16, 20, 28), 95 << 30),
    TpuTarget("v6e", (16, 16), 32 << 30),
    TpuTarget("v7", (16, 16, 36), 96 << 30, library_name="tpu7x", devices_per_chip=2),
)
#: By name.
TPU_TARGETS: Final = {target.name: target for target in _ALL}
