"""What the patches, the recorder and the process that runs a program share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from flint.frontends.torch_world.device.autocast import Autocast
from flint.frontends.torch_world.device.device import DeviceTimeline, LostExceptions
from flint.frontends.torch_world.record.compiled import CompiledCalls
from flint.frontends.torch_world.record.handover import Handover
from flint.frontends.torch_world.record.modules import ModulePaths
from flint.frontends.torch_world.record.phases import Phases
from flint.frontends.torch_world.record.under_way import UnderWay
from flint.ir.program import Phase


@dataclass
class Session:
    """One run of a program as one rank of a world."""

    rank: int
    world_size: int
    timeline: DeviceTimeline
    modules: ModulePaths
    phases: Phases
    compiled: CompiledCalls = field(default_factory=CompiledCalls)
    autocast: Autocast = field(default_factory=Autocast)
    lost: LostExceptions = field(default_factory=LostExceptions)
    values: Any = None
    handover: Handover = field(default_factory=Handover)
    objects: Any = None
    fake_mode: Any = None
    node: int = 0  #: number of the rank's host
    world_groups: dict[tuple[int, ...], None] = field(default_factory=dict)
    device_meshes: list[Any] = field(default_factory=list)
    rank_maps: dict[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict)
    warnings: dict[str, None] = field(default_factory=dict)
    #: The backend of each process group, by the group's name.
    backends: dict[str, str] = field(default_factory=dict)
    #: How many groups of the same ranks were made before each, by its name; and how many there are.
    copies: dict[str, int] = field(default_factory=dict)
    made_of: dict[tuple[int, ...], int] = field(default_factory=dict)
    under_way: UnderWay = field(default_factory=UnderWay)
    files: Any = None
    paused: int = 0
    #: Events of the CUDA graph that is captured now, if one is.
    graph: list[Any] | None = None
    on_work: Callable[[Any], None] = lambda work: None
    on_meeting: Callable[[str, Any, int], None] = lambda name, group, root: None
    on_message: Callable[[Any, Phase], None] = lambda tensor, phase: None
    on_replay: Callable[[Any], None] = lambda event: None
    on_emptied: Callable[[Any], None] = lambda storage: None

    @property
    def device(self) -> Any:
        return self.timeline.shown

    @contextmanager
    def pause(self) -> Iterator[None]:
        """What runs inside is PyTorch's bookkeeping, not the program's work."""
        self.paused += 1
        try:
            yield
        finally:
            self.paused -= 1
