"""Operators that GPUs have a kernel for, and that PyTorch takes apart on any other device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

#: Composite operators with kernels of their own for CPU and CUDA, of PyTorch 2.13, whose results
#: are like the first input.
_WHOLE = ("mish_backward", "native_channel_shuffle", "silu_backward")


@contextmanager
def operators_kept_whole() -> Iterator[None]:
    """Keep those operators whole on the virtual device, as they are on a GPU."""
    library = torch.library.Library("aten", "IMPL", "PrivateUse1")
    try:
        for name in _WHOLE:
            library.impl(name, _like_the_first)
        yield
    finally:
        library._destroy()


def _like_the_first(tensor: Any, *rest: Any) -> Any:
    """The result of an operator that is recorded but not computed."""
    return torch.empty_like(tensor)
