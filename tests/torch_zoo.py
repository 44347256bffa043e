"""Small PyTorch models of every kind: what both ways in are tried on.

Each is built on the default device, so that `with torch.device("meta")` gives shapes only and the
CPU gives weights, the same ones after the same seed. Those of the transformers library are apart:
it is no dependency of the tests, and each of its architectures has a counterpart written here.
"""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
VOCAB, SEQ, DIM, HEADS = 64, 16, 32, 4


@cache
def example(name: str) -> ModuleType:
    """A module of `examples/`, whose neighbours it may import."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    sys.path.insert(0, str(EXAMPLES))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(EXAMPLES))
    return module


@dataclass(frozen=True)
class Kind:
    """One kind of model: its module, the arguments of a step, and the loss of what it returns.

    `inputs(batch)` are the arguments, their first dimension the batch (the second of `lstm`'s);
    `targets(batch)` what `loss(output, *targets)` wants beside the output. `library` is what has
    to be installed.
    """

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[int], tuple[Tensor, ...]]
    targets: Callable[[int], tuple[Tensor, ...]]
    loss: Callable[..., Tensor]
    library: str = ""

    @property
    def installed(self) -> bool:
        """Whether the library that it needs is there."""
        return not self.library or importlib.util.find_spec(self.library) is not None

    def on(self, device: str, batch: int = 2, seed: int = 0) -> tuple[nn.Module, Any, Any]:
        """Module, arguments and targets, in a device's memory."""
        torch.manual_seed(seed)
        with torch.device(device):
            return self.build(), self.inputs(batch), self.targets(batch)


def tokens(*shape: int) -> Tensor:
    return torch.randint(VOCAB, shape)


def text(batch: int) -> tuple[Tensor, ...]:
    return (tokens(batch, SEQ),)


def two_texts(batch: int) -> tuple[Tensor, ...]:
    return tokens(batch, SEQ), tokens(batch, SEQ // 2)


def half_text(batch: int) -> tuple[Tensor, ...]:
    return (tokens(batch, SEQ // 2),)


def images(batch: int) -> tuple[Tensor, ...]:
    return (torch.randn(batch, 3, 32, 32),)


def labels(batch: int) -> tuple[Tensor, ...]:
    return (torch.randint(10, (batch,)),)


def token_loss(output: Any, targets: Tensor) -> Tensor:
    """Cross-entropy over the last dimension, of logits or of an output of HuggingFace's."""
    logits = getattr(output, "logits", output)
    return F.cross_entropy(logits.flatten(0, -2).float(), targets.flatten())


def image_loss(output: Any, target: Tensor) -> Tensor:
    return F.cross_entropy(getattr(output, "logits", output).float(), target)


def click_loss(output: Tensor, clicks: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(output.float(), clicks.float())


# Attention and blocks that several models share.


class Attention(nn.Module):
    """Self- or cross-attention with what models add to it.

    `soft_cap` bounds scores (Gemma 2), `norm` normalises queries and keys (Qwen 3), `fused` calls
    PyTorch's attention where nothing is added to the scores.
    """

    def __init__(
        self,
        kv_heads: int = HEADS,
        *,
        bias: bool = False,
        causal: bool = False,
        norm: bool = False,
        soft_cap: float = 0.0,
        dropout: float = 0.0,
        fused: bool = True,
    ):
        super().__init__()
        head = DIM // HEADS
        self.head, self.causal, self.soft_cap = head, causal, soft_cap
        self.fused, self.p = fused and not soft_cap, dropout
        self.q = nn.Linear(DIM, HEADS * head, bias=bias)
        self.k = nn.Linear(DIM, kv_heads * head, bias=bias)
        self.v = nn.Linear(DIM, kv_heads * head, bias=bias)
        self.o = nn.Linear(HEADS * head, DIM, bias=False)
        self.q_norm = nn.RMSNorm(head) if norm else nn.Identity()
        self.k_norm = nn.RMSNorm(head) if norm else nn.Identity()

    def forward(
        self, x: Tensor, memory: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        source = x if memory is None else memory
        q, k, v = self.q(x), self.k(source), self.v(source)
        q, k, v = (t.unflatten(-1, (-1, self.head)).transpose(1, 2) for t in (q, k, v))
        q, k = self.q_norm(q), self.k_norm(k)
        if self.fused:
            many = k.shape[1] != q.shape[1]
            y = F.scaled_dot_product_attention(
                q, k, v, bias, self.p if self.training else 0.0, self.causal, enable_gqa=many
            )
        else:
            y = self.written_out(q, k, v, bias)
        return self.o(y.transpose(1, 2).flatten(-2))

    def written_out(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for t in (k, v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.head)
        if self.soft_cap:
            scores = self.soft_cap * torch.tanh(scores / self.soft_cap)
        if bias is not None:
            scores = scores + bias
        if self.causal:
            hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
            scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
        weights = F.softmax(scores, dim=-1, dtype=torch.float32).type_as(v)
        return F.dropout(weights, self.p, self.training) @ v


class Gated(nn.Module):
    def __init__(self, activation: Callable[[Tensor], Tensor] = F.silu):
        super().__init__()
        self.gate, self.up = (
            nn.Linear(DIM, 2 * DIM, bias=False),
            nn.Linear(DIM, 2 * DIM, bias=False),
        )
        self.down, self.activation = nn.Linear(2 * DIM, DIM, bias=False), activation

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """A pre-norm decoder layer; with `cross`, it reads an encoder's output too."""

    def __init__(self, attention: nn.Module, mlp: nn.Module, norm: Any, cross: Any = None):
        super().__init__()
        self.norm1, self.attention = norm(DIM), attention
        self.norm2, self.mlp = norm(DIM), mlp
        self.cross, self.norm3 = cross, norm(DIM) if cross is not None else None

    def forward(
        self, x: Tensor, memory: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        x = x + self.attention(self.norm1(x), bias=bias)
        if self.cross is not None:
            x = x + self.cross(self.norm3(x), memory)
        return x + self.mlp(self.norm2(x))


class Decoder(nn.Module):
    """Embedding, blocks, norm and head: most language models."""

    def __init__(self, block: Callable[[int], nn.Module], norm: Any = nn.RMSNorm, depth: int = 2):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.layers = nn.ModuleList(block(i) for i in range(depth))
        self.norm, self.head = norm(DIM), nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def qwen2_like() -> nn.Module:
    """Grouped queries and biases on them."""
    return Decoder(lambda _: Block(Attention(2, bias=True, causal=True), Gated(), nn.RMSNorm))


def qwen3_like() -> nn.Module:
    """Norms of queries and keys."""
    return Decoder(lambda _: Block(Attention(2, causal=True, norm=True), Gated(), nn.RMSNorm))


class WindowBlock(Block):
    """Gemma 2: every other layer sees a window; norms after the sublayers too."""

    def __init__(self, window: int):
        gelu = nn.GELU(approximate="tanh")
        super().__init__(Attention(2, causal=True, soft_cap=50.0), Gated(gelu), nn.RMSNorm)
        self.window, self.post1, self.post2 = window, nn.RMSNorm(DIM), nn.RMSNorm(DIM)

    def forward(
        self, x: Tensor, memory: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        if self.window:
            place = torch.arange(x.shape[1], device=x.device)
            far = place[:, None] - place >= self.window
            bias = torch.zeros(far.shape, device=x.device, dtype=x.dtype).masked_fill(far, -1e4)
        x = x + self.post1(self.attention(self.norm1(x), bias=bias))
        return x + self.post2(self.mlp(self.norm2(x)))


def gemma2_like() -> nn.Module:
    return Decoder(lambda i: WindowBlock(4 if i % 2 else 0))


def llama_eager() -> nn.Module:
    """Attention written out."""
    return Decoder(lambda _: Block(Attention(2, causal=True, fused=False), Gated(), nn.RMSNorm))


class ComplexRope(nn.Module):
    """Rotary embedding as a product of complex numbers, and attention on what it gives."""

    def __init__(self) -> None:
        super().__init__()
        self.head = DIM // HEADS
        self.qkv, self.o = nn.Linear(DIM, 3 * DIM, bias=False), nn.Linear(DIM, DIM, bias=False)
        frequency = 10_000.0 ** (-torch.arange(0, self.head, 2).float() / self.head)
        angle = torch.outer(torch.arange(SEQ).float(), frequency)
        self.register_buffer("turns", torch.polar(torch.ones_like(angle), angle), persistent=False)

    def rotate(self, x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * self.turns[:, None]).flatten(-2).type_as(x)

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        q, k, v = (t.unflatten(-1, (-1, self.head)) for t in self.qkv(x).chunk(3, dim=-1))
        q, k, v = (t.transpose(1, 2) for t in (self.rotate(q), self.rotate(k), v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).flatten(-2))


def rope_complex() -> nn.Module:
    return Decoder(lambda _: Block(ComplexRope(), Gated(), nn.RMSNorm))


def llama_plain() -> nn.Module:
    module = example("torch_llama")
    config = module.Config(DIM, 2, HEADS, 2 * DIM, num_kv_heads=2, vocab=VOCAB)
    return module.Llama(config, SEQ)


class GPT2(nn.Module):
    """Learned places, a tied head, dropout, weights the other way round as GPT-2 stores them."""

    class Transposed(nn.Module):
        def __init__(self, width: int, out: int):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(width, out) * 0.1)
            self.bias = nn.Parameter(torch.zeros(out))

        def forward(self, x: Tensor) -> Tensor:
            flat = torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight)
            return flat.view(*x.shape[:-1], -1)

    class Mixer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.o = GPT2.Transposed(DIM, 3 * DIM), GPT2.Transposed(DIM, DIM)

        def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
            q, k, v = self.qkv(x).split(DIM, dim=-1)
            q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in (q, k, v))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.o(y.transpose(1, 2).reshape(x.shape))

    def __init__(self, dropout: float = 0.1):
        super().__init__()

        def block(_: int) -> Block:
            mlp = nn.Sequential(
                GPT2.Transposed(DIM, 4 * DIM), nn.GELU("tanh"), GPT2.Transposed(4 * DIM, DIM),
                nn.Dropout(dropout),
            )  # fmt: skip
            return Block(GPT2.Mixer(), mlp, nn.LayerNorm)

        self.places, self.drop = nn.Embedding(SEQ, DIM), nn.Dropout(dropout)
        self.decoder = Decoder(block, nn.LayerNorm)
        self.decoder.head.weight = self.decoder.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        d = self.decoder
        x = self.drop(d.embed(ids) + self.places(torch.arange(ids.shape[1], device=ids.device)))
        for layer in d.layers:
            x = layer(x)
        return d.head(d.norm(x))


class Bert(nn.Module):
    """An encoder with norms after the sublayers, segment and place embeddings, a tied head."""

    def __init__(self, dropout: float = 0.1):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCAB, DIM, padding_idx=0), nn.Embedding(SEQ, DIM)
        self.segments, self.norm = nn.Embedding(2, DIM), nn.LayerNorm(DIM, eps=1e-12)
        self.attention = nn.ModuleList(Attention(bias=True, dropout=dropout) for _ in range(2))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))
            for _ in range(2)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(4))
        self.drop, self.transform = nn.Dropout(dropout), nn.Linear(DIM, DIM)
        self.bias = nn.Parameter(torch.zeros(VOCAB))

    def forward(self, ids: Tensor) -> Tensor:
        seen = (ids != 0)[:, None, None, :].expand(-1, 1, ids.shape[1], -1)
        bias = torch.zeros(seen.shape, device=ids.device, dtype=self.bias.dtype)
        bias = bias.masked_fill(~seen, -1e4)
        x = self.words(ids) + self.places.weight[: ids.shape[1]] + self.segments.weight[0]
        x = self.drop(self.norm(x))
        for i in range(2):
            x = self.norms[2 * i](x + self.drop(self.attention[i](x, bias=bias)))
            x = self.norms[2 * i + 1](x + self.drop(self.mlp[i](x)))
        return F.linear(torch.tanh(self.transform(x)), self.words.weight, self.bias)


class ViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, DIM, kernel_size=8, stride=8)
        self.summary = nn.Parameter(torch.randn(1, 1, DIM) * 0.02)
        self.places = nn.Parameter(torch.randn(1, 17, DIM) * 0.02)
        mlp = (nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))
        self.block = Block(Attention(bias=True), nn.Sequential(*mlp), nn.LayerNorm)
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.summary.expand(x.shape[0], -1, -1), x], dim=1) + self.places
        return self.head(self.norm(self.block(x))[:, 0])


