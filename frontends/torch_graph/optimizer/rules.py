"""Steps of PyTorch's optimizers that read values on the host, written without reading them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

#: A step for one parameter: parameter, gradient, state and the options of the group. It changes
#: the parameter and the state in place.
Rule = Callable[[torch.Tensor, torch.Tensor, Any, Mapping[str, Any]], None]


def rule_for(optimizer: torch.optim.Optimizer) -> Rule | None:
    """The rule that does what the step of `optimizer` does, or None: then its own step is traced.

    A class derived from PyTorch's counts while it keeps the step.
    """
    for known, rule in _RULES.items():
        if isinstance(optimizer, known) and type(optimizer).step is known.step:
            return rule
    return None


def _adafactor(
    parameter: torch.Tensor, gradient: torch.Tensor, state: dict[str, Any], group: Mapping[str, Any]
) -> None:
    """Adafactor (Shazeer and Stern, 2018), algorithms 4 and 5, as torch.optim has it.

    PyTorch reads the norms of the parameter and of the update to the host; here they stay tensors.
    """
    if group["maximize"]:
        gradient = -gradient
    state.setdefault("step", torch.tensor(0.0))
    state["step"] += 1
    step = float(state["step"].item())
    small, least_scale = group["eps"]
    small = torch.finfo(parameter.dtype).eps if small is None else small
    rate = min(float(group["lr"]), step**-0.5)
    scale = _root_mean_square(parameter).clamp(min=least_scale) * rate
    if group["weight_decay"]:
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
    variance = _adafactor_variance(gradient, state, step ** group["beta2_decay"], small)
    update = gradient * variance.clamp(min=small * small).rsqrt()
    excess = (_root_mean_square(update) / group["d"]).clamp(min=1.0)
    parameter.sub_((update.float() * (scale / excess)).to(parameter.dtype))


def _adafactor_variance(
    gradient: torch.Tensor, state: dict[str, Any], weight: float, small: float
) -> torch.Tensor:
    """The running second moment: of matrices by rows and columns, of vectors by elements."""
    if gradient.dim() < 2:
        state.setdefault("variance", torch.zeros_like(gradient))
        state["variance"].lerp_(gradient * gradient, weight)
        return state["variance"].clone()
    for name, dimension in (("row_var", -1), ("col_var", -2)):
        mean = torch.norm(gradient, dim=dimension, keepdim=True).square()
        mean = mean / gradient.size(dimension)
        state.setdefault(name, torch.zeros_like(mean))
        state[name].lerp_(mean, weight)
    rows = state["row_var"]
    return (rows @ state["col_var"]) / rows.mean(dim=-2, keepdim=True).clamp(min=small)


def _root_mean_square(tensor: torch.Tensor) -> torch.Tensor:
    norm: torch.Tensor = tensor.norm(2).float() / tensor.numel() ** 0.5
    return norm


_RULES: dict[type[torch.optim.Optimizer], Rule] = {torch.optim.Adafactor: _adafactor}
