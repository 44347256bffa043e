"""Checkpoints of arrays without data stay unwritten, whoever writes them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

#: What saves, by its module, and what it returns when it has: orbax says whether a step was due.
_SAVES: dict[str, dict[str, object]] = {
    "orbax.checkpoint": {
        "CheckpointManager.save": True,
        "Checkpointer.save": None,
        "AsyncCheckpointer.save": None,
        "StandardCheckpointer.save": None,
        "PyTreeCheckpointer.save": None,
    },
    "flax.training.checkpoints": {"save_checkpoint": "", "save_checkpoint_multiprocess": ""},
}
#: The sentence for the user.
SAID = "checkpoints are not written: arrays have no data"


class Unwritten:
    """Replaces what saves in libraries that are imported by then, until `undo` is closed."""

    def __init__(self, said: Callable[[str], None], undo: contextlib.ExitStack) -> None:
        self._said = said
        self._undo = undo
        self._done: set[str] = set()

    def look(self) -> None:
        """Replace what was imported since the last time."""
        for module, saves in _SAVES.items():
            if module not in self._done and module in sys.modules:
                self._done.add(module)
                for path, result in saves.items():
                    self._replace(sys.modules[module], path, result)

    def _replace(self, module: Any, path: str, result: object) -> None:
        owner, _, name = path.rpartition(".")
        holder = getattr(module, owner, None) if owner else module
        if holder is None or name not in vars(holder):
            return  # inherited, or not in this release
        original = getattr(holder, name)

        def save(*_: Any, **__: Any) -> object:
            self._said(SAID)
            return result

        setattr(holder, name, save)
        self._undo.callback(setattr, holder, name, original)
