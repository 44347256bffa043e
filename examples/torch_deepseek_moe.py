"""DeepSeekMoE 16B: experts spread over ranks, tokens sent to them by all-to-all; a torchrun script.

    flint capture examples/torch_deepseek_moe.py --mesh 8x8 --world -o trace
    torchrun --nproc-per-node 8 examples/torch_deepseek_moe.py --small

Every token visits 2 shared experts and the 6 of 64 routed ones that its router prefers
("DeepSeekMoE", arXiv 2401.06066, section 5: 28 layers, the first of them dense, ordinary attention).
Ranks of one row of the mesh ("expert") hold different experts; how many tokens go to each rank is
known only while the step runs. Under Flint, tokens are spread evenly unless a hint says otherwise.
Everything is fully sharded (FSDP2): experts over "data", all other weights over all ranks.
"""

from __future__ import annotations

import argparse
import dataclasses
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch_llama import Attention, Config, FeedForward, cross_entropy, rotary_angles


@dataclasses.dataclass(frozen=True)
class MoEConfig(Config):
    num_experts: int = 64
    num_shared: int = 2
    chosen: int = 6
    expert_dim: int = 1408


LARGE = MoEConfig(2048, 28, 16, 10_944, 16, vocab=102_400, rope_theta=10_000.0)
SMALL = MoEConfig(64, 3, 4, 128, 4, vocab=256, num_experts=8, chosen=2, expert_dim=32)


class Experts(nn.Module):
    """The routed experts of one rank. Tokens come ordered by expert, `ends[e]` ends the e-th run."""

    def __init__(self, c: MoEConfig, count: int):
        super().__init__()
        self.w1 = nn.Parameter(torch.empty(count, c.dim, c.expert_dim))
        self.w3 = nn.Parameter(torch.empty(count, c.dim, c.expert_dim))
        self.w2 = nn.Parameter(torch.empty(count, c.expert_dim, c.dim))

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        gate = F.silu(F.grouped_mm(x, self.w1, offs=ends))
        return F.grouped_mm(gate * F.grouped_mm(x, self.w3, offs=ends), self.w2, offs=ends)


class MoE(nn.Module):
    def __init__(self, c: MoEConfig, mesh: DeviceMesh):
        super().__init__()
        self.config, self.group, self.ranks = c, mesh.get_group(), mesh.size()
        self.router = nn.Linear(c.dim, c.num_experts, bias=False)
        self.shared = FeedForward(dataclasses.replace(c, ffn_dim=c.num_shared * c.expert_dim))
        self.experts = Experts(c, c.num_experts // self.ranks)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        weights, experts = F.softmax(self.router(tokens), dim=-1).topk(self.config.chosen)
        order = experts.flatten().argsort(stable=True)  # copies of tokens, ordered by expert
        source = order // self.config.chosen
        routed = self.dispatch(tokens[source], experts)
        weighted = routed * weights.flatten()[order, None]
        combined = torch.zeros_like(tokens).index_add(0, source, weighted.to(tokens.dtype))
        return self.shared(x) + combined.view_as(x)

    def dispatch(self, x: Tensor, experts: Tensor) -> Tensor:
        """Send copies of tokens to the ranks of their experts, apply those, and fetch them back."""
        c = self.config
        counts = torch.histc(experts.float(), bins=c.num_experts, min=0, max=c.num_experts - 1)
        counts = counts.long().view(self.ranks, -1)  # (rank, its expert)
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts, group=self.group)
        sent, received = counts.sum(dim=1).tolist(), arriving.sum(dim=1).tolist()

        x = all_to_all_single_autograd(x, received, sent, self.group)
        local = torch.arange(counts.shape[1], device=x.device).repeat(self.ranks)
        expert = local.repeat_interleave(arriving.flatten(), output_size=x.shape[0])
        order = expert.argsort(stable=True)  # they came ordered by rank, then by expert
        ends = arriving.sum(dim=0).cumsum(dim=0).to(torch.int32)
        y = self.experts(x[order], ends)
        y = torch.empty_like(y).index_copy(0, order, y)
        return all_to_all_single_autograd(y, sent, received, self.group)


