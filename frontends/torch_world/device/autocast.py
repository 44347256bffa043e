"""Mixed precision on the virtual device: which operators autocast runs in which type.

PyTorch implements autocast for the devices that it knows; another one brings its own. The lists are
the operators that have a kernel of PyTorch's for the key AutocastCUDA, by what that does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeGuard

import torch

from flint.frontends.torch_private import (
    DispatchKey,
    DispatchKeySet,
    OpOverload,
    forget_library,
    schema_of,
    without_dispatch_keys,
)
from flint.frontends.torch_world.device.device import NAME, SHOWN

_KEY = "AutocastPrivateUse1"
#: Calls an operator with its arguments, in the types that autocast wants.
_Policy = Callable[[OpOverload, tuple[object, ...], dict[str, object]], object]
#: In the half type: matrix products, convolutions, attention and cells of recurrent networks.
_LOWER = """
    conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input conv_transpose3d.input
    convolution _convolution prelu addmm addmv addr matmul mm mv linear addbmm baddbmm bmm einsum
    chain_matmul linalg_multi_dot linalg_vecdot gru_cell lstm_cell rnn_relu_cell rnn_tanh_cell
    _thnn_fused_gru_cell _thnn_fused_lstm_cell scaled_dot_product_attention
    _scaled_dot_product_flash_attention
"""
#: In float32: what loses too much otherwise.
_FLOAT32 = """
    acos asin cosh erfinv exp expm1 log log10 log2 log1p rsqrt reciprocal sinh tan pow.Tensor_Scalar
    pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm rms_norm group_norm renorm
    kl_div nll_loss nll_loss2d l1_loss smooth_l1_loss huber_loss mse_loss soft_margin_loss
    multi_margin_loss margin_ranking_loss hinge_embedding_loss cosine_embedding_loss poisson_nll_loss
    triplet_margin_loss multilabel_margin_loss binary_cross_entropy_with_logits logsumexp dist cdist
    pdist cosine_similarity nuclear_norm nuclear_norm.dim frobenius_norm.dim norm.ScalarOpt_dim
    upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d upsample_bilinear2d
    _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d upsample_bicubic2d
    upsample_trilinear3d _upsample_bilinear2d_aa _upsample_bicubic2d_aa
"""
#: Read as they are, with a result in float32 unless the program names its type.
_FLOAT32_RESULT = """
    softmax.int log_softmax.int cumprod cumsum sum sum.dim_IntList prod prod.dim_int
    linalg_vector_norm linalg_matrix_norm linalg_matrix_norm.str_ord
"""
#: In the widest type among their arguments.
_WIDEST = """
    addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put scatter_add tensordot
"""
#: Refused, as what they return overflows.
_UNSAFE = "binary_cross_entropy"


class Autocast:
    """The kernels, and casts of parameters kept for as long as the outermost context lasts."""

    def __init__(self) -> None:
        self._casts: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

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
            for names, kernel in (
                (_LOWER, self._in_type(lambda args: torch.get_autocast_dtype(NAME))),
                (_FLOAT32, self._in_type(lambda args: torch.float32)),
                (_WIDEST, self._in_type(_widest)),
                (_FLOAT32_RESULT, _with_result),
                (_UNSAFE, _refused),
            ):
                for name in names.split():
                    aten.impl(name, _kernel(name, kernel))
            yield
        finally:
            forget_library(aten)
            forget_library(rest)

    def _in_type(self, dtype_of: Callable[[list[object]], torch.dtype]) -> _Policy:
        def run(
            operator: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]
        ) -> object:
            dtype = dtype_of([*args, *kwargs.values()])
            cast = {key: self.cast(arg, dtype) for key, arg in kwargs.items()}
            return operator(*(self.cast(arg, dtype) for arg in args), **cast)

        return run

    def cast(self, arg: object, dtype: torch.dtype) -> object:
        """An argument in the type that an operator runs in."""
        if isinstance(arg, (list, tuple)):
            return [self.cast(entry, dtype) for entry in arg]
        if not _is_eligible(arg) or arg.dtype == dtype:
            return arg
        keeps = arg.is_leaf and arg.requires_grad and torch.is_autocast_cache_enabled()
        if not keeps or arg.dtype != torch.float32:
            return arg.to(dtype)
        kept = self._casts.get(id(arg))
        if kept is None or kept[1].dtype != dtype:
            with torch.enable_grad():  # a cast that `no_grad` made trains later
                kept = self._casts[id(arg)] = (arg, arg.to(dtype))
        return kept[1]


def _is_eligible(arg: object) -> TypeGuard[torch.Tensor]:
    """Whether autocast may change the type of an argument."""
    if not isinstance(arg, torch.Tensor) or not arg.is_floating_point():
        return False
    return bool(arg.device.type == SHOWN and arg.dtype != torch.float64)


def _kernel(name: str, policy: _Policy) -> Callable[..., object]:
    packet, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
    without = DispatchKeySet(getattr(DispatchKey, _KEY))

    def run(*args: object, **kwargs: object) -> object:
        with without_dispatch_keys(without):
            return policy(operator, args, kwargs)

    return run


def _with_result(
    operator: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    place = [argument.name for argument in schema_of(operator).arguments].index("dtype")
    named = kwargs.get("dtype", args[place] if len(args) > place else None)
    if named is None and _is_eligible(args[0]):
        return operator(*args[:place], **{**kwargs, "dtype": torch.float32})
    return operator(*args, **kwargs)


def _widest(args: list[object]) -> torch.dtype:
    tensors = (t for arg in args for t in (arg if isinstance(arg, (list, tuple)) else (arg,)))
    is_wide = any(_is_eligible(t) and t.dtype == torch.float32 for t in tensors)
    return torch.float32 if is_wide else torch.get_autocast_dtype(NAME)


def _refused(operator: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    raise RuntimeError(
        "binary_cross_entropy is unsafe to autocast: use binary_cross_entropy_with_logits"
    )
