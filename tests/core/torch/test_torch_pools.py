"""Pools of PyTorch modules: the same messages, by the names that modules give their arguments."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("jax")

from flint.ir.program import Kind
from flint.steps.pools import Disaggregated
from flint.steps.step import TorchStep
from flint.tracing_pools import trace_pools
from tests.pool_steps import rows


class Prefill(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.keys = torch.nn.Linear(16, 16, bias=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        keys = self.keys(x)
        return keys.sum(), keys


class Decode(torch.nn.Module):
    def forward(self, cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (cache * x).sum()


def test_modules() -> None:
    with torch.device("meta"):
        x, cache = torch.empty(4, 8, 16), torch.empty(6, 8, 16)
        prefill, decode = Prefill(), Decode()
    pools = Disaggregated(
        TorchStep(prefill, (x,), shardings={"x": ("data", None, None)}),
        TorchStep(decode, (cache, cache), shardings={"cache": ("data", None, None)}),
        {"result[0][1]": "cache"},
    )
    workload = trace_pools(pools, "pool=2,data=2")
    workload.verify()
    [send] = rows(workload.programs[0], Kind.SEND)
    [receive] = rows(workload.programs[1], Kind.RECV)
    assert send.comm_bytes == receive.comm_bytes == 2 * 8 * 16 * 4
    assert (send.name, receive.name) == ("result[0][1]", "cache")