class Layer(nn.Module):
    def __init__(self, c: MoEConfig, mesh: DeviceMesh, dense: bool):
        super().__init__()
        self.attention_norm = nn.RMSNorm(c.dim, eps=c.norm_eps)
        self.attention = Attention(c)
        self.ffn_norm = nn.RMSNorm(c.dim, eps=c.norm_eps)
        self.feed_forward = FeedForward(c) if dense else MoE(c, mesh)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.feed_forward(self.ffn_norm(x))


class Transformer(nn.Module):
    def __init__(self, c: MoEConfig, mesh: DeviceMesh, seq: int):
        super().__init__()
        self.config, self.seq = c, seq
        self.tok_embeddings = nn.Embedding(c.vocab, c.dim)
        self.layers = nn.ModuleList(Layer(c, mesh, dense=i == 0) for i in range(c.num_layers))
        self.norm = nn.RMSNorm(c.dim, eps=c.norm_eps)
        self.output = nn.Linear(c.dim, c.vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        with torch.device(tokens.device):
            cos, sin = rotary_angles(self.config, self.seq)
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.output(self.norm(x))

    @torch.no_grad()
    def init_weights(self) -> None:
        for parameter in self.parameters():
            if parameter.dim() == 1:
                nn.init.ones_(parameter)
            else:
                nn.init.normal_(parameter, std=0.006)


def fully_shard_all(model: Transformer, mesh: DeviceMesh, everyone: DeviceMesh) -> None:
    """Experts differ along the rows of the mesh, so that only its columns share them."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        if isinstance(layer.feed_forward, MoE):
            experts = layer.feed_forward.experts
            fully_shard(experts, mesh=mesh["data"], mp_policy=policy)
            # Tokens of all ranks reached them, as they reach every other weight.
            experts.set_gradient_divide_factor(everyone.size())
            # Gloo does not scale while it reduces.
            experts.set_force_sum_reduction_for_comms(everyone.device_type == "cpu")
        fully_shard(layer, mesh=everyone, mp_policy=policy)
    fully_shard(model, mesh=everyone, mp_policy=policy)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train DeepSeekMoE on random tokens.")
    parser.add_argument("--seq", type=int, default=4096)
    parser.add_argument("--num-layers", type=int, default=0, help="0 is the published depth")
    parser.add_argument("--experts", type=int, default=8, help="ranks that share the experts")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--small", action="store_true", help="small tensors")
    options = parser.parse_args(arguments)
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    device = torch.device(accelerator.type if accelerator else "cpu")
    if accelerator:
        torch.accelerator.set_device_index(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group()
    world = dist.get_world_size()
    shape = (world // options.experts, options.experts)
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=("data", "expert"))
    everyone = init_device_mesh(device.type, (world,), mesh_dim_names=("everyone",))

    c = SMALL if options.small else LARGE
    c = dataclasses.replace(c, num_layers=options.num_layers or c.num_layers)
    with torch.device("meta"):
        model = Transformer(c, mesh["expert"], options.seq)
    fully_shard_all(model, mesh, everyone)
    model.to_empty(device=device)
    model.init_weights()
    experts = [p for n, p in model.named_parameters() if ".experts." in n]
    others = [p for n, p in model.named_parameters() if ".experts." not in n]
    groups = [{"params": experts}, {"params": others}]
    optimizer = torch.optim.AdamW(groups, lr=4.2e-4, betas=(0.9, 0.95), weight_decay=0.1)

    torch.manual_seed(dist.get_rank())
    for step in range(options.steps):
        tokens = torch.randint(c.vocab, (1, options.seq + 1), device=device)
        loss = cross_entropy(model(tokens[:, :-1]), tokens[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"step {step + 1}: loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
