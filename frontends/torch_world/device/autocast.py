"""Mixed precision on the virtual device: which operators autocast runs in which type.

PyTorch implements autocast for the devices that it knows; another one brings its own. The lists are
those of the CUDA op reference in PyTorch's documentation of automatic mixed precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from flint.frontends.torch_private import (
    DispatchKey,
    DispatchKeySet,
    forget_library,
    without_dispatch_keys,
)
from flint.frontends.torch_world.device.device import NAME, SHOWN

_KEY = "AutocastPrivateUse1"
#: In the half type: matrix products and convolutions.
_LOWER = (
    *("conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d", "conv_transpose2d.input"),
    *("conv_transpose3d.input", "convolution", "prelu", "addmm", "addmv", "addr", "matmul", "mm"),
    *("mv", "linear", "addbmm", "baddbmm", "bmm", "einsum", "chain_matmul", "linalg_multi_dot"),
    "linalg_vecdot",
)
#: In float32: what loses too much otherwise.
_FLOAT32 = (
    *("acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "rsqrt"),
    *("reciprocal", "sinh", "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar"),
    *("softplus", "layer_norm", "native_layer_norm", "rms_norm", "group_norm", "kl_div"),
    *("nll_loss", "nll_loss2d", "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss", "cdist"),
    *("binary_cross_entropy_with_logits", "cross_entropy_loss", "nll_loss_nd", "logsumexp", "dist"),
    *("softmax.int", "log_softmax.int", "cumprod", "cumsum", "sum", "sum.dim_IntList", "prod"),
    *("soft_margin_loss", "multi_margin_loss", "margin_ranking_loss", "hinge_embedding_loss"),
    "cosine_similarity",
)


class Autocast:
    """The kernels, and casts of parameters kept for as long as the outermost context lasts."""

    def __init__(self) -> None:
        self._casts: dict[int, tuple[Any, Any]] = {}

    def forget(self) -> None:
        """`torch.clear_autocast_cache`, which leaving a context calls."""
        self._casts.clear()

    @contextmanager
    def registered(self) -> Iterator[None]:
        """Register a kernel for every operator of the lists, and nothing for all others."""
        rest = torch.library.Library("_", "IMPL", _KEY)
        aten = torch.library.Library("aten", "IMPL", _KEY)
        try:
            rest.fallback(torch.library.fallthrough_kernel)
            for name in _LOWER:
                aten.impl(name, self._kernel(name, lambda: torch.get_autocast_dtype(NAME)))
            for name in _FLOAT32:
                aten.impl(name, self._kernel(name, lambda: torch.float32))
            yield
        finally:
            forget_library(aten)
            forget_library(rest)

    def _kernel(self, name: str, dtype: Callable[[], torch.dtype]) -> Callable[..., Any]:
        packet, _, overload = name.partition(".")
        operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
        without = DispatchKeySet(getattr(DispatchKey, _KEY))

        def run(*args: object, **kwargs: object) -> object:
            with without_dispatch_keys(without):
                target = dtype()
                return operator(
                    *(self.cast(arg, target) for arg in args),
                    **{key: self.cast(arg, target) for key, arg in kwargs.items()},
                )

        return run

    def cast(self, arg: object, dtype: torch.dtype) -> object:
        """An argument in the type that an operator runs in."""
        if isinstance(arg, (list, tuple)):
            return [self.cast(entry, dtype) for entry in arg]
        if not isinstance(arg, torch.Tensor) or not arg.is_floating_point() or arg.dtype == dtype:
            return arg
        if arg.device.type != SHOWN or arg.dtype == torch.float64:
            return arg
        keeps = arg.is_leaf and arg.requires_grad and torch.is_autocast_cache_enabled()
        if not keeps:
            return arg.to(dtype)
        kept = self._casts.get(id(arg))
        if kept is None or kept[1].dtype != dtype:
            kept = self._casts[id(arg)] = (arg, arg.to(dtype))
        return kept[1]
