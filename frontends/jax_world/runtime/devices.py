"""Devices that JAX takes for accelerators: they have names, numbers and places, and run nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from flint.frontends.jax_world.runtime.chips import ChipAnswers

#: What XLA leaves of a GPU's memory to itself: JAX preallocates three quarters
#: (XLA_PYTHON_CLIENT_MEM_FRACTION, docs.jax.dev/en/latest/gpu_memory_allocation.html).
_GPU_SHARE = 0.75
#: What a client says of the software below it, by platform.
_VERSIONS = {"cuda": "cuda 13000", "rocm": "rocm 70000", "tpu": "libtpu"}


class VirtualMemory:
    """A kind of memory of a device: "device", "pinned_host" or "unpinned_host".

    It equals its kind: jaxlib compares the kinds that a sharding names with the memories themselves
    where devices are Python objects.
    """

    def __init__(self, device: VirtualDevice, kind: str) -> None:
        self.kind = kind
        self._device = device

    def addressable_by_devices(self) -> list[VirtualDevice]:
        """The device itself."""
        return [self._device]

    def __eq__(self, other: object) -> bool:
        return other is self or other == self.kind

    def __hash__(self) -> int:
        return hash(self.kind)

    def __repr__(self) -> str:
        return f"{self.kind}({self._device!r})"


class VirtualDevice:
    """One device of a `VirtualClient`, with the attributes that `jax.Device` has."""

    def __init__(self, client: VirtualClient, number: int, coords: tuple[int, ...]) -> None:
        chip = client.chip
        self.id = number
        self.client = client
        self.platform = client.platform
        self.device_kind = chip.kind
        self.process_index = number // client.per_process
        self.host_id = self.task_id = self.process_index
        self.local_hardware_id = number % client.per_process
        self.slice_index = 0
        if chip.platform == "tpu":
            self.coords = coords
            self.core_on_chip = 0
            self.num_cores = 1
        else:
            self.compute_capability = chip.capability
        kinds = ("device", "pinned_host", "unpinned_host")
        self._memories = {kind: VirtualMemory(self, kind) for kind in kinds}

    def memory(self, kind: str) -> VirtualMemory:
        """One of its memories."""
        return self._memories[kind]

    def default_memory(self) -> VirtualMemory:
        """Where arrays are put."""
        return self._memories["device"]

    def addressable_memories(self) -> list[VirtualMemory]:
        """All of its memories."""
        return list(self._memories.values())

    def memory_stats(self) -> dict[str, int]:
        """What JAX says of a device's memory in bytes, as on a device where nothing runs yet."""
        share = _GPU_SHARE if self.platform == "gpu" else 1.0
        limit = int(self.client.chip.memory_bytes * share)
        names = ("bytes_in_use", "peak_bytes_in_use", "largest_alloc_size", "num_allocs")
        return {**dict.fromkeys(names, 0), "bytes_limit": limit, "bytes_reservable_limit": limit}

    def live_buffers(self) -> list[object]:
        """None: arrays hold no data."""
        return []

    def __repr__(self) -> str:
        if self.platform == "gpu":
            return f"{self.client.raw_platform.capitalize()}Device(id={self.id})"
        place = f"coords={self.coords}, core_on_chip=0"
        return f"TpuDevice(id={self.id}, process_index={self.process_index}, {place})"

    def __str__(self) -> str:
        return (
            f"{self.client.raw_platform}:{self.id}" if self.platform == "gpu" else f"TPU_{self.id}"
        )


class VirtualClient:
    """What JAX calls a client or backend: as many devices of one chip as a mesh of sizes `axes` has.

    They are those of `processes` processes, of which it is number 0. Nothing is compiled, nothing
    runs.
    """

    runtime_type = "stream_executor"
    pjrt_c_api_major_version, pjrt_c_api_minor_version = 0, 100
    supports_cross_host_transfers = True

    def __init__(self, chip: ChipAnswers, axes: Sequence[int], processes: int = 1) -> None:
        count = math.prod(axes)
        self.chip = chip
        self.platform = chip.backend
        self.raw_platform = chip.platform
        self.platform_version = _VERSIONS[chip.platform]
        self.per_process = -(-count // processes)
        places = _places(count, chip.torus_dimensions, axes)
        self._devices = [VirtualDevice(self, i, place) for i, place in enumerate(places)]

    def devices(self) -> list[VirtualDevice]:
        """All devices."""
        return self._devices

    def local_devices(self) -> list[VirtualDevice]:
        """Those of this process."""
        return [d for d in self._devices if d.process_index == 0]

    def device_count(self) -> int:
        """How many there are."""
        return len(self._devices)

    def local_device_count(self) -> int:
        """How many this process has."""
        return len(self.local_devices())

    def process_index(self) -> int:
        """This process."""
        return 0

    def _get_all_devices(self) -> list[VirtualDevice]:
        return self._devices

    def device_from_local_hardware_id(self, number: int) -> VirtualDevice:
        """A device of this process."""
        return self.local_devices()[number]

    def get_default_layout(self, *_: object) -> Any:
        """No layouts are known: JAX takes this answer for its own default."""
        raise NotImplementedError("devices without data have no layouts")

    def live_arrays(self) -> list[object]:
        """None: arrays hold no data."""
        return []

    def live_executables(self) -> list[object]:
        """None: nothing is compiled."""
        return []

    def defragment(self) -> None:
        """Nothing to do."""


def _places(count: int, dimensions: int, axes: Sequence[int]) -> list[tuple[int, ...]]:
    """Coordinates of `count` chips in a torus, or in a row where `dimensions` is 0."""
    if not dimensions:
        return [(i,) for i in range(count)]
    x, y, z = torus_shape(count, dimensions, axes)
    return [(i % x, i // x % y, i // (x * y)) for i in range(x * y * z)]


def torus_shape(count: int, dimensions: int, axes: Sequence[int] = ()) -> tuple[int, int, int]:
    """Sizes x <= y <= z whose product is `count`, as equal as possible; x is 1 in two dimensions.

    Those are taken before others of which each size in `axes` is one or a product of some, as
    `jax.experimental.mesh_utils` wants it of a mesh whose axes are laid along the torus.
    """
    shapes = [
        (x, y, count // (x * y))
        for x in (_divisors(count) if dimensions == 3 else [1])
        for y in _divisors(count // x)
        if x <= y <= count // (x * y)
    ]
    wanted = [a for a in axes if a > 1]
    return max(shapes, key=lambda s: (_can_lay(wanted, s), s[0], s[1]))


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def _can_lay(axes: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether each of `axes` can be given sizes of `shape` of its own whose product it is."""
    if not axes:
        return True
    sizes = [s for s in shape if s > 1]
    for chosen in range(1, 2 ** len(sizes)):
        taken = [s for i, s in enumerate(sizes) if chosen >> i & 1]
        rest = [s for i, s in enumerate(sizes) if not chosen >> i & 1]
        if math.prod(taken) == axes[0] and _can_lay(axes[1:], rest):
            return True
    return False
