"""Llama 3 as torchtitan trains it, in PyTorch: FSDP2, tensor and context parallelism, 8 bits.

    flint capture benchmarks/models/llama_titan.py --mesh data=8,context=1,model=1 --set batch=2

The model and its distribution are those of examples/torch_llama.py. Recomputation is torchtitan's
selective one by operator (attention's result and every second product of matrices is kept), or full.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.parallel import loss_parallel
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

import flint

if TYPE_CHECKING:
    from jax.sharding import AbstractMesh

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "torch_llama.py"
_aten = torch.ops.aten
KEPT = {
    _aten.mm.default,
    _aten._scaled_dot_product_efficient_attention.default,
    _aten._scaled_dot_product_flash_attention.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
}


@functools.cache
def example() -> Any:
    """The example as a module."""
    spec = importlib.util.spec_from_file_location("torch_llama", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def selective() -> Any:
    """What of a layer is kept: KEPT, but for every second product."""
    products: Counter[bool] = Counter()

    def policy(context: Any, function: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        if function == _aten.mm.default:
            products[context.is_recompute] += 1
            if products[context.is_recompute] % 2 == 0:
                return CheckpointPolicy.PREFER_RECOMPUTE
        return CheckpointPolicy.MUST_SAVE if function in KEPT else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


class Float8(torch.autograd.Function):
    """A product in 8 bits, scaled by the largest values of each tensor (torchao's "tensorwise")."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return multiplied(scaled(x.flatten(0, -2)), scaled(weight)).unflatten(0, x.shape[:-1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        g = scaled(gradients[0].flatten(0, -2), torch.float8_e5m2)
        d_x = multiplied(g, turned(scaled(weight)))
        d_weight = multiplied(turned(g), turned(scaled(x.flatten(0, -2))))
        return d_x.view_as(x), d_weight


def scaled(x: Tensor, dtype: torch.dtype = torch.float8_e4m3fn) -> tuple[Tensor, Tensor]:
    """Values in 8 bits, and what they are multiplied with to have the old ones."""
    factor = torch.finfo(dtype).max / x.abs().amax().float().clamp(min=1e-12)
    return (x.float() * factor).to(dtype), factor.reciprocal()


def turned(x: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The transposed, as its own copy: products of 8 bits read rows of both operands."""
    return x[0].t().contiguous(), x[1]


def multiplied(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> Tensor:
    """Rows of `a` with rows of `b`."""
    return torch._scaled_mm(
        a[0], b[0].t(), scale_a=a[1], scale_b=b[1], out_dtype=torch.bfloat16, use_fast_accum=True
    )


class Float8Linear(nn.Linear):
    """A linear layer whose three products are in 8 bits."""

    def forward(self, input: Tensor) -> Tensor:
        return Float8.apply(input, self.weight)


@dataclasses.dataclass(frozen=True)
class Run:
    """What is trained, and how; see `train`."""

    model: str
    num_layers: int
    seq: int
    batch: int
    recompute: str
    float8: bool
    compiled: bool


def shard(model: Any, mesh: DeviceMesh, how: Run) -> None:
    """Recomputation and the compiler of each layer, and FSDP2 around it.

    The last layer stays gathered until its backward pass.
    """
    types = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    last = len(model.layers) - 1
    kept = {"context_fn": selective} if how.recompute == "selective" else {}
    for i, layer in enumerate(model.layers):
        wrapped = checkpoint_wrapper(layer, preserve_rng_state=False, **kept)
        if how.compiled:
            wrapped.compile(fullgraph=True)
        model.layers[i] = wrapped
        fully_shard(wrapped, mesh=mesh, mp_policy=types, reshard_after_forward=i < last)
    fully_shard(model, mesh=mesh, mp_policy=types)


def built(how: Run, mesh: DeviceMesh) -> Any:
    """The model on its devices."""
    llama = example()
    config = llama.CONFIGS[how.model]
    config = dataclasses.replace(config, num_layers=how.num_layers or config.num_layers)
    with torch.device("meta"):
        model = llama.Llama(config, how.seq)
    if how.float8:
        for layer in model.layers.modules():
            if isinstance(layer, nn.Linear):
                layer.__class__ = Float8Linear
    if mesh["model"].size() > 1:
        llama.tensor_parallel(model, mesh["model"])
    shard(model, mesh["data", "context"]._flatten("shards"), how)
    model.to_empty(device="cuda")
    model.init_weights()
    return model


def run(how: Run, axes: tuple[int, int, int]) -> None:
    """What a rank does."""
    dist.init_process_group()
    mesh = init_device_mesh("cuda", axes, mesh_dim_names=("data", "context", "model"))
    model = built(how, mesh)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    for _ in range(2):
        tokens = torch.randint(model.config.vocab, (how.batch, how.seq + 1), device="cuda")
        inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        optimizer.zero_grad()
        with contextlib.ExitStack() as around:
            if axes[1] > 1:
                buffers = [inputs, targets, model.cos, model.sin]
                dims, fresh = [1, 1, 0, 0], {inputs, targets}
                around.enter_context(
                    context_parallel(
                        mesh["context"],
                        buffers=buffers,
                        buffer_seq_dims=dims,
                        no_restore_buffers=fresh,
                    )
                )
            if axes[2] > 1:
                around.enter_context(loss_parallel())
            example().cross_entropy(model(inputs), targets).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
    dist.destroy_process_group()


@flint.entry(axes=("data", "context", "model"))
def train(
    mesh: AbstractMesh,
    *,
    model: str = "8b",
    num_layers: int = 0,
    seq: int = 8192,
    batch: int = 2,
    recompute: str = "selective",
    float8: bool = False,
    compiled: bool = False,
) -> flint.WorldStep:
    """The step of one of the example's sizes; a rank of data has `batch` sequences of `seq` tokens."""
    if model not in example().CONFIGS or recompute not in ("selective", "full"):
        raise ValueError(f"model is {', '.join(example().CONFIGS)}, recompute selective or full")
    how = Run(model, num_layers, seq, batch, recompute, float8, compiled)
    data, context, tensor = (mesh.shape[axis] for axis in ("data", "context", "model"))
    return flint.WorldStep(run, (how, (data, context, tensor)))