class T5(nn.Module):
    """Encoder and decoder whose attention adds a learned bias by (bucketed) distance."""

    def __init__(self, buckets: int = 8):
        super().__init__()
        self.buckets = buckets
        self.embed, self.distance = nn.Embedding(VOCAB, DIM), nn.Embedding(buckets, HEADS)

        def mlp() -> nn.Module:
            return nn.Sequential(
                nn.Linear(DIM, 2 * DIM, bias=False), nn.ReLU(), nn.Linear(2 * DIM, DIM)
            )

        self.encoder = nn.ModuleList(
            Block(Attention(fused=False), mlp(), nn.RMSNorm) for _ in range(2)
        )
        self.decoder = nn.ModuleList(
            Block(Attention(causal=True, fused=False), mlp(), nn.RMSNorm, Attention(fused=False))
            for _ in range(2)
        )

    def bias(self, length: int, device: Any) -> Tensor:
        place = torch.arange(length, device=device)
        away = (place[:, None] - place).abs()
        far = 4 + (torch.log(away.float().clamp(min=1) / 4) / math.log(4) * 4).to(torch.int64)
        bucket = torch.where(away < 4, away, far.clamp(max=self.buckets - 1))
        return self.distance(bucket).permute(2, 0, 1)[None]

    def forward(self, ids: Tensor, decoder_ids: Tensor) -> Tensor:
        memory, x = self.embed(ids), self.embed(decoder_ids)
        for layer in self.encoder:
            memory = layer(memory, bias=self.bias(ids.shape[1], ids.device))
        for layer in self.decoder:
            x = layer(x, memory, self.bias(decoder_ids.shape[1], ids.device))
        return F.linear(x * DIM**-0.5, self.embed.weight)


