"""Buckets of gradients as a communication hook of DistributedDataParallel sees them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from flint.frontends.torch_world.record.under_way import UnderWay


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


def future_of(work: dist.Work, under_way: UnderWay) -> Future:
    """In the place of `Work.get_future`, which fake work has not: the tensors of its collective."""
    tensors = under_way.written(work)

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
