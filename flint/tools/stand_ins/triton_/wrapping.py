"""`torch.library.triton_op` and `wrap_triton`: what they wrap runs, so that its kernels are recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.library

from flint.tools.stand_ins.triton_.launches import Autotuner, Heuristics, JITFunction


@contextmanager
def triton_unwrapped() -> Iterator[None]:
    """Inside, wrapped kernels of the stand-in are these kernels, and operators made of them run."""
    library: Any = torch.library
    wrap, operator = library.wrap_triton, library.triton_op

    def wrapped(kernel: Any, /) -> Any:
        own = isinstance(kernel, Autotuner | Heuristics | JITFunction)
        return kernel if own else wrap(kernel)

    def triton_op(name: str, fn: Any = None, /, **options: Any) -> Any:
        def define(function: Callable[..., Any]) -> TritonOperator:
            return TritonOperator(function, operator(name, function, **options))

        return define if fn is None else define(fn)

    library.wrap_triton, library.triton_op = wrapped, triton_op
    try:
        yield
    finally:
        library.wrap_triton, library.triton_op = wrap, operator


class TritonOperator:
    """An operator that the program made of Triton kernels; `torch.ops` has PyTorch's own."""

    def __init__(self, function: Callable[..., Any], registered: Any) -> None:
        self._function, self._registered = function, registered
        self._apply: Callable[..., Any] = function

    def __getattr__(self, name: str) -> Any:
        return getattr(self._registered, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs) if kwargs else self._apply(*args)

    def register_autograd(self, backward: Any, /, *, setup_context: Any = None) -> None:
        """Its gradient."""
        self._registered.register_autograd(backward, setup_context=setup_context)
        function = self._function

        class Operator(torch.autograd.Function):
            @staticmethod
            def forward(*args: Any) -> Any:
                return function(*args)

            @staticmethod
            def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
                if setup_context is not None:
                    setup_context(ctx, inputs, output)

            @staticmethod
            def backward(ctx: Any, *gradients: Any) -> Any:
                return backward(ctx, *gradients)

        self._apply = Operator.apply
