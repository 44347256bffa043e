"""Which packages are stood in for, and what stands behind each of their modules.

`pyproject.toml` registers them (`flint.stand_ins`) by the names that programs import.
"""

from __future__ import annotations

from functools import partial

from flint.frontends.torch_world.packages.package import Package

_package = partial(Package, source="flint.tools.stand_ins")
_TE = "transformer_engine"
_PYTORCH = f"{_TE}.pytorch"
_MODULES = (
    *(
        f"{_TE}.layers.linear",
        f"{_TE}.layers.norm_linear",
        f"{_TE}.layers.mlp",
        f"{_TE}.layers.norms",
        f"{_TE}.layers.grouped",
    ),
    *(f"{_TE}.attention", f"{_TE}.fp8", f"{_TE}.distributed", f"{_TE}.permutation"),
    *(f"{_TE}.cross_entropy", f"{_TE}.padding"),
)
TRANSFORMER_ENGINE = _package(
    name=_TE,
    version="2.8.0",
    distribution="transformer-engine",
    namespace="te",
    stack="megatron",
    modules={
        _TE: (),
        f"{_TE}.common": (),
        f"{_TE}.common.recipe": (f"{_TE}.recipes",),
        _PYTORCH: _MODULES,
        f"{_PYTORCH}.fp8": (f"{_TE}.fp8",),
        f"{_PYTORCH}.distributed": (f"{_TE}.distributed",),
        f"{_PYTORCH}.attention": (f"{_TE}.attention", f"{_TE}.rope"),
        f"{_PYTORCH}.attention.rope": (f"{_TE}.rope",),
        f"{_PYTORCH}.attention.dot_product_attention": (f"{_TE}.attention",),
        f"{_PYTORCH}.permutation": (f"{_TE}.permutation",),
        f"{_PYTORCH}.cross_entropy": (f"{_TE}.cross_entropy",),
        f"{_PYTORCH}.router": (f"{_TE}.router",),
        f"{_PYTORCH}.optimizers": ("multi_tensor", "optimizers"),
        f"{_PYTORCH}.ops": (f"{_TE}.activations",),
        f"{_PYTORCH}.module": _MODULES,
        f"{_PYTORCH}.module.base": (f"{_TE}.layers.base",),
        f"{_PYTORCH}.module.linear": (f"{_TE}.layers.linear",),
        f"{_PYTORCH}.module.layernorm_linear": (f"{_TE}.layers.norm_linear",),
        f"{_PYTORCH}.module.layernorm": (f"{_TE}.layers.norms",),
        f"{_PYTORCH}.module.rmsnorm": (f"{_TE}.layers.norms",),
        f"{_PYTORCH}.module.grouped_linear": (f"{_TE}.layers.grouped",),
        f"{_PYTORCH}.tensor": (f"{_TE}.tensors",),
        f"{_PYTORCH}.tensor.utils": (f"{_TE}.tensors",),
        f"{_PYTORCH}.tensor.float8_tensor": (f"{_TE}.tensors",),
        f"{_PYTORCH}.tensor.mxfp8_tensor": (f"{_TE}.tensors",),
        f"{_PYTORCH}.float8_tensor": (f"{_TE}.tensors",),
    },
    imports={
        _TE: ("common", "pytorch"),
        f"{_TE}.common": ("recipe",),
        _PYTORCH: ("fp8", "distributed", "attention", "module", "ops", "tensor", "optimizers"),
    },
)
APEX = _package(
    name="apex",
    version="0.1",
    distribution="apex",
    modules={
        "apex": (),
        "apex.multi_tensor_apply": ("multi_tensor",),
        "apex.optimizers": ("optimizers",),
        "apex.normalization": ("apex.norms",),
        "apex.normalization.fused_layer_norm": ("apex.norms",),
        "apex.contrib": (),
        "apex.contrib.layer_norm": ("apex.norms",),
        "apex.contrib.layer_norm.layer_norm": ("apex.norms",),
    },
    imports={"apex": ("multi_tensor_apply", "optimizers", "normalization")},
)


def _extension(name: str, behind: str) -> Package:
    return _package(name=name, version="0.1", distribution="apex", modules={name: (behind,)})


AMP_C = _extension("amp_C", "multi_tensor")
WEIGHT_GRADIENT = _extension("fused_weight_gradient_mlp_cuda", "apex.gradients")
SOFTMAX = _extension("scaled_softmax_cuda", "apex.softmax")
MASKED_SOFTMAX = _extension("scaled_masked_softmax_cuda", "apex.softmax")
CAUSAL_SOFTMAX = _extension("scaled_upper_triang_masked_softmax_cuda", "apex.softmax")
_FLASH = "flash_attn"
FLASH_ATTENTION = _package(
    name=_FLASH,
    version="2.8.3",
    distribution="flash-attn",
    modules={
        _FLASH: (f"{_FLASH}.interface",),
        f"{_FLASH}.flash_attn_interface": (f"{_FLASH}.interface",),
        f"{_FLASH}.bert_padding": (f"{_FLASH}.padding",),
        f"{_FLASH}.layers": (),
        f"{_FLASH}.layers.rotary": (f"{_FLASH}.rotary",),
        f"{_FLASH}.losses": (),
        f"{_FLASH}.losses.cross_entropy": (f"{_FLASH}.losses",),
        f"{_FLASH}.ops": (),
        f"{_FLASH}.ops.rms_norm": (f"{_FLASH}.layer_norm",),
        f"{_FLASH}.ops.triton": (),
        f"{_FLASH}.ops.triton.layer_norm": (f"{_FLASH}.layer_norm",),
        f"{_FLASH}.ops.triton.rotary": (f"{_FLASH}.rotary",),
        f"{_FLASH}.ops.triton.cross_entropy": (f"{_FLASH}.losses",),
    },
)
#: flash-attn 3, which is a module by itself.
FLASH_ATTENTION_3 = _package(
    name="flash_attn_interface",
    version="3.0.0",
    distribution="flash-attn-3",
    modules={"flash_attn_interface": (f"{_FLASH}.interface",)},
)
XFORMERS = _package(
    name="xformers",
    version="0.0.32",
    distribution="xformers",
    modules={
        "xformers": (),
        "xformers.ops": ("xformers",),
        "xformers.ops.fmha": ("xformers",),
        "xformers.ops.fmha.attn_bias": ("xformers",),
    },
)
_KERNELS = ("triton_.launches", "triton_.host")
TRITON = _package(
    name="triton",
    version="3.5.0",
    distribution="triton",
    modules={
        "triton": _KERNELS,
        "triton.language": ("triton_.language",),
        "triton.language.math": ("triton_.language",),
        "triton.language.extra": ("triton_.language",),
        "triton.language.extra.libdevice": ("triton_.language",),
        "triton.language.extra.cuda": ("triton_.language",),
        "triton.language.extra.cuda.libdevice": ("triton_.language",),
        "triton.runtime": _KERNELS,
        "triton.runtime.jit": _KERNELS,
        "triton.runtime.autotuner": _KERNELS,
    },
    around="triton_.wrapping:triton_unwrapped",
    imports={"triton": ("language", "runtime"), "triton.runtime": ("autotuner", "jit")},
)
DEEP_EP = _package(
    name="deep_ep",
    version="1.2.1",
    distribution="deep-ep",
    modules={"deep_ep": ("deep_ep",), "deep_ep.utils": ("deep_ep",)},
)
