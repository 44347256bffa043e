"""A norm and a multi-layer perceptron in one module."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from flint.tools.stand_ins.transformer_engine.activations import activated
from flint.tools.stand_ins.transformer_engine.layers.linear import Linear
from flint.tools.stand_ins.transformer_engine.layers.norm_linear import LayerNormLinear

__all__ = ["LayerNormMLP"]
_GATED = ("geglu", "reglu", "swiglu")


class LayerNormMLP(nn.Module):
    """`transformer_engine.pytorch.LayerNormMLP`: its parameters have the names of one module's."""

    def __init__(
        self,
        hidden_size: int,
        ffn_hidden_size: int,
        eps: float = 1e-5,
        sequence_parallel: bool = False,
        return_bias: bool = False,
        activation: str = "gelu",
        normalization: str = "LayerNorm",
        set_parallel_mode: bool = False,
        init_method: Any = None,
        output_layer_init_method: Any = None,
        return_layernorm_output: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        self.activation, self.return_bias = activation, return_bias
        wide = ffn_hidden_size * (2 if activation in _GATED else 1)
        modes = ("column", "row") if set_parallel_mode else (None, None)
        known = (
            *("fuse_wgrad_accumulation", "tp_group", "tp_size", "get_rng_state_tracker"),
            *("bias", "params_dtype", "device"),
        )
        common = {name: options[name] for name in known if name in options}
        common["sequence_parallel"] = sequence_parallel
        first = LayerNormLinear(
            *(hidden_size, wide, eps),
            normalization=normalization,
            parallel_mode=modes[0],
            init_method=init_method,
            return_layernorm_output=return_layernorm_output,
            **common,
        )
        second = Linear(
            *(ffn_hidden_size, hidden_size),
            parallel_mode=modes[1],
            init_method=output_layer_init_method,
            return_bias=return_bias,
            **common,
        )
        self._layers = (first, second)  # a tuple: their parameters are this module's
        self.layer_norm_weight, self.layer_norm_bias = (
            first.layer_norm_weight,
            first.layer_norm_bias,
        )
        self.fc1_weight, self.fc1_bias = first.weight, first.bias
        self.fc2_weight, self.fc2_bias = second.weight, second.bias

    def set_tensor_parallel_group(self, tp_group: Any) -> None:
        """The group, where it was made after the module."""
        for layer in self._layers:
            layer.set_tensor_parallel_group(tp_group)

    def forward(self, inp: torch.Tensor, is_first_microbatch: bool | None = None) -> Any:
        """Norm, product, activation, product."""
        first, second = self._layers
        hidden = first.normalize(inp)
        multiplied = first.multiply(hidden, is_first_microbatch)
        out = second(activated(multiplied, self.activation), is_first_microbatch)
        if not first.return_layernorm_output:
            return out
        return (*out, hidden) if self.return_bias else (out, hidden)
