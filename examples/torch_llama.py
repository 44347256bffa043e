"""Llama 3 in PyTorch: one training step of the 8B, 70B and 405B models, for either way in.

One device and annotations (`annotated` below; nothing in the model knows of a mesh):

    flint capture examples/torch_llama.py --mesh 64x8 -o trace
    flint capture examples/torch_llama.py --mesh 64x8 --set model=70b --set parallel=fsdp+tp+sp

The same cut into pipeline stages:

    flint capture examples/torch_llama.py --mesh pipe=4,data=8,model=8 --cut layers \\
        --microbatches 16 --set parallel=tp+sp

Distributed as torchtitan does it (`main` below: FSDP2 over tensor and sequence parallelism, the
loss computed on shards of the vocabulary, AdamW), which is also a torchrun script for real GPUs:

    flint capture examples/torch_llama.py --mesh 64x8 --world -o trace -- --tp 8
    torchrun --nproc-per-node 8 examples/torch_llama.py --tp 8

Configurations: "The Llama 3 Herd of Models" (arXiv 2407.21783), table 3. Annotated, weights are
bfloat16; distributed, they are float32 at rest and bfloat16 when gathered, gradients are reduced in
float32 (torchtitan's defaults). Options of `annotated`:

    model     8b, 70b, 405b
    parallel  fsdp+tp, fsdp+tp+sp, tp, tp+sp: tensor parallel over the axis "model"; sp also shards
              the activations between blocks over the sequence. fsdp shards weights over "data".
              fsdp, dp: without tp, both axes carry batch.
    batch     sequences over the whole mesh; 0 is one for each data-parallel rank and microbatch
    microbatches  of a pipeline, as `--microbatches`
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
import os
from typing import TYPE_CHECKING, Annotated, Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

import flint

if TYPE_CHECKING:
    from jax.sharding import AbstractMesh


@dataclasses.dataclass(frozen=True)
class Config:
    dim: int
    num_layers: int
    num_heads: int
    ffn_dim: int
    num_kv_heads: int = 8
    vocab: int = 128_256
    rope_theta: float = 500_000.0
    norm_eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        return self.dim // self.num_heads


CONFIGS = {
    "8b": Config(dim=4096, num_layers=32, num_heads=32, ffn_dim=14_336),
    "70b": Config(dim=8192, num_layers=80, num_heads=64, ffn_dim=28_672),
    "405b": Config(dim=16_384, num_layers=126, num_heads=128, ffn_dim=53_248),
    "debug": Config(dim=64, num_layers=2, num_heads=8, num_kv_heads=4, ffn_dim=128, vocab=256),
}


def rotary_angles(c: Config, seq: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of shape (seq, head_dim / 2)."""
    frequency = c.rope_theta ** (-torch.arange(0, c.head_dim, 2).float() / c.head_dim)
    angle = torch.outer(torch.arange(seq).float(), frequency)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the halves of each head of a (batch, seq, heads, head_dim) tensor."""
    a, b = x.float().chunk(2, dim=-1)
    cos, sin = cos[:, None, :], sin[:, None, :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).type_as(x)


class Attention(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.head_dim = c.head_dim
        self.wq = nn.Linear(c.dim, c.num_heads * c.head_dim, bias=False)
        self.wk = nn.Linear(c.dim, c.num_kv_heads * c.head_dim, bias=False)
        self.wv = nn.Linear(c.dim, c.num_kv_heads * c.head_dim, bias=False)
        self.wo = nn.Linear(c.num_heads * c.head_dim, c.dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        # The number of heads is left open: under tensor parallelism a rank has some of them.
        q, k, v = (w(x).unflatten(-1, (-1, self.head_dim)) for w in (self.wq, self.wk, self.wv))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.wo(out.transpose(1, 2).flatten(-2))


class FeedForward(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.w1 = nn.Linear(c.dim, c.ffn_dim, bias=False)
        self.w2 = nn.Linear(c.ffn_dim, c.dim, bias=False)
        self.w3 = nn.Linear(c.dim, c.ffn_dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Layer(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.attention_norm = nn.RMSNorm(c.dim, eps=c.norm_eps)
        self.attention = Attention(c)
        self.ffn_norm = nn.RMSNorm(c.dim, eps=c.norm_eps)
        self.feed_forward = FeedForward(c)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    def __init__(self, c: Config, seq: int):
        super().__init__()
        self.config, self.seq = c, seq
        self.tok_embeddings = nn.Embedding(c.vocab, c.dim)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.num_layers))
        self.norm = nn.RMSNorm(c.dim, eps=c.norm_eps)
        self.output = nn.Linear(c.dim, c.vocab, bias=False)
        cos, sin = rotary_angles(c, seq)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return self.output(self.norm(x))

    @torch.no_grad()
    def init_weights(self) -> None:
        """Give memory that `to_empty` left as it was its first values."""
        for parameter in self.parameters():
            if parameter.dim() == 1:
                nn.init.ones_(parameter)
            else:
                nn.init.normal_(parameter, std=0.02)
        with torch.device(self.cos.device):
            self.cos, self.sin = rotary_angles(self.config, self.seq)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(0, 1))


# One device and annotations.


def weight_shardings(tensor: str | None) -> dict[str, Any]:
    """Column-parallel into a block, row-parallel out of it; tables over the vocabulary."""
    return {
        "tok_embeddings.weight": (tensor, None),
        "layers.*.attention.wq.weight": (tensor, None),
        "layers.*.attention.wk.weight": (tensor, None),
        "layers.*.attention.wv.weight": (tensor, None),
        "layers.*.attention.wo.weight": (None, tensor),
        "layers.*.feed_forward.w1.weight": (tensor, None),
        "layers.*.feed_forward.w2.weight": (None, tensor),
        "layers.*.feed_forward.w3.weight": (tensor, None),
        "output.weight": (tensor, None),
    }


def activation_shardings(
    batch: tuple[str, ...], tensor: str | None, sequence: str | None
) -> dict[str, Any]:
    """Between blocks over the sequence (with sp), inside of them whole."""
    return {
        "tok_embeddings": (batch, sequence, None),
        "layers.*.*_norm": (batch, None, None),
        "layers.*.attention": (batch, sequence, None),
        "layers.*.feed_forward": (batch, sequence, None),
        "layers.*": (batch, sequence, None),
        "norm": (batch, None, None),
        "output": (batch, None, tensor),
    }


@flint.entry(axes=("data", "model"))
def annotated(
    mesh: AbstractMesh,
    *,
    model: str = "8b",
    parallel: Annotated[str, ("fsdp+tp", "fsdp+tp+sp", "tp", "tp+sp")] = "fsdp+tp",
    seq: int = 8192,
    batch: int = 0,
    num_layers: int = 0,
    microbatches: int = 1,
) -> flint.TorchStep:
    """One training step. `num_layers` cuts the model short; 0 is the published depth."""
    words = set(parallel.split("+"))
    if words - {"dp", "fsdp", "tp", "sp"} or ("sp" in words and "tp" not in words):
        raise ValueError(f"parallel={parallel}: join fsdp (or dp), tp and, with tp, sp by '+'")
    if model not in CONFIGS:
        raise ValueError(f"model={model} is not one of {', '.join(CONFIGS)}")
    tensor = "model" if "tp" in words else None
    data = ("data",) if tensor else ("data", "model")
    c = CONFIGS[model]
    c = dataclasses.replace(c, num_layers=num_layers or c.num_layers)
    with torch.device("meta"):
        llama = Llama(c, seq).to(torch.bfloat16)
        each_rank = math.prod(mesh.shape[axis] for axis in data)
        shape = (batch or microbatches * each_rank, seq)
        tokens, targets = (torch.empty(shape, dtype=torch.int64) for _ in range(2))
    return flint.TorchStep(
        llama,
        (tokens,),
        loss=cross_entropy,
        loss_args=(targets,),
        optimizer="adamw",
        shardings=weight_shardings(tensor) | {"tokens": (data, None), "targets": (data, None)},
        activations=activation_shardings(data, tensor, "model" if "sp" in words else None),
        fsdp=data if "fsdp" in words else (),
        name=f"llama3-{model}",
    )


# Distributed.


def tensor_parallel(model: Llama, mesh: DeviceMesh) -> None:
    """Tensor and sequence parallelism; logits stay sharded over the vocabulary for the loss."""
    root = {
        "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(
            input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False
        ),
    }
    gather = PrepareModuleInput(
        input_layouts=(Shard(1), None, None), desired_input_layouts=(Replicate(), None, None)
    )
    layer_plan = {
        "attention_norm": SequenceParallel(),
        "attention": gather,
        "attention.wq": ColwiseParallel(),
        "attention.wk": ColwiseParallel(),
        "attention.wv": ColwiseParallel(),
        "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
        "ffn_norm": SequenceParallel(),
        "feed_forward": PrepareModuleInput(
            input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
        ),
        "feed_forward.w1": ColwiseParallel(),
        "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
        "feed_forward.w3": ColwiseParallel(),
    }
    parallelize_module(model, mesh, root)
    for layer in model.layers:
        parallelize_module(layer, mesh, layer_plan)


def parallelize(model: Llama, mesh: DeviceMesh, checkpoint: bool) -> None:
    """Tensor parallelism within, recomputation around, FSDP over all: in this order."""
    if mesh["model"].size() > 1:
        tensor_parallel(model, mesh["model"])
    if checkpoint:
        for i, layer in enumerate(model.layers):
            model.layers[i] = checkpoint_wrapper(layer)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    last = len(model.layers) - 1
    for i, layer in enumerate(model.layers):
        # The backward pass starts with the last layer: freeing it would gather it twice in a row.
        fully_shard(layer, mesh=mesh["data"], mp_policy=policy, reshard_after_forward=i < last)
    fully_shard(model, mesh=mesh["data"], mp_policy=policy)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train Llama 3 on random tokens.")
    parser.add_argument("--model", choices=CONFIGS, default="8b")
    parser.add_argument("--num-layers", type=int, default=0, help="0 is the published depth")
    parser.add_argument("--seq", type=int, default=8192)
    parser.add_argument("--batch", type=int, default=1, help="sequences of a data-parallel rank")
    parser.add_argument("--tp", type=int, default=8, help="ranks that share a sequence")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--checkpoint", action="store_true", help="recompute each layer")
    parser.add_argument("--clip", type=float, default=0.0, help="largest norm of the gradients")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    device = torch.device(accelerator.type if accelerator else "cpu")
    if accelerator:
        torch.accelerator.set_device_index(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group()
    shape = (dist.get_world_size() // options.tp, options.tp)
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=("data", "model"))

    c = CONFIGS[options.model]
    c = dataclasses.replace(c, num_layers=options.num_layers or c.num_layers)
    with torch.device("meta"):
        model = Llama(c, options.seq)
    parallelize(model, mesh, options.checkpoint)
    model.to_empty(device=device)
    model.init_weights()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )

    torch.manual_seed(mesh["data"].get_local_rank())
    on_shards = loss_parallel if options.tp > 1 else contextlib.nullcontext
    for step in range(options.steps):
        tokens = torch.randint(c.vocab, (options.batch, options.seq + 1), device=device)
        with on_shards():
            loss = cross_entropy(model(tokens[:, :-1]), tokens[:, 1:])
            loss.backward()
        if options.clip:
            nn.utils.clip_grad_norm_(model.parameters(), options.clip)
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"step {step + 1}: loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
