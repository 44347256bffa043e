"""`FusedAdam` and `FusedSGD` of Apex and Transformer Engine: a kernel for all parameters of a type."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from flint.tools.stand_ins.multi_tensor import (
    multi_tensor_adam,
    multi_tensor_applier,
    multi_tensor_sgd,
)

__all__ = ["FusedAdam", "FusedSGD"]


class _Fused(torch.optim.Optimizer):
    """What both have: `step` groups parameters by type."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none=set_to_none)

    def _by_type(self, group: dict[str, Any]) -> dict[torch.dtype, list[Any]]:
        found: dict[torch.dtype, list[Any]] = {}
        for parameter in group["params"]:
            if self._gradient(parameter) is not None:
                found.setdefault(parameter.dtype, []).append(parameter)
        return found

    def _gradient(self, parameter: Any) -> Any:
        return parameter.grad

    def _state(self, parameter: Any, name: str, dtype: torch.dtype) -> Any:
        state = self.state[parameter]
        if name not in state:
            state[name] = torch.zeros_like(parameter, dtype=dtype)
        return state[name]

    def _flag(self, device: Any) -> Any:
        return torch.empty(0, dtype=torch.int32, device=device)


class FusedAdam(_Fused):
    """Adam with weight decay, in one kernel for all parameters of a type."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        set_grad_none: bool | None = None,
        capturable: bool = False,
        master_weights: bool = False,
        use_decoupled_grad: bool = False,
        store_param_remainders: bool = False,
        exp_avg_dtype: torch.dtype = torch.float32,
        exp_avg_sq_dtype: torch.dtype = torch.float32,
        master_weight_dtype: torch.dtype = torch.float32,
        **options: Any,
    ) -> None:
        if amsgrad:
            raise RuntimeError("FusedAdam does not support the AMSGrad variant.")
        defaults = {"lr": lr, "bias_correction": bias_correction, "betas": betas, "eps": eps}
        super().__init__(params, {**defaults, "weight_decay": weight_decay})
        self.adam_w_mode, self.master_weights = adam_w_mode, bool(master_weights)
        self.capturable, self.use_decoupled_grad = capturable, use_decoupled_grad
        self._types = (exp_avg_dtype, exp_avg_sq_dtype, master_weight_dtype)

    def _gradient(self, parameter: Any) -> Any:
        name = "decoupled_grad" if self.use_decoupled_grad else "grad"
        return getattr(parameter, name, None)

    def initialize_state(self, param: Any, store_param_remainders: bool = False) -> None:
        """Make a parameter's state."""
        self._state(param, "exp_avg", self._types[0])
        self._state(param, "exp_avg_sq", self._types[1])
        if self.master_weights and param.dtype != torch.float32:
            self._state(param, "master_param", self._types[2])

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, *args: Any, **kwargs: Any) -> Any:
        """One kernel for the parameters of each type in each group."""
        loss = closure() if closure is not None else None
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for dtype, parameters in self._by_type(group).items():
                lists = [[self._gradient(p) for p in parameters], parameters]
                lists.append([self._state(p, "exp_avg", self._types[0]) for p in parameters])
                lists.append([self._state(p, "exp_avg_sq", self._types[1]) for p in parameters])
                if self.master_weights and dtype != torch.float32:
                    name, kind = "master_param", self._types[2]
                    lists.append([self._state(p, name, kind) for p in parameters])
                flag = self._flag(parameters[0].device)
                multi_tensor_applier(multi_tensor_adam, flag, lists)
        return loss


class FusedSGD(_Fused):
    """Stochastic gradient descent, in one kernel for all parameters of a type."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One kernel for the parameters of each type in each group."""
        loss = closure() if closure is not None else None
        for group in self.param_groups:
            for parameters in self._by_type(group).values():
                momenta = [self._state(p, "momentum_buffer", torch.float32) for p in parameters]
                lists = [[p.grad for p in parameters], parameters, momenta]
                multi_tensor_applier(multi_tensor_sgd, self._flag(parameters[0].device), lists)
        return loss