class Whisper(nn.Module):
    """A stem of 1-D convolutions over a spectrogram, an encoder, a decoder of text."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv1d(8, DIM, 3, padding=1),
            nn.GELU(),
            nn.Conv1d(DIM, DIM, 3, 2, padding=1),
            nn.GELU(),
        )

        def mlp() -> nn.Module:
            return nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))

        self.encoder = Block(Attention(bias=True), mlp(), nn.LayerNorm)
        self.text = Block(Attention(causal=True), mlp(), nn.LayerNorm, Attention())
        self.embed, self.places = nn.Embedding(VOCAB, DIM), nn.Embedding(SEQ, DIM)
        angle = torch.outer(torch.arange(SEQ).float(), 1e4 ** -torch.linspace(0, 1, DIM // 2))
        self.register_buffer("waves", torch.cat([angle.sin(), angle.cos()], dim=1))

    def forward(self, spectrogram: Tensor, ids: Tensor) -> Tensor:
        memory = self.encoder(self.stem(spectrogram).transpose(1, 2) + self.waves)
        x = self.embed(ids) + self.places.weight[: ids.shape[1]]
        return F.linear(self.text(x, memory), self.embed.weight)


def sound_and_text(batch: int) -> tuple[Tensor, ...]:
    return torch.randn(batch, 8, 2 * SEQ), tokens(batch, SEQ // 2)


class Mamba(nn.Module):
    """A selective state space, one token at a time, behind a short depthwise convolution."""

    def __init__(self, inner: int = 24, state: int = 4):
        super().__init__()
        self.state, self.inner = state, inner
        self.embed, self.norm = nn.Embedding(VOCAB, DIM), nn.RMSNorm(DIM)
        self.into = nn.Linear(DIM, 2 * inner, bias=False)
        self.mix = nn.Conv1d(inner, inner, 4, padding=3, groups=inner)
        self.select = nn.Linear(inner, 2 * state + 2, bias=False)
        self.rate = nn.Linear(2, inner)
        self.log_decay = nn.Parameter(torch.log(torch.arange(1.0, state + 1)).repeat(inner, 1))
        self.skip, self.out = nn.Parameter(torch.ones(inner)), nn.Linear(inner, DIM, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        u, gate = self.into(self.norm(x)).chunk(2, dim=-1)
        u = F.silu(self.mix(u.transpose(1, 2))[..., : ids.shape[1]]).transpose(1, 2)
        rank, b, c = self.select(u).split([2, self.state, self.state], dim=-1)
        rate = F.softplus(self.rate(rank))
        decay = torch.exp(rate[..., None] * -torch.exp(self.log_decay))
        step = (rate * u)[..., None] * b[:, :, None, :]
        h, found = torch.zeros_like(step[:, 0]), []
        for t in range(ids.shape[1]):
            h = decay[:, t] * h + step[:, t]
            found.append((h @ c[:, t, :, None]).squeeze(-1))
        y = (torch.stack(found, dim=1) + u * self.skip) * F.silu(gate)
        return F.linear(x + self.out(y), self.embed.weight)


class GroupedExperts(nn.Module):
    """Mixtral as it runs: tokens sorted by expert, one grouped product for all experts."""

    def __init__(self, experts: int = 4, chosen: int = 2):
        super().__init__()
        self.experts, self.chosen = experts, chosen
        self.router = nn.Linear(DIM, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, DIM, 2 * DIM) * 0.1)
        self.down = nn.Parameter(torch.randn(experts, 2 * DIM, DIM) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        weights, experts = F.softmax(self.router(flat).float(), dim=-1).topk(self.chosen)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        order = experts.flatten().argsort(stable=True)
        counts = torch.histc(experts.float(), bins=self.experts, min=0, max=self.experts - 1)
        ends = counts.cumsum(dim=0).to(torch.int32)
        up = F.silu(F.grouped_mm(flat[order // self.chosen], self.up, offs=ends))
        y = F.grouped_mm(up, self.down, offs=ends) * weights.flatten()[order, None].type_as(x)
        back = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=x.device))
        return y[back].view(-1, self.chosen, DIM).sum(dim=1).view_as(x)


def mixtral_like() -> nn.Module:
    return Decoder(lambda _: Block(Attention(2, causal=True), GroupedExperts(), nn.RMSNorm))


class CapacityExperts(nn.Module):
    """Experts with as many places each, tokens moved by one-hot products."""

    def __init__(self, experts: int = 4, places: int = 12):
        super().__init__()
        self.experts, self.places = experts, places
        self.router = nn.Linear(DIM, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, DIM, 2 * DIM) * 0.1)
        self.down = nn.Parameter(torch.randn(experts, 2 * DIM, DIM) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        weights, expert = F.softmax(self.router(flat).float(), dim=-1).max(dim=-1)
        chosen = F.one_hot(expert, self.experts)
        place = (chosen.cumsum(dim=0) - 1) * chosen
        kept = (place < self.places) & chosen.bool()
        places = F.one_hot(place.clamp(max=self.places - 1), self.places) * kept[..., None]
        send = places.type_as(x)
        slots = torch.einsum("tep,td->epd", send, flat)
        y = torch.bmm(F.relu(torch.bmm(slots, self.up)), self.down)
        y = torch.einsum("tep,epd->td", send * weights[:, None, None].type_as(x), y)
        return y.view_as(x)


def moe_capacity() -> nn.Module:
    return Decoder(lambda _: Block(Attention(causal=True), CapacityExperts(), nn.RMSNorm))


class Encoder(nn.Module):
    """PyTorch's own transformer layers."""

    def __init__(self, dropout: float = 0.1):
        super().__init__()
        layer = nn.TransformerEncoderLayer(DIM, HEADS, 2 * DIM, dropout, batch_first=True)
        self.embed, self.encoder = nn.Embedding(VOCAB, DIM), nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(DIM, VOCAB)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(ids)))


