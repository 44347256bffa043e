"""Llama 3 in pipeline stages (1F1B), FSDP2 within each; a torchrun script.

    flint capture examples/torch_pipeline.py --mesh 8x8 --world -o trace
    torchrun --nproc-per-node 8 examples/torch_pipeline.py --model debug --pipe 2

Rows of the mesh ("pipe") are stages: the first holds the embedding, the last the head, and layers
are spread evenly. Activations travel forward and their gradients back in microbatches, one forward
and one backward in turn once the pipeline is full.
"""

from __future__ import annotations

import argparse
import dataclasses
import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch_llama import CONFIGS, Config, Layer, Llama, cross_entropy


class Stage(Llama):
    """Some layers of the model; whole at the ends."""

    def __init__(self, c: Config, seq: int, index: int, stages: int):
        super().__init__(c, seq)
        first, last = index * c.num_layers // stages, (index + 1) * c.num_layers // stages
        self.layers: nn.ModuleList | list[Layer] = self.layers[first:last]
        if index > 0:
            self.tok_embeddings = nn.Identity()
        if index < stages - 1:
            self.norm, self.output = nn.Identity(), nn.Identity()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train Llama 3 in pipeline stages.")
    parser.add_argument("--model", choices=CONFIGS, default="8b")
    parser.add_argument("--num-layers", type=int, default=0, help="0 is the published depth")
    parser.add_argument("--seq", type=int, default=8192)
    parser.add_argument("--pipe", type=int, default=8, help="stages")
    parser.add_argument("--microbatches", type=int, default=16, help="of one sequence each")
    parser.add_argument("--steps", type=int, default=2)
    options = parser.parse_args(arguments)
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    device = torch.device(accelerator.type if accelerator else "cpu")
    if accelerator:
        torch.accelerator.set_device_index(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group()
    shape = (options.pipe, dist.get_world_size() // options.pipe)
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=("pipe", "data"))

    c = CONFIGS[options.model]
    c = dataclasses.replace(c, num_layers=options.num_layers or c.num_layers)
    index = mesh["pipe"].get_local_rank()
    with torch.device("meta"):
        model = Stage(c, options.seq, index, options.pipe)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    # A stage runs once for each microbatch: its weights are gathered once and stay.
    for layer in model.layers:
        fully_shard(layer, mesh=mesh["data"], mp_policy=policy, reshard_after_forward=False)
    fully_shard(model, mesh=mesh["data"], mp_policy=policy, reshard_after_forward=False)
    model.to_empty(device=device)
    model.init_weights()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    stage = PipelineStage(model, index, options.pipe, device, group=mesh["pipe"].get_group())
    schedule = Schedule1F1B(stage, options.microbatches, loss_fn=cross_entropy)

    torch.manual_seed(mesh["data"].get_local_rank())
    for step in range(options.steps):
        tokens = torch.randint(c.vocab, (options.microbatches, options.seq + 1), device=device)
        losses: list[Tensor] = []
        if index == 0:
            schedule.step(tokens[:, :-1])
        elif index == options.pipe - 1:
            schedule.step(target=tokens[:, 1:], losses=losses)
        else:
            schedule.step()
        optimizer.step()
        optimizer.zero_grad()
        if losses and mesh["data"].get_local_rank() == 0:
            print(f"step {step + 1}: loss {torch.stack(losses).mean().item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
