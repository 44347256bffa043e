"""Parts of a tensor that are made when they are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


class LazyChunks(Sequence[Any]):
    """`torch.chunk` with empty chunks behind the last, each made when it is asked for."""

    def __init__(self, tensor: torch.Tensor, num_chunks: int, dim: int) -> None:
        self._tensor, self._count, self._dim = tensor, num_chunks, dim
        self._size = -(-int(tensor.size(dim)) // num_chunks)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        index = range(self._count)[index]
        size = int(self._tensor.size(self._dim))
        if index == 0 or self._size * index < size:
            start = self._size * index
            return self._tensor.narrow(self._dim, start, min(self._size, size - start))
        return self[0].new_empty(0)
