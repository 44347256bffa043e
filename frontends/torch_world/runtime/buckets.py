"""Buckets of gradients as a communication hook of DistributedDataParallel sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from flint.frontends.torch_private import OpOverload, TorchDispatchMode, pytree


class Future:
    """A result that is there when somebody waits for it, as `torch.futures.Future` to a hook.

    What `then` adds runs when it is waited for, not before: on a GPU it runs beside the backward
    pass, on a stream of its own.
    """

    def __init__(self, resolve: Callable[[], Any]) -> None:
        self._resolve: Callable[[], Any] | None = resolve
        self._result: object = None

    def wait(self) -> Any:
        """The result. What it was made of, such as a compressed bucket, is let go of."""
        if self._resolve is not None:
            self._result, self._resolve = self._resolve(), None
        return self._result

    def value(self) -> Any:
        return self.wait()

    def done(self) -> bool:
        """Nobody has to wait for fake data."""
        return True

    def then(self, callback: Callable[[Future], Any]) -> Future:

        def resolve() -> object:
            self.wait()
            return callback(self)

        return Future(resolve)


#: Of the latest collective, inside a communication hook.
LAST_TENSORS: ContextVar[list[Any] | None] = ContextVar("LAST_TENSORS", default=None)


class CollectiveTensors(TorchDispatchMode):
    """Keeps the tensors of the latest c10d operator, which the fake `Work` does not know."""

    def __init__(self, latest: list[Any]) -> None:
        super().__init__()
        self._latest = latest

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: object,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        if func.namespace == "c10d":
            given = args[0] if isinstance(args[0], (list, tuple)) else [args[0]]
            self._latest[:] = [
                t for t in pytree.tree_leaves(list(given)) if isinstance(t, torch.Tensor)
            ]
        return func(*args, **(kwargs or {}))


def get_future(work: dist.Work) -> Future:
    """In the place of `Work.get_future`: inside a communication hook, the latest collective's
    tensors; elsewhere None, as the fake process group answers.
    """
    latest = LAST_TENSORS.get()
    tensors = list(latest) if latest is not None else None

    def resolve() -> object:
        work.wait()
        return tensors

    return Future(resolve)


@dataclass(eq=False)
class Bucket:
    """Gradients that travel together: one flat buffer, and a view of it per parameter."""

    indices: list[int]
    size_limit: int
    buffer: torch.Tensor
    views: list[Any]
    pending: int = 0
    reduced: Future | None = None

    @property
    def num_bytes(self) -> int:
        return int(self.buffer.numel() * self.buffer.element_size())


class GradBucket:
    """What a communication hook sees of a bucket."""

    def __init__(
        self, index: int, buffer: torch.Tensor, views: list[Any], params: list[Any], last: bool
    ):
        self._index = index
        self._buffer = buffer
        self._views = views
        self._params = params
        self._last = last

    def index(self) -> int:
        return self._index

    def buffer(self) -> torch.Tensor:
        return self._buffer

    def gradients(self) -> list[Any]:
        return self._views

    def parameters(self) -> list[Any]:
        return self._params

    def is_last(self) -> bool:
        return self._last

    def set_buffer(self, tensor: torch.Tensor) -> None:
        self._buffer = tensor