class Dlrm(nn.Module):
    def __init__(self, tables: list[nn.Module]):
        super().__init__()
        self.tables = nn.ModuleList(tables)
        self.bottom, self.top = nn.Linear(13, 8), nn.Linear(8 + 6, 1)
        self.register_buffer("rows", torch.tensor([1, 2, 2, 3, 3, 3]))
        self.register_buffer("columns", torch.tensor([0, 0, 1, 0, 1, 2]))

    def vectors(self, sparse: Tensor) -> list[Tensor]:
        return [table(sparse[:, i]) for i, table in enumerate(self.tables)]

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        x = F.relu(self.bottom(dense))
        every = torch.stack([x, *self.vectors(sparse)], dim=1)
        products = torch.bmm(every, every.transpose(1, 2))
        pairs = products[:, self.rows, self.columns]
        return self.top(torch.cat([x, pairs], dim=1)).squeeze(1)


class DlrmOffsets(Dlrm):
    """Bags as one list of rows and where each begins."""

    def vectors(self, sparse: Tensor) -> list[Tensor]:
        begins = torch.arange(
            0, sparse.shape[0] * sparse.shape[2], sparse.shape[2], device=sparse.device
        )
        return [bag(sparse[:, i].flatten(), begins) for i, bag in enumerate(self.tables)]


