"""Train one of the models of tests/torch_zoo.py under FSDP2, as a torchrun script: two steps.

python fsdp_zoo.py MODEL
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.torch_zoo import KINDS


def main() -> None:
    kind = KINDS[sys.argv[1]]
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    device = accelerator.type if accelerator else "cpu"
    dist.init_process_group()
    mesh = init_device_mesh(device, (dist.get_world_size(),), mesh_dim_names=("data",))
    model, inputs, targets = kind.on(device, seed=dist.get_rank())
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for part in reversed(list(model.modules())):  # inner layers before those around them
        if isinstance(part, nn.ModuleList):
            for layer in part:
                fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(2):
        loss = kind.loss(model(*inputs), *targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
