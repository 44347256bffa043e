"""What the patches, the recorder and the process that runs a program share."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from flint.frontends.torch_world.device.autocast import Autocast
from flint.frontends.torch_world.device.device import DeviceTimeline, LostExceptions
from flint.frontends.torch_world.record.modules import ModulePaths
from flint.frontends.torch_world.record.phases import Phases
from flint.ir.program import Phase

# Which compiled call of the program runs, and whether a CUDA graph replays it.


class CompiledCall(NamedTuple):
    """What an operator was part of.

    `number` counts the calls of compiled functions from 1; 0 is what runs eagerly. `replayed` says
    that a CUDA graph launches the operator.
    """

    number: int = 0
    replayed: bool = False


#: What runs eagerly.
EAGER = CompiledCall()


class CompiledCalls:
    """Follows a program into its compiled calls, and out of them.

    A compiled function inside another is part of it, as it is traced with it.
    """

    def __init__(self) -> None:
        self.made = 0  #: calls so far
        self._stack: list[CompiledCall | None] = []

    @property
    def current(self) -> CompiledCall:
        return (self._stack[-1] if self._stack else None) or EAGER

    @property
    def is_outside(self) -> bool:
        """Whether what runs is kept out of compiled calls, whatever called it."""
        return bool(self._stack) and self._stack[-1] is None

    @contextmanager
    def call(self, *, fuses: bool = True, replays: bool = False) -> Iterator[None]:
        """What runs inside is one call: of a compiled function if `fuses`, of a graph if `replays`."""
        before = self.current
        number = before.number
        if fuses and not number:
            self.made += 1
            number = self.made
        self._stack.append(CompiledCall(number, replays or before.replayed))
        try:
            yield
        finally:
            self._stack.pop()

    @contextmanager
    def outside(self) -> Iterator[None]:
        """What runs inside is not compiled: the compiler leaves it out of its graphs."""
        self._stack.append(None)
        try:
            yield
        finally:
            self._stack.pop()


# What the process of one rank finds out and that of another rank needs to know.


@dataclass
class Handover:
    """Facts by name (`stage 3`), pickled: the process that passes them on has no PyTorch.

    `known` comes from processes before, `found` is for those that follow, `assumed` is what this
    one took to be true without knowing.
    """

    known: Mapping[str, bytes] = field(default_factory=dict)
    found: dict[str, bytes] = field(default_factory=dict)
    assumed: dict[str, bytes] = field(default_factory=dict)

    def tell(self, name: str, fact: object) -> None:
        """Say what others may need. Facts that cannot be pickled stay here."""
        try:
            self.found[name] = pickle.dumps(fact)
        except (pickle.PicklingError, TypeError, AttributeError, RuntimeError):
            self.found.pop(name, None)

    def ask(self, name: str) -> Any:
        """What is known under this name. Raises KeyError."""
        return pickle.loads(self.found[name] if name in self.found else self.known[name])

    def knows(self, name: str) -> bool:
        return name in self.found or name in self.known

    def assume(self, name: str, other: str) -> object:
        """Take the fact called `other` for that called `name`."""
        self.assumed[name] = self.found[other] if other in self.found else self.known[other]
        return pickle.loads(self.assumed[name])


def wrong_assumptions(assumed: Mapping[str, bytes], found: Mapping[str, bytes]) -> list[str]:
    """Names of what was found to be something else than what was assumed."""
    return [name for name, fact in sorted(assumed.items()) if found.get(name, fact) != fact]


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
    files: Any = None
    paused: int = 0
    #: Events of the CUDA graph that is captured now, if one is.
    graph: list[Any] | None = None
    on_work: Callable[[Any], None] = lambda work: None
    on_message: Callable[[Any, Phase], None] = lambda tensor, phase: None
    on_replay: Callable[[Any], None] = lambda event: None

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
