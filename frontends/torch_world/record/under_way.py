"""Collectives and messages that nobody has waited for yet."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist


class UnderWay:
    """Tensors by the handle that holds them: as that of NCCL does, what is written as long as it is there, and what
    is read until somebody waits.
    """

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

    def waited(self, work: dist.Work) -> None:
        """Let go of what is read."""
        self.latest = None
        if work in self._tensors:
            self._tensors[work] = self._tensors[work][0], []

    def written(self, work: dist.Work) -> list[Any]:
        """What a handle's collective writes: the result of its future."""
        return self._tensors.get(work, ([], []))[0]