def dlrm_bag() -> nn.Module:
    return DlrmOffsets([nn.EmbeddingBag(50, 8, mode=mode) for mode in ("sum", "mean", "sum")])


def dlrm_embedding() -> nn.Module:
    return Dlrm([nn.Embedding(50, 8) for _ in range(3)])


def clicks(batch: int) -> tuple[Tensor, ...]:
    return (torch.randint(2, (batch,)),)


class UNet(nn.Module):
    """Group norms, attention in the middle, transposed convolution and upsampling on the way up."""

    def __init__(self, width: int = 8):
        super().__init__()
        self.inward = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.norm, self.middle_norm = nn.GroupNorm(4, width), nn.GroupNorm(4, 2 * width)
        self.attention = nn.MultiheadAttention(2 * width, 2, batch_first=True)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.smooth = nn.Conv2d(2 * width, width, 3, padding=1)
        self.coarse = nn.Conv2d(2 * width, width, 1)
        self.time, self.out = nn.Linear(1, 2 * width), nn.Conv2d(2 * width, 3, 3, padding=1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        x = F.silu(self.norm(self.inward(x)))
        low = F.silu(self.down(x)) + self.time(time)[:, :, None, None]
        low = F.avg_pool2d(F.interpolate(low, scale_factor=2.0, mode="nearest"), 2)
        flat = self.middle_norm(low).flatten(2).transpose(1, 2)
        seen, _ = self.attention(flat, flat, flat, need_weights=False)
        low = low + seen.transpose(1, 2).reshape(low.shape)
        fine = F.silu(self.smooth(torch.cat([x, self.up(low)], dim=1)))
        blurred = F.interpolate(self.coarse(low), scale_factor=2.0, mode="nearest")
        return self.out(torch.cat([fine, blurred], dim=1))


def noisy_images(batch: int) -> tuple[Tensor, ...]:
    return torch.randn(batch, 3, 16, 16), torch.rand(batch, 1)


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCAB, DIM), nn.Linear(DIM, VOCAB)
        self.lstm = nn.LSTM(DIM, DIM, num_layers=2, batch_first=True)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.lstm(self.embed(ids))[0])


