"""Which part of a training step runs, and when a step ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from flint.ir.program import Phase

if TYPE_CHECKING:
    from torch.optim import Optimizer


class StepDone(BaseException):
    """The recorded step is complete: unwinds the program, through its `finally` blocks."""


class Phases:
    """Follows a program from optimizer to optimizer.

    A step ends where `optimizer.step` returns; several optimizers that step without a module
    running between them are one step. The recorded step is number `steps`; what comes before the
    first one is omitted by starting at the first module that runs. With 0 everything from there
    to the end of the program is recorded.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.done_steps = 0
        self.recording = False
        self.in_optimizer = 0
        self._depths: list[int] = []
        self._parts: list[Phase] = []
        self._in_setup = False
        self._after_backward = False
        #: The optimizers of this step so far, and of the one before.
        self._steps_of: tuple[set[int], set[int]] = (set(), set())
        self.apart = False  #: whether the last step was of other optimizers than the one before
        self.on_start: Callable[[], None] = lambda: None
        #: Of the first module and one that starts: whether all since then moved their model.
        self.is_moved: Callable[[Any, Any], bool] = lambda first, module: False
        self._first: object = None
        self.on_call: Callable[[int], None] = lambda module: None
        self.on_optimizer: Callable[[Any], None] = lambda optimizer: None
        self.on_end: Callable[[], None] = lambda: None
        self.on_done: Callable[[], None] = lambda: None

    @property
    def in_backward(self) -> bool:
        return bool(self._depths)

    def phase(self, depth: int) -> Phase:
        """The part of the step, where `depth` modules run."""
        if self.in_optimizer:
            return Phase.OPTIMIZER
        if self._depths:
            return Phase.REMAT if self.recomputes(depth) else Phase.BACKWARD
        if self._parts:
            return self._parts[-1]
        return Phase.OPTIMIZER if self._after_backward and not depth else Phase.FORWARD

    @contextmanager
    def part(self, phase: Phase) -> Iterator[None]:
        """What runs inside, but neither in the autograd engine nor in an optimizer, is `phase`."""
        self._parts.append(phase)
        try:
            yield
        finally:
            self._parts.pop()

    @contextmanager
    def setup(self) -> Iterator[None]:
        """What runs inside prepares a step and is not recorded."""
        before = self.recording, self._in_setup
        self.recording, self._in_setup = False, True
        try:
            yield
        finally:
            self.recording, self._in_setup = before

    def recomputes(self, depth: int) -> bool:
        """Whether the backward pass runs forward code again, where `depth` modules run."""
        return bool(self._depths) and depth > self._depths[-1]

    def module_starts(self, depth: int, module: object = None) -> None:
        """A module is called, inside `depth` others. Raises StepDone."""
        if depth or self._depths or self._in_setup:
            return
        self.settle()
        self._after_backward = False
        starts = not self.recording or self.is_moved(self._first, module)
        if starts and self.done_steps == 0 and self.steps < 2:
            self._first = module
            self._start()
        if self.recording:
            self.on_call(id(module))

    def backward_starts(self, depth: int) -> None:
        """The autograd engine is called, inside `depth` modules. Raises StepDone."""
        if not self._depths and not self._in_setup:
            self.settle()
        self._depths.append(depth)

    def backward_ends(self) -> None:
        self._depths.pop()
        self._after_backward = True

    def optimizer_starts(self, optimizer: Optimizer) -> None:
        self.in_optimizer += 1
        self.on_optimizer(optimizer)

    def optimizer_ends(self, optimizer: Optimizer) -> None:
        """`optimizer.step` returns: here the step ends, unless another optimizer follows."""
        self.in_optimizer -= 1
        if self.in_optimizer:
            return
        self._steps_of[0].add(id(optimizer))
        if self.steps and self.done_steps + 1 == self.steps:
            self.on_end()
        elif self.done_steps + 2 == self.steps:
            self._start()

    def settle(self) -> None:
        """The program goes on to the next step, or ends. Raises StepDone after the recorded one."""
        now, before = self._steps_of
        if not now:
            return
        self.apart = bool(before) and now != before
        self._steps_of = (set(), now)
        self.done_steps += 1
        if self.steps and self.done_steps == self.steps:
            self.on_done()
            raise StepDone

    def _start(self) -> None:
        self.recording = True
        self.on_start()
