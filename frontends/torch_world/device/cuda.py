"""The module `torch.cuda` of a recorded program: what it answers without a device.

`make_device_module` gives every function by the name that it has in `torch.cuda`; `stand_ins` puts
each replaces the original, in `torch.cuda` and where else PyTorch has it.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch

from flint.frontends.torch_world.device.chips import ChipProperties
from flint.frontends.torch_world.device.device import (
    NAME,
    SHOWN,
    Device,
    DeviceTimeline,
    Stream,
    StreamEvent,
)
from flint.frontends.torch_world.device.generators import DeviceGenerator, Known


class DeviceProperties:
    """What `get_device_properties` returns."""

    warp_size = 32
    is_integrated = False
    is_multi_gpu_board = False
    max_threads_per_multi_processor = 2048
    regs_per_multiprocessor = 65536
    shared_memory_per_block = 48 * 2**10
    gcnArchName = ""
    uuid = "00000000-0000-0000-0000-000000000000"
    pci_bus_id = pci_device_id = pci_domain_id = 0

    def __init__(self, chip: ChipProperties) -> None:
        self.name = chip.name
        self.major, self.minor = chip.capability
        self.total_memory = chip.memory_bytes
        self.multi_processor_count = chip.sms
        self.L2_cache_size = chip.l2_bytes

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory // 2**20}MB, "
            f"multi_processor_count={self.multi_processor_count}, "
            f"L2_cache_size={self.L2_cache_size // 2**20}MB)"
        )


class _StatsOfNothing(dict[str, int]):
    """Memory statistics: every number that is asked for is 0."""

    def __missing__(self, key: str) -> int:
        return 0


def make_device_module(
    timeline: DeviceTimeline,
    chip: ChipProperties,
    count: int = 1,
    known: Known = lambda tensor: tensor,
    warn: Callable[[str], None] = lambda sentence: None,
) -> types.ModuleType:
    """The module of the device, over a timeline; `count` devices are in a node.

    `known` gives the values of a tensor as a real one, where they are known; `warn` tells the user.
    """
    module = types.ModuleType(f"torch.{NAME}")
    contents = {
        **_constants(),
        **_device_functions(timeline, count),
        **_memory_functions(chip, warn),
        **_property_functions(chip),
        **_stream_functions(timeline),
        **_random_functions(timeline, count, known),
    }
    for name, value in contents.items():
        setattr(module, name, value)
    return module


def device_functions() -> list[str]:
    """The names that the module has."""
    module = make_device_module(DeviceTimeline(), ChipProperties("", (0, 0), 0, 0, 0))
    return [name for name in vars(module) if not name.startswith("__")]


def _always(value: object) -> Callable[..., object]:
    def answer(*args: object, **kwargs: object) -> object:
        return value

    return answer


def _constants() -> dict[str, Any]:
    """Functions that answer the same whatever happens."""
    zero, yes, no, nothing = _always(0), _always(True), _always(False), _always(None)
    return {
        **dict.fromkeys(("is_available", "is_initialized", "is_bf16_supported"), yes),
        **dict.fromkeys(("is_tf32_supported", "can_device_access_peer"), yes),
        **dict.fromkeys(("_is_in_bad_fork", "_is_compiled", "is_current_stream_capturing"), no),
        **dict.fromkeys(("init", "_lazy_init", "_sleep", "ipc_collect"), nothing),
        **dict.fromkeys(("set_sync_debug_mode", "check_error"), nothing),
        **dict.fromkeys(("get_sync_debug_mode", "current_blas_handle"), zero),
        **dict.fromkeys(("utilization", "temperature", "power_draw", "clock_rate"), zero),
        "get_amp_supported_dtype": _always([torch.bfloat16, torch.float16, torch.float32]),
    }


#: Devices that a host has at least: a rank may choose any of them.
_OF_A_HOST = 8


def _device_functions(timeline: DeviceTimeline, count: int) -> dict[str, Any]:
    index = _always(timeline.shown.index)

    def set_device(given: Device) -> None:
        number = given if isinstance(given, int) else torch.device(given or SHOWN).index
        if number is not None and number >= max(count, _OF_A_HOST):
            raise torch.AcceleratorError("CUDA error: invalid device ordinal")

    class device:
        """`with torch.cuda.device(k):` changes nothing: a rank has one device."""

        def __init__(self, given: Device = None) -> None:
            self.idx = timeline.shown.index

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *unused: object) -> None:
            return None

    return {
        "device": device,
        "device_of": device,
        "device_count": _always(count),
        "set_device": set_device,
        **dict.fromkeys(("current_device", "_get_device", "current_device_index"), index),
    }


def _memory_functions(chip: ChipProperties, warn: Callable[[str], None]) -> dict[str, Any]:
    """Nothing is allocated: a program's own statistics of memory are 0, which is said."""
    nothing = _always(None)

    def zero(*args: object, **kwargs: object) -> int:
        warn("the program reads how much memory it uses, and gets 0; an estimate has its memory")
        return 0

    def statistics(*args: object, **kwargs: object) -> dict[str, int]:
        zero()
        return _StatsOfNothing()

    free = _always((chip.memory_bytes, chip.memory_bytes))
    return {
        **dict.fromkeys(("memory_allocated", "max_memory_allocated", "memory_reserved"), zero),
        **dict.fromkeys(("max_memory_reserved", "memory_cached", "max_memory_cached"), zero),
        **dict.fromkeys(("memory_usage", "device_memory_used"), zero),
        **dict.fromkeys(("empty_cache", "reset_peak_memory_stats"), nothing),
        **dict.fromkeys(("reset_max_memory_allocated", "reset_max_memory_cached"), nothing),
        **dict.fromkeys(("reset_accumulated_memory_stats",), nothing),
        **dict.fromkeys(("set_per_process_memory_fraction",), nothing),
        **dict.fromkeys(("_record_memory_history", "_dump_snapshot"), nothing),
        **dict.fromkeys(("memory_snapshot", "_snapshot"), lambda *_, **__: []),
        **dict.fromkeys(("mem_get_info", "get_memory_info"), free),
        **dict.fromkeys(("memory_stats", "host_memory_stats"), statistics),
        "memory_summary": _always(""),
        "get_allocator_backend": _always("native"),
        "get_per_process_memory_fraction": _always(1.0),
    }