def resnet() -> nn.Module:
    """The depth of ResNet-50, narrow."""
    return example("torch_resnet50_ddp").ResNet(width=8, classes=10)


# Models of the transformers library.


def hf(auto: str, config: str, attention: str = "sdpa", **sizes: Any) -> Callable[[], nn.Module]:
    """A builder of one of its models from a configuration."""

    def build() -> nn.Module:
        import transformers

        made = getattr(transformers, config)(**sizes)
        model = getattr(transformers, auto).from_config(made, attn_implementation=attention)
        assert isinstance(model, nn.Module)
        return model.train()

    return build


LM = "AutoModelForCausalLM"
DECODER = {
    "vocab_size": VOCAB, "hidden_size": DIM, "intermediate_size": 2 * DIM, "num_hidden_layers": 2,
    "num_attention_heads": HEADS, "num_key_value_heads": 2, "max_position_embeddings": SEQ,
    "use_cache": False, "pad_token_id": 0,
}  # fmt: skip
ENCODER = {key: DECODER[key] for key in list(DECODER)[:5]}


class Speech(nn.Module):
    """Its two inputs by position."""

    def __init__(self) -> None:
        super().__init__()
        sizes = {"encoder_layers": 1, "decoder_layers": 1, "d_model": DIM, "num_mel_bins": 8}
        sizes |= {"encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS}
        sizes |= {"encoder_ffn_dim": 2 * DIM, "decoder_ffn_dim": 2 * DIM}
        sizes |= {"max_source_positions": SEQ, "max_target_positions": SEQ}
        tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "use_cache": False}
        tokens |= {"decoder_start_token_id": 1, "vocab_size": VOCAB}
        self.whisper = hf("AutoModelForSpeechSeq2Seq", "WhisperConfig", **sizes, **tokens)()

    def forward(self, spectrogram: Tensor, ids: Tensor) -> Any:
        return self.whisper(input_features=spectrogram, decoder_input_ids=ids)


