"""Llama, Qwen3 and Mixtral of HuggingFace transformers, from configuration, for either way in.

One device, with the tensor-parallel plan that the model brings, and ZeRO-3 over "data":

    flint capture examples/torch_huggingface.py --mesh 64x8 -o trace
    flint capture examples/torch_huggingface.py --mesh 64x8 --set model=mixtral-8x7b

Distributed, the plan applied by transformers and FSDP2 around each layer; also a torchrun script:

    flint capture examples/torch_huggingface.py --mesh 64x8 --world -o trace -- --model qwen3-8b
    torchrun --nproc-per-node 8 examples/torch_huggingface.py --model llama-8b

Needs `pip install transformers` (5.x). Sizes are those of the `config.json` files that are
published with the weights. No weights are read.
"""

from __future__ import annotations

import argparse
import os
import re
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import AutoModelForCausalLM, LlamaConfig, MixtralConfig, Qwen3Config
from transformers.distributed.tensor_parallel import apply_tensor_parallelism

import flint

if TYPE_CHECKING:
    from jax.sharding import AbstractMesh

CONFIGS: dict[str, tuple[type, dict[str, Any]]] = {
    "llama-8b": (
        LlamaConfig,
        {"vocab_size": 128_256, "hidden_size": 4096, "intermediate_size": 14_336}
        | {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0}},
    ),
    "qwen3-8b": (
        Qwen3Config,
        {"vocab_size": 151_936, "hidden_size": 4096, "intermediate_size": 12_288, "head_dim": 128}
        | {"num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0}},
    ),
    "mixtral-8x7b": (
        MixtralConfig,
        {"vocab_size": 32_000, "hidden_size": 4096, "intermediate_size": 14_336}
        | {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8}
        | {"num_local_experts": 8, "num_experts_per_tok": 2}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0}},
    ),
}
#: For a run on a laptop: the same program with tensors that fit.
SMALL = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "head_dim": 8} | {
    "num_attention_heads": 8, "num_key_value_heads": 4, "num_hidden_layers": 2,
}  # fmt: skip


def build(name: str, num_layers: int = 0, small: bool = False) -> nn.Module:
    """The model on the current default device. `num_layers` of 0 is the published depth."""
    if name not in CONFIGS:
        raise ValueError(f"model={name} is not one of {', '.join(CONFIGS)}")
    kind, sizes = CONFIGS[name]
    depth = {"num_hidden_layers": num_layers} if num_layers else {}
    config = kind(**sizes | (SMALL if small else {}) | depth, use_cache=False)
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")


def next_token_loss(output: Any, targets: Tensor) -> Tensor:
    return F.cross_entropy(output.logits.flatten(0, 1).float(), targets.flatten())


@flint.entry(axes=("data", "model"))
def annotated(
    mesh: AbstractMesh,
    *,
    model: str = "llama-8b",
    seq: int = 4096,
    batch: int = 0,
    num_layers: int = 0,
) -> flint.TorchStep:
    """One training step, tensor parallel by the model's own plan, ZeRO-3 over "data"."""
    with torch.device("meta"):
        module = build(model, num_layers).to(torch.bfloat16)
        shape = (batch or mesh.shape["data"], seq)
        tokens, targets = (torch.empty(shape, dtype=torch.int64) for _ in range(2))
    return flint.TorchStep(
        module,
        kwargs={"input_ids": tokens},
        loss=next_token_loss,
        loss_args=(targets,),
        optimizer="adamw",
        shardings={
            "tp_plan": module.tp_plan,
            "input_ids": ("data", None),
            "targets": ("data", None),
        },
        fsdp="data",
        name=model,
    )


def tensor_parallel(model: nn.Module, mesh: DeviceMesh) -> None:
    """Apply the model's plan, whose names have `*` in place of the numbers of layers."""
    named = [name for name, _ in (*model.named_modules(), *model.named_parameters())]
    plan = {
        name: style
        for pattern, style in model.tp_plan.items()
        for name in named
        if re.fullmatch(re.escape(pattern).replace(r"\*", r"\d+"), name)
    }
    # A style of a module is also that of its weight, which is sharded before the module is changed.
    weights = {f"{n}.weight": style for n, style in plan.items() if f"{n}.weight" in named}
    apply_tensor_parallelism(model, mesh, weights | plan)


def parameter_groups(model: nn.Module) -> list[dict[str, list[nn.Parameter]]]:
    """An operator on a list of parameters wants all of them on the same mesh."""
    groups: dict[object, list[nn.Parameter]] = {}
    for parameter in model.parameters():
        groups.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
    return [{"params": parameters} for parameters in groups.values()]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a HuggingFace model on random tokens.")
    parser.add_argument("--model", choices=CONFIGS, default="llama-8b")
    parser.add_argument("--num-layers", type=int, default=0, help="0 is the published depth")
    parser.add_argument("--seq", type=int, default=4096)
    parser.add_argument("--tp", type=int, default=8, help="ranks that share a sequence")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--small", action="store_true", help="small tensors")
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

    with torch.device("meta"):
        model = build(options.model, options.num_layers, options.small)
    if options.tp > 1:
        tensor_parallel(model, mesh["model"])
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh["data"], mp_policy=policy)
    fully_shard(model, mesh=mesh["data"], mp_policy=policy)
    model.to_empty(device=device)
    model.init_weights()
    optimizer = torch.optim.AdamW(parameter_groups(model), lr=3e-4, fused=True)

    torch.manual_seed(mesh["data"].get_local_rank())
    vocab = model.config.vocab_size
    for step in range(options.steps):
        tokens = torch.randint(vocab, (1, options.seq + 1), device=device)
        loss = next_token_loss(model(input_ids=tokens[:, :-1]), tokens[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"step {step + 1}: loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
