"""What to run as one rank of a world."""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flint.frontends.script_kind import program_of
from flint.frontends.torch_world.device.chips import DEFAULT_CHIP, chip_properties
from flint.steps.step import WorldStep


@dataclass(frozen=True)
class Job:
    """A script or a function, and which rank of how many to run it as.

    Of `script` and `function` one is set: a path with `argv` (with `module`, run as `python -m` runs that), or `file.py:name` / `module:name`
    with its pickled `arguments`. `call` is a function that cannot be named (a lambda, a closure):
    it is run in a fork of this process. `mesh_names` and `mesh_sizes` are the mesh that was asked
    for. `chip` names the cluster whose GPU the program is told it runs on. `known` is what processes of other ranks found out; files from before `began`, in seconds since the
    epoch, stay as they are. `steps` is the optimizer step that ends the recorded one; 0 records to the end,
    or the `part` of it: "prefill" or "decode".
    """

    script: str = ""
    argv: tuple[str, ...] = ()
    module: str = ""
    function: str = ""
    arguments: bytes = b""
    call: Callable[[], object] | None = None
    world_size: int = 1
    rank: int = 0
    mesh_names: tuple[str, ...] = ()
    mesh_sizes: tuple[int, ...] = ()
    steps: int = 2
    part: str = ""
    hints: Mapping[str, Any] = field(default_factory=dict)
    local_world_size: int = 8
    chip: str = DEFAULT_CHIP
    known: Mapping[str, bytes] = field(default_factory=dict)
    began: float = field(default_factory=time.time, compare=False)

    @property
    def local_rank(self) -> int:
        return self.rank % min(self.local_world_size, self.world_size)

    @property
    def node(self) -> int:
        """The number of the rank's host."""
        return self.rank // min(self.local_world_size, self.world_size)

    @property
    def name(self) -> str:
        if self.script:
            return Path(self.script).name
        return self.function.rpartition(":")[2] or getattr(self.call, "__name__", "function")

    @classmethod
    def of_script(
        cls,
        script: str | Path,
        argv: Sequence[str] = (),
        *,
        steps: int = 2,
        hints: Mapping[str, Any] | None = None,
        chip: str | None = None,
        part: str = "",
        per_host: int | None = None,
    ) -> Job:
        """A torchrun script, notebook or module and its arguments. Raises FlintError FL301 if it cannot be read, FL702
        if there is no such `chip`.
        """
        chip_properties(chip or DEFAULT_CHIP)
        file, module = program_of(Path(script))
        return cls(
            script=str(file),
            module=module,
            argv=tuple(argv),
            local_world_size=per_host or cls.local_world_size,
            steps=steps,
            part=part,
            hints=dict(hints or {}),
            chip=chip or DEFAULT_CHIP,
        )

    @classmethod
    def of_function(cls, step: WorldStep) -> Job:
        """The function of a WorldStep, by reference where another process can import it."""
        reference = _reference(step.fn)
        arguments = _pickled(step) if reference else b""
        if reference and arguments:
            made = cls(function=reference, arguments=arguments)
        else:
            made = cls(call=_Call(step.fn, tuple(step.args), dict(step.kwargs)))
        return replace(made, steps=step.steps, hints=dict(step.hints), chip=step.chip)


@dataclass(frozen=True)
class _Call:
    function: Callable[..., object]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def __name__(self) -> str:
        return str(getattr(self.function, "__name__", "function"))

    def __call__(self) -> object:
        return self.function(*self.args, **self.kwargs)


def _reference(function: object) -> str:
    """`file.py:name` or `module:name`, "" for what has no name that another process can find."""
    name = getattr(function, "__qualname__", "")
    module = sys.modules.get(getattr(function, "__module__", "") or "")
    if not name or "<" in name or module is None:
        return ""
    found: object = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not function:
        return ""
    file = getattr(module, "__file__", None)
    if file and (module.__name__ == "__main__" or "." not in module.__name__):
        return f"{file}:{name}" if file.endswith(".py") else ""
    return f"{module.__name__}:{name}" if module.__name__ != "__main__" else ""


def _pickled(step: WorldStep) -> bytes:
    try:
        return pickle.dumps((tuple(step.args), dict(step.kwargs)))
    except (pickle.PicklingError, AttributeError, TypeError):
        return b""
