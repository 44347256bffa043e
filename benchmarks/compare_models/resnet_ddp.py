"""ResNet-18 as the profile mi300x_resnet_train_rank0of8 has it: bf16, DDP, blocks recomputed, SGD.

    flint capture benchmarks/compare_models/resnet_ddp.py --mesh 8 --world -o resnet

"Deep Residual Learning for Image Recognition" (arXiv 1512.03385), table 1: 11,689,512 parameters.
"""

from __future__ import annotations

import os
from itertools import pairwise

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

_BATCH = 10


class Block(nn.Module):
    """Two 3x3 convolutions around a shortcut."""

    def __init__(self, channels_in: int, channels: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = None
        if stride != 1:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


class ResNet(nn.Module):
    """The stem and the head run once, blocks again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        widths = (64, 64, 128, 256, 512)
        self.layers = nn.ModuleList(
            nn.Sequential(Block(before, width, 1 if before == width and n == 1 else 2),
                          Block(width, width, 1))
            for n, (before, width) in enumerate(pairwise(widths), 1)
        )  # fmt: skip
        self.fc = nn.Linear(512, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x)), inplace=True), 3, 2, 1)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, (1, 1)), 1))


def main() -> None:
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl")
    model = ResNet().cuda().to(torch.bfloat16)
    model = DistributedDataParallel(model, device_ids=[torch.cuda.current_device()])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for _ in range(3):
        images = torch.randn(_BATCH, 3, 224, 224, device="cuda", dtype=torch.bfloat16)
        targets = torch.randn(_BATCH, 1000, device="cuda", dtype=torch.bfloat16)
        optimizer.zero_grad()
        F.mse_loss(model(images), targets).backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
