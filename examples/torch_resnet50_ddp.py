"""ResNet-50 on images, data parallel with DistributedDataParallel; also a torchrun script.

    flint capture examples/torch_resnet50_ddp.py --mesh 64 --world -o trace
    torchrun --nproc-per-node 8 examples/torch_resnet50_ddp.py

The same model for one device, its batch sharded over the mesh and nothing else:

    flint capture examples/torch_resnet50_ddp.py --mesh 64 -o trace

"Deep Residual Learning for Image Recognition" (arXiv 1512.03385), table 1, with the stride of a
bottleneck in its 3x3 convolution. 25,557,032 parameters, float32, channels last.
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import flint

if TYPE_CHECKING:
    from jax.sharding import AbstractMesh


def convolution(channels_in: int, channels: int, size: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels, size, stride, padding=size // 2, bias=False),
        nn.BatchNorm2d(channels),
    )


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions around a shortcut; the last widens by four."""

    def __init__(self, channels_in: int, width: int, stride: int):
        super().__init__()
        self.reduce = convolution(channels_in, width, 1)
        self.filter = convolution(width, width, 3, stride)
        self.expand = convolution(width, 4 * width, 1)
        keeps_shape = stride == 1 and channels_in == 4 * width
        self.shortcut = None if keeps_shape else convolution(channels_in, 4 * width, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.filter(F.relu(self.reduce(x))))
        shortcut = x if self.shortcut is None else self.shortcut(x)
        return F.relu(self.expand(out) + shortcut)


class ResNet(nn.Module):
    def __init__(
        self, depths: tuple[int, ...] = (3, 4, 6, 3), width: int = 64, classes: int = 1000
    ):
        super().__init__()
        self.stem = convolution(3, width, 7, stride=2)
        blocks, channels = [], width
        for stage, depth in enumerate(depths):
            for block in range(depth):
                stride = 2 if stage > 0 and block == 0 else 1
                blocks.append(Bottleneck(channels, width * 2**stage, stride))
                channels = 4 * width * 2**stage
        self.blocks = nn.Sequential(*blocks)
        self.classify = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.stem(images)), 3, stride=2, padding=1)
        return self.classify(self.blocks(x).mean(dim=(2, 3)))


@flint.entry(axes=("data",))
def annotated(mesh: AbstractMesh, *, batch: int = 0, image: int = 224) -> flint.TorchStep:
    """One training step. `batch` is that of the whole mesh; 0 is 32 images for each device."""
    batch = batch or 32 * mesh.shape["data"]
    with torch.device("meta"):
        model, images = ResNet(), torch.empty(batch, 3, image, image)
        labels = torch.empty(batch, dtype=torch.int64)
    return flint.TorchStep(
        model,
        (images,),
        loss=F.cross_entropy,
        loss_args=(labels,),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4),
        shardings={"images": ("data", None, None, None), "target": ("data",)},
        name="resnet50",
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train ResNet-50 on random images.")
    parser.add_argument("--batch", type=int, default=32, help="images of a rank")
    parser.add_argument("--image", type=int, default=224)
    parser.add_argument("--steps", type=int, default=2)
    options = parser.parse_args(arguments)
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    device = torch.device(accelerator.type if accelerator else "cpu")
    if accelerator:
        torch.accelerator.set_device_index(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group()
    torch.manual_seed(dist.get_rank())

    model = ResNet().to(device, memory_format=torch.channels_last)
    parallel = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    shape = (options.batch, 3, options.image, options.image)
    for step in range(options.steps):
        images = torch.randn(shape, device=device).to(memory_format=torch.channels_last)
        labels = torch.randint(1000, shape[:1], device=device)
        optimizer.zero_grad()
        loss = F.cross_entropy(parallel(images), labels)
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"step {step + 1}: loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
