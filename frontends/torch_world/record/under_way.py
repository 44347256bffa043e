"""Collectives and messages that nobody has waited for yet."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist


class UnderWay:
    """Tensors by the handle that holds them, as that of NCCL does, until somebody waits for it."""

    def __init__(self) -> None:
        self._tensors: WeakKeyDictionary[dist.Work, tuple[list[Any], list[Any]]] = (
            WeakKeyDictionary()
        )
        #: Of the last operator, which keeps it until the program has it.
        self.latest: dist.Work | None = None

    def starts(self, result: object, written: list[Any], tensors: list[Any]) -> None:
        """An operator of c10d returned `result`, with a handle or without; `written` is its first argument."""
        boxed = result[-1] if isinstance(result, (tuple, list)) and result else result
        self.latest = dist.Work.unbox(boxed) if isinstance(boxed, torch.ScriptObject) else None
        if self.latest is not None:
            self._tensors[self.latest] = written, tensors

    def release(self, work: dist.Work) -> list[Any] | None:
        """Let go of the tensors; those that are written, None if somebody has waited before."""
        return self._tensors.pop(work, (None, None))[0]