class Translation(nn.Module):
    """Its two inputs by position."""

    def __init__(self) -> None:
        super().__init__()
        sizes = {"vocab_size": VOCAB, "d_model": DIM, "d_kv": 8, "d_ff": 2 * DIM, "num_layers": 2}
        more = {"num_heads": HEADS, "use_cache": False, "decoder_start_token_id": 0}
        self.t5 = hf("AutoModelForSeq2SeqLM", "T5Config", "eager", **sizes, **more)()

    def forward(self, ids: Tensor, decoder_ids: Tensor) -> Any:
        return self.t5(input_ids=ids, decoder_input_ids=decoder_ids)


def _text(name: str, build: Callable[[], nn.Module], library: str = "") -> Kind:
    return Kind(name, build, text, text, token_loss, library)


OWN = (
    _text("llama_plain", llama_plain),
    _text("llama_eager", llama_eager),
    _text("rope_complex", rope_complex),
    _text("qwen2_like", qwen2_like),
    _text("qwen3_like", qwen3_like),
    _text("gemma2_like", gemma2_like),
    _text("mixtral_like", mixtral_like),
    _text("gpt2_like", GPT2),
    _text("bert_like", Bert),
    Kind("vit_like", ViT, images, labels, image_loss),
    Kind("t5_like", T5, two_texts, half_text, token_loss),
    Kind("whisper_like", Whisper, sound_and_text, half_text, token_loss),
    _text("mamba_like", Mamba),
    _text("transformer_encoder", Encoder),
    Kind("resnet50", resnet, images, labels, image_loss),
    Kind(
        "dlrm_bag",
        dlrm_bag,
        lambda n: (torch.randn(n, 13), torch.randint(50, (n, 3, 5))),
        clicks,
        click_loss,
    ),
    Kind(
        "dlrm_embedding",
        dlrm_embedding,
        lambda n: (torch.randn(n, 13), torch.randint(50, (n, 3))),
        clicks,
        click_loss,
    ),
    Kind("unet", UNet, noisy_images, lambda n: (torch.randn(n, 3, 16, 16),), F.mse_loss),
    _text("lstm", Lstm),
    _text("moe_capacity", moe_capacity),
)

_T = "transformers"
HUGGINGFACE = (
    _text("hf_llama", hf(LM, "LlamaConfig", **DECODER), _T),
    _text("hf_llama_eager", hf(LM, "LlamaConfig", "eager", **DECODER), _T),
    _text("hf_qwen2", hf(LM, "Qwen2Config", **DECODER), _T),
    _text("hf_qwen3", hf(LM, "Qwen3Config", **DECODER, head_dim=8), _T),
    _text("hf_gemma2", hf(LM, "Gemma2Config", "eager", **DECODER, head_dim=8), _T),
    _text("hf_mixtral", hf(LM, "MixtralConfig", **DECODER, num_local_experts=4), _T),
    _text(
        "hf_gpt2",
        hf(LM, "GPT2Config", vocab_size=VOCAB, n_embd=DIM, n_layer=2, n_head=HEADS,
           n_positions=SEQ, use_cache=False),
        _T,
    ),
    _text("hf_bert", hf("AutoModelForMaskedLM", "BertConfig", **ENCODER), _T),
    Kind(
        "hf_vit",
        hf("AutoModelForImageClassification", "ViTConfig", **{k: v for k, v in ENCODER.items()
           if k != "vocab_size"}, image_size=32, patch_size=8, num_labels=10),
        images,
        labels,
        image_loss,
        _T,
    ),
    Kind("hf_t5", Translation, two_texts, half_text, token_loss, _T),
    Kind("hf_whisper", Speech, sound_and_text, half_text, token_loss, _T),
    _text(
        "hf_mamba",
        hf(LM, "MambaConfig", "eager", vocab_size=VOCAB, hidden_size=DIM, num_hidden_layers=1,
           state_size=4, use_cache=False),
        _T,
    ),
)  # fmt: skip
KINDS = {kind.name: kind for kind in (*OWN, *HUGGINGFACE)}


def without_dropout(module: nn.Module) -> nn.Module:
    """The same module with every probability of dropping 0: it trains, and repeats itself."""
    for part in module.modules():
        for name in ("p", "dropout", "attention_dropout", "activation_dropout", "dropout_p"):
            if isinstance(getattr(part, name, None), float):
                setattr(part, name, 0.0)
    return module
