"""What a JAX script is run as: its arguments, its devices, and what of it is captured."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flint.frontends.jax_world.calls import Choice
from flint.frontends.jax_world.runtime.chips import ChipAnswers
from flint.ir.mesh import Mesh


@dataclass(frozen=True)
class Job:
    """A script with its arguments, the devices to run it on, and what of it to capture.

    With `module` the script is run as `python -m module` would run it.
    `mesh` has as many devices as the script shall see; `is_named` says whether the user named its
    axes. Files from before `began`, in seconds since the epoch, stay as they are.
    """

    script: str
    argv: tuple[str, ...]
    module: str
    mesh: Mesh
    is_named: bool
    chip: ChipAnswers
    choice: Choice = field(default_factory=Choice)
    hints: Mapping[str, Any] = field(default_factory=dict)
    began: float = field(default_factory=time.time, compare=False)

    @property
    def name(self) -> str:
        """The script's name."""
        return Path(self.script).name
