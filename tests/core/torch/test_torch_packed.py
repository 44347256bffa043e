"""Weights that join gate and up: split as shards of them are, and by values the same program."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from flint.frontends.torch_graph.shardings.packed import Packed, split_by_shards

WIDTH, SHARDS = 24, 3


class Feedforward(torch.nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.joined = torch.nn.Linear(5, WIDTH, bias=False)
        self.down = torch.nn.Linear(WIDTH // 2, 5, bias=False)

    def forward(self, x: Any) -> Any:
        both = self.joined(x)
        if self.how == "chunk":
            gate, up = both.chunk(2, dim=-1)
        elif self.how == "split":
            gate, up = torch.split(both, WIDTH // 2, dim=2)
        elif self.how == "sizes":
            gate, up = both.split([WIDTH // 2, WIDTH // 2], -1)
        else:
            gate, up = both[..., ::2], both[..., 1::2]
        return self.down(torch.sigmoid(gate) * up)


class Model(torch.nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.module = torch.nn.ModuleDict({"mlp": Feedforward(how)})

    def forward(self, x: Any) -> Any:
        return self.module["mlp"](x)


def exported(how: str) -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    model, x = Model(how), torch.randn(2, 4, 5)
    return model, x, torch.export.export(model, (x,), strict=False).module()


def in_order_of_shards(weight: Any) -> Any:
    """Rows as the shards hold them: of every shard first its gate, then its up."""
    part = WIDTH // 2 // SHARDS
    return weight.view(2, SHARDS, part, -1).transpose(0, 1).reshape(WIDTH, -1)


@pytest.mark.parametrize("how", ["chunk", "split", "sizes"])
def test_halves_are_those_of_weights_in_the_order_of_shards(how: str) -> None:
    model, x, graph = exported(how)
    expected = model(x)
    assert split_by_shards(graph, {"mlp": Packed(WIDTH, SHARDS)}) == set()
    targets = {str(n.target) for n in graph.graph.nodes}
    assert not targets & {
        "aten.chunk.default",
        "aten.split.Tensor",
        "aten.split_with_sizes.default",
    }
    with torch.no_grad():
        weight = graph.get_parameter("module.mlp.joined.weight")
        weight.copy_(in_order_of_shards(weight.clone()))
        torch.testing.assert_close(graph(x), expected)


def test_what_is_not_split_in_halves_stays_and_is_reported() -> None:
    _, _, graph = exported("strided")
    before = graph.code
    assert split_by_shards(graph, {"mlp": Packed(WIDTH, SHARDS)}) == {"mlp"}
    assert graph.code == before


def test_other_modules_and_sizes_stay() -> None:
    _, _, graph = exported("chunk")
    before = graph.code
    asked = {"mlp": Packed(2 * WIDTH, SHARDS), "other": Packed(WIDTH, SHARDS)}
    assert split_by_shards(graph, asked) == {"mlp", "other"}
    assert graph.code == before
