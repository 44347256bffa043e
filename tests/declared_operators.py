"""Operators of a program's own, whose cost it declares in each of the three ways."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import register_flop_formula

import flint


@torch.library.custom_op("declared::mix", mutates_args=())
def mix(x: torch.Tensor, w: torch.Tensor, chunk: int) -> torch.Tensor:
    """Has a formula of PyTorch's."""
    return x @ w


@mix.register_fake
def _(x: torch.Tensor, w: torch.Tensor, chunk: int) -> torch.Tensor:
    return x.new_empty(x.shape[0], w.shape[1])


@register_flop_formula(torch.ops.declared.mix)
def _mix_flops(x: torch.Size, w: torch.Size, chunk: int, **_: object) -> int:
    return int(2 * x[0] * x[1] * w[1] * chunk)


@torch.library.custom_op("declared::scan", mutates_args=())
def scan(x: torch.Tensor, steps: int) -> torch.Tensor:
    """Has an estimate."""
    return x.clone()


@scan.register_fake
def _(x: torch.Tensor, steps: int) -> torch.Tensor:
    return torch.empty_like(x)


@flint.cost_of("declared::scan")
def _scan_cost(call: flint.KernelCall) -> flint.CostEstimate:
    (x,) = call.operands
    flops = call.attributes["steps"] * x.num_elements
    return flint.CostEstimate(flops, transcendentals=5, bytes_accessed=3 * x.num_bytes)


@torch.library.custom_op("declared::cube", mutates_args=())
def cube(x: torch.Tensor) -> torch.Tensor:
    """Is in the table of operators, with its class."""
    return x * x * x


@cube.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@flint.torch_op(
    "declared::cube",
    op_class=flint.OpClass.ARITHMETIC,
    flops=lambda call: 2 * call.results[0].num_elements,
)
def _cube_in_jax(x):  # type: ignore[no-untyped-def]
    return x * x * x


@torch.library.custom_op("declared::unknown", mutates_args=())
def unknown(x: torch.Tensor) -> torch.Tensor:
    """Nothing is declared for it."""
    return x.clone()


@unknown.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("declared::windowed", mutates_args=())
def windowed(
    x: torch.Tensor, window: list[int], other: torch.Tensor | None = None, mode: str = "same"
) -> torch.Tensor:
    """Takes a list of numbers, and an argument that may be missing."""
    return x.clone()


@windowed.register_fake
def _(
    x: torch.Tensor, window: list[int], other: torch.Tensor | None = None, mode: str = "same"
) -> torch.Tensor:
    return torch.empty_like(x)


@flint.cost_of("declared::windowed")
def _windowed_cost(call: flint.KernelCall) -> int:
    given = call.attributes
    assert given["mode"] == "same", given
    return int(sum(given["window"])) * call.operands[0].num_elements


@torch.library.custom_op("declared::broken", mutates_args=())
def broken(x: torch.Tensor) -> torch.Tensor:
    """Its formula raises."""
    return x.clone()


@broken.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@register_flop_formula(torch.ops.declared.broken)
def _broken_flops(x: torch.Size, **_: object) -> int:
    return x[0] // 0


class Windowed(torch.nn.Module):
    """One operator with a list of numbers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As large as `x`."""
        return run_windowed(x)


class Broken(torch.nn.Module):
    """One operator whose formula raises."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As large as `x`."""
        return broken(x)


def run_windowed(x: torch.Tensor) -> torch.Tensor:
    """One call that leaves out what has a default."""
    return windowed(x, [2, 3])


class Model(torch.nn.Module):
    """All three, one after another, with 64 x 32 rows."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(32, 48))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """64 x 48 results."""
        return scan(cube(mix(x, self.w, 4)), 7)


def train(last: str = "") -> None:
    """Three steps of one rank; `last` names one more operator of this file that runs."""
    torch.distributed.init_process_group("nccl")
    model = Model().to("cuda")
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(3):
        with torch.no_grad():
            y = model(torch.zeros(64, 32, device="cuda"))
            if last:
                globals()[last](y)
        model.w.grad = torch.zeros_like(model.w)
        optimizer.step()
