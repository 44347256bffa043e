"""Llama 3 with plain tensor parallelism: column- and row-parallel Linears and nothing else.

    flint capture examples/torch_llama_plain_tp.py --mesh 1x8 --world -o trace
    flint capture examples/torch_llama_plain_tp.py --mesh 8x8 --world -o trace -- --tp 8
    torchrun --nproc-per-node 8 examples/torch_llama_plain_tp.py

This is torchtitan's plan with its embedding and sequence-parallel parts off, the configuration of
published post-execution traces; docs/llama-collectives.md compares the collectives one by one.
Each Linear gets its input as a plain tensor, so the gradient of each column-parallel one is reduced
on its own: 2 all-reduces forward and 5 backward in a layer. With more ranks than `--tp`, every
parameter is an FSDP unit of its own and stays gathered until its gradient is reduced.

    --head vocab   the head is column-parallel and its logits are gathered
    --head shard   torchtitan's entry for the head, which takes its input for a shard of the
                   sequence though it is all of it. The head then sees `tp` times the tokens, and
                   the loss is computed on a shard of the vocabulary: the counts of the published
                   traces, but no useful gradients.
"""

from __future__ import annotations

import argparse
import dataclasses
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch_llama import CONFIGS, Llama, cross_entropy

HEADS = {
    "vocab": ColwiseParallel(output_layouts=Replicate()),
    "shard": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1)),
}


def tensor_parallel(model: Llama, mesh: DeviceMesh, head: str) -> None:
    layer_plan = {
        "attention.wq": ColwiseParallel(),
        "attention.wk": ColwiseParallel(),
        "attention.wv": ColwiseParallel(),
        "attention.wo": RowwiseParallel(),
        "feed_forward.w1": ColwiseParallel(),
        "feed_forward.w2": RowwiseParallel(),
        "feed_forward.w3": ColwiseParallel(),
    }
    for layer in model.layers:
        parallelize_module(layer, mesh, layer_plan)
    parallelize_module(model, mesh, {"output": HEADS[head]})


def fully_shard_each_parameter(model: Llama, mesh: DeviceMesh) -> None:
    """Each module with weights is an FSDP unit, and each of them has one parameter."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for module in model.modules():
        if any(True for _ in module.parameters(recurse=False)):
            fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)


def parameter_groups(model: nn.Module) -> list[dict[str, list[nn.Parameter]]]:
    """An operator on a list of parameters wants all of them on the same mesh."""
    groups: dict[object, list[nn.Parameter]] = {}
    for parameter in model.parameters():
        groups.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
    return [{"params": parameters} for parameters in groups.values()]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train Llama 3 on random tokens.")
    parser.add_argument("--model", choices=CONFIGS, default="8b")
    parser.add_argument("--num-layers", type=int, default=0, help="0 is the published depth")
    parser.add_argument("--seq", type=int, default=8192)
    parser.add_argument("--batch", type=int, default=1, help="sequences of a data-parallel rank")
    parser.add_argument("--tp", type=int, default=8, help="ranks that share a sequence")
    parser.add_argument("--head", choices=HEADS, default="vocab")
    parser.add_argument("--steps", type=int, default=2)
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
    tensor_parallel(model, mesh["model"], options.head)
    if shape[0] > 1:
        fully_shard_each_parameter(model, mesh["data"])
    else:
        model.to(torch.bfloat16)
    model.to_empty(device=device)
    model.init_weights()
    optimizer = torch.optim.AdamW(parameter_groups(model), lr=3e-4, fused=True)

    torch.manual_seed(mesh["data"].get_local_rank())
    classes, copies = (
        (c.vocab // options.tp, options.tp) if options.head == "shard" else (c.vocab, 1)
    )
    for step in range(options.steps):
        tokens = torch.randint(classes, (options.batch, options.seq + 1), device=device)
        loss = cross_entropy(model(tokens[:, :-1]), tokens[:, 1:].repeat(1, copies))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach()
        if shape[0] > 1:
            dist.all_reduce(mean, dist.ReduceOp.SUM, group=mesh["data"].get_group())
        if dist.get_rank() == 0:
            print(f"step {step + 1}: loss {mean.item() / shape[0]:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
