"""The table of programs, and how one runs: two steps, on whatever accelerator there is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

WORLD = 4
WIDTH, HEADS, ROWS, TOKENS, VOCABULARY = 64, 4, 4, 16, 96


@dataclass
class Training:
    """One step of a program, and the modules, optimizers and tensors that outlive it."""

    step: Callable[[], None]
    kept: tuple[Any, ...]


PROGRAMS: dict[str, Callable[[str], Training]] = {}


def program(make: Callable[[str], Training]) -> Callable[[str], Training]:
    """Put a function of a device into the table `PROGRAMS`, under its name."""
    PROGRAMS[make.__name__.replace("_", " ")] = make
    return make


def begin(name: str, **meeting: Any) -> Training:
    """Join the world and build a program; `meeting` says where its ranks meet."""
    import benchmarks.real_ranks.parallel
    import benchmarks.real_ranks.replicated  # noqa: F401 - both fill the table

    dist.init_process_group(**meeting)
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    torch.manual_seed(0)
    return PROGRAMS[name](accelerator.type if accelerator else "cpu")


def train(name: str) -> None:
    """What is recorded."""
    training = begin(name)
    for _ in range(2):
        training.step()


class Attention(nn.Module):
    """Self-attention in matrix products, which all devices run alike."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.o = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            f(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for f in (self.q, self.k, self.v)
        )
        scores = torch.softmax(q @ k.transpose(-2, -1) * 0.25, -1)
        return self.o((scores @ v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """A block of a transformer."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = Attention(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x))
        return x + self.down(F.gelu(self.up(x)))


class Model(nn.Module):
    """A small language model."""

    def __init__(self, layers: int = 2, vocabulary: int = VOCABULARY, tied: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.head = nn.Linear(WIDTH, vocabulary, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def tokens_of(device: str, rows: int = ROWS, vocabulary: int = VOCABULARY) -> Tensor:
    """Random tokens."""
    return torch.randint(0, vocabulary, (rows, TOKENS), device=device)


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
    """The loss of a language model."""
    return F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


def stepping(backward: Callable[[], Any], optimizer: Any, *kept: Any) -> Training:
    """Gradients, an update, and gradients away."""

    def step() -> None:
        backward()
        optimizer.step()
        optimizer.zero_grad()

    return Training(step, (*kept, optimizer))


def training(
    model: nn.Module, optimizer: Any, tokens: Tensor, between: Callable[[], Any] = lambda: None
) -> Training:
    """A step of the usual kind; `between` runs after the backward pass."""

    def backward() -> None:
        loss_of(model, tokens).backward()
        between()

    return stepping(backward, optimizer, model, tokens)
