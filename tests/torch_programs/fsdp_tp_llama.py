"""examples/torch_llama.py on small tensors: FSDP2 over tensor and sequence parallelism, two steps.

Four ranks, as torchrun starts them. Heads are not grouped, because PyTorch's attention on CPUs has
no kernel for groups.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import torch_llama

ARGUMENTS = ["--model", "debug", "--seq", "64", "--tp", "2", "--clip", "1.0"]


def main() -> None:
    debug = dataclasses.replace(torch_llama.CONFIGS["debug"], num_kv_heads=8)
    torch_llama.CONFIGS["debug"] = debug
    torch_llama.main([*ARGUMENTS, *sys.argv[1:]])


if __name__ == "__main__":
    main()