def _property_functions(chip: ChipProperties) -> dict[str, Any]:
    properties = DeviceProperties(chip)
    major, minor = chip.capability
    return {
        "get_device_properties": _always(properties),
        "get_device_name": _always(chip.name),
        "get_device_capability": _always(chip.capability),
        "get_arch_list": lambda: [f"sm_{major}{minor}"],
    }


def _stream_functions(timeline: DeviceTimeline) -> dict[str, Any]:
    class BoundStream(Stream):
        def __new__(cls, *args: object, **kwargs: object) -> Self:
            return object.__new__(cls)

        def __init__(self, device: Device = None, priority: int = 0, **unused: object) -> None:
            super().__init__(timeline, device, priority)

    class BoundEvent(StreamEvent):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(timeline)

    @contextmanager
    def stream(entered: Stream | None) -> Iterator[None]:
        if entered is None:
            yield
            return
        with entered:
            yield

    def set_stream(entered: Stream) -> None:
        timeline.current = entered

    BoundStream.__name__ = "Stream"
    BoundEvent.__name__ = "Event"
    return {
        "Stream": BoundStream,
        "Event": BoundEvent,
        "stream": stream,
        "StreamContext": stream,
        "set_stream": set_stream,
        "synchronize": lambda *_, **__: timeline.synchronize(),
        "current_stream": lambda *_, **__: timeline.current,
        "default_stream": lambda *_, **__: timeline.default,
    }


def _random_functions(timeline: DeviceTimeline, count: int, known: Known) -> dict[str, Any]:
    """The states of the generators, one a device of the node."""
    generators = tuple(DeviceGenerator(torch.device(SHOWN, index), known) for index in range(count))

    def of(device: Device) -> DeviceGenerator:
        index = device if isinstance(device, int) else torch.device(device or SHOWN).index
        return generators[timeline.shown.index if index is None else index]

    def set_all(states: Iterable[torch.Tensor]) -> None:
        for generator, state in zip(generators, states, strict=False):
            generator.set_state(state)

    def manual_seed_all(seed: int) -> None:
        for generator in generators:
            generator.manual_seed(int(seed))

    return {
        "default_generators": generators,
        "get_rng_state": lambda device=None: of(device).get_state(),
        "set_rng_state": lambda new_state, device=None: of(device).set_state(new_state) and None,
        "get_rng_state_all": lambda: [generator.get_state() for generator in generators],
        "set_rng_state_all": set_all,
        "initial_seed": lambda: of(None).initial_seed(),
        "manual_seed": lambda seed: of(None).manual_seed(int(seed)) and None,
        "manual_seed_all": manual_seed_all,
        "seed": lambda: of(None).seed() and None,
        "seed_all": _always(None),
        "_get_generator": of,
        "_get_rng_state_offset": lambda device=None: of(device).get_offset(),
        "_set_rng_state_offset": lambda offset, device=None: of(device).set_offset(offset) and None,
    }
