"""Programs whose ranks divide the batch: DDP, FSDP2, HSDP, optimizers of their own, several models."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from benchmarks.real_ranks.table import (
    HEADS,
    PROGRAMS,
    TOKENS,
    VOCABULARY,
    WIDTH,
    WORLD,
    Attention,
    Block,
    Model,
    Training,
    loss_of,
    program,
    stepping,
    tokens_of,
    training,
)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    """AdamW over what is trained; DTensors and tensors do not mix in one operator."""
    trained = [p for p in model.parameters() if p.requires_grad]
    kinds = [[p for p in trained if isinstance(p, DTensor) == whole] for whole in (False, True)]
    return torch.optim.AdamW([{"params": k} for k in kinds if k], foreach=True)


def ddp(device: str, hook: Any = None, model: nn.Module | None = None, **options: Any) -> Training:
    """DDP over all ranks."""
    wrapped = DistributedDataParallel((model or Model()).to(device), **options)
    if hook:
        wrapped.register_comm_hook(None, hook)
    return training(wrapped, adam(wrapped), tokens_of(device))


class Partly(Model):
    """A model with a layer that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(WIDTH, WIDTH)


@program
def ddp_accumulation(device: str) -> Training:
    made = ddp(device)
    model, tokens, _ = made.kept

    def step() -> None:
        with model.no_sync():
            loss_of(model, tokens).backward()
        made.step()

    return Training(step, made.kept)


@program
def ddp_convolutions(device: str) -> Training:
    layers = (
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 8, 3, stride=2),
    )
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 49, 10)).to(device)
    wrapped, images = DistributedDataParallel(model), torch.randn(4, 3, 16, 16, device=device)
    optimizer = torch.optim.SGD(wrapped.parameters(), 0.1, momentum=0.9, foreach=True)
    return stepping(lambda: wrapped(images).square().mean().backward(), optimizer, wrapped, images)


def fsdp(
    device: str, model: nn.Module | None = None, shape: tuple[int, ...] = (WORLD,), **options: Any
) -> nn.Module:
    """FSDP2, a layer at a time."""
    made = (model or Model()).to(device)
    options["mesh"] = init_device_mesh(
        device, shape, mesh_dim_names=("replicate", "shard")[-len(shape) :]
    )
    for block in getattr(made, "blocks", ()):
        fully_shard(block, **options)
    return fully_shard(made, **options)


def trained(device: str, model: nn.Module, **more: Any) -> Training:
    """A model under AdamW."""
    return training(model, adam(model), tokens_of(device), **more)


@program
def fsdp_clipped(device: str) -> Training:
    model = fsdp(device)
    return trained(device, model, between=lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0))


@program
def fsdp_accumulation(device: str) -> Training:
    model = fsdp(device)
    made = trained(device, model)

    def step() -> None:
        model.set_requires_gradient_sync(False)
        loss_of(model, made.kept[1]).backward()
        model.set_requires_gradient_sync(True)
        made.step()

    return Training(step, made.kept)


class Fused(Attention):
    """Attention as one kernel."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            f(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Recomputed(Block):
    """A block whose activations are calculated again."""

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(super().forward, x, use_reentrant=False)


class Lora(nn.Module):
    """A frozen layer with an update of low rank."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Linear(base.in_features, rank, bias=False)
        self.b = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.b(self.a(x))


def changed(model: Model, **parts: Callable[[Any], nn.Module]) -> Model:
    """A model with other modules in its blocks, made of those that are there."""
    for block in model.blocks:
        for name, make in parts.items():
            setattr(block, name, make(getattr(block, name)))
    return model


def lora() -> Model:
    """A frozen model with updates of low rank."""
    return changed(Model().requires_grad_(False), up=Lora, down=Lora)


def recomputed() -> Model:
    """A model that calculates activations again."""
    model = Model()
    model.blocks = nn.ModuleList(Recomputed() for _ in range(3))
    return model


#: What DDP, FSDP2 and a model are given.
DDP: dict[str, Callable[[], dict[str, Any]]] = {
    "plain": dict,
    "views of buckets": lambda: {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.1},
    "static graph": lambda: {"static_graph": True},
    "compressed": lambda: {"hook": default_hooks.fp16_compress_hook},
    "unused parameters": lambda: {"model": Partly(), "find_unused_parameters": True},
    "lora": lambda: {"model": lora()},
}
FSDP: dict[str, Callable[[], dict[str, Any]]] = {
    "fsdp plain": dict,
    "fsdp kept after forward": lambda: {"reshard_after_forward": False},
    "fsdp resharded by two": lambda: {"reshard_after_forward": 2},
    "fsdp mixed precision": lambda: {
        "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    },
    "fsdp second dimension": lambda: {"shard_placement_fn": lambda w: Shard(w.ndim - 1)},
    "fsdp uneven": lambda: {"model": Model(vocabulary=97)},
    "fsdp tied weights": lambda: {"model": Model(tied=True)},
    "fsdp offload": lambda: {"offload_policy": CPUOffloadPolicy(pin_memory=False)},
    "hsdp": lambda: {"shape": (2, 2)},
    "fsdp fused attention": lambda: {"model": changed(Model(), attention=lambda _: Fused())},
    "fsdp checkpointed": lambda: {"model": recomputed()},
    "fsdp lora": lambda: {"model": lora()},
}
PROGRAMS.update({f"ddp {n}": lambda d, o=o: ddp(d, **o()) for n, o in DDP.items()})
PROGRAMS.update({n: lambda d, o=o: trained(d, fsdp(d, **o())) for n, o in FSDP.items()})


# --- optimizers and several models ----------------------------------------------------------------


class Optimizer(torch.optim.Optimizer):
    """An optimizer that is a function of a parameter and its state."""

    def __init__(self, params: Iterable[Tensor], update: Callable[[Tensor, Any], None]) -> None:
        super().__init__(params, {})
        self.update = update

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Update each parameter."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.update(p, self.state[p])


def lamb_of(p: Tensor, state: Any) -> None:
    """LAMB: an update as long as its weight."""
    if not state:
        state.update(first=torch.zeros_like(p), second=torch.zeros_like(p))
    state["first"].lerp_(p.grad, 0.1)
    state["second"].lerp_(p.grad.square(), 0.01)
    update = state["first"] / (state["second"].sqrt() + 1e-6) + 0.01 * p
    p.sub_(update * (p.norm() / (update.norm() + 1e-6)) * 0.001)


def muon_of(p: Tensor, state: Any) -> None:
    """Muon: momentum made orthogonal by products, of matrices."""
    if not state:
        state.update(momentum=torch.zeros_like(p))
    momentum = state["momentum"].mul_(0.95).add_(p.grad)
    if p.ndim == 2:
        x = momentum / (momentum.norm() + 1e-7)
        for _ in range(3):
            gram = x @ x.T
            x = 3.4 * x + (-4.8 * gram + 2.0 * gram @ gram) @ x
        momentum = x
    p.sub_(momentum, alpha=0.01)


def under(device: str, model: nn.Module, update: Callable[[Tensor, Any], None]) -> Training:
    """A model under an optimizer of its own."""
    return training(model, Optimizer(model.parameters(), update), tokens_of(device))


PROGRAMS.update(
    {
        "ddp lamb": lambda d: under(d, DistributedDataParallel(Model().to(d)), lamb_of),
        "fsdp lamb": lambda d: under(d, fsdp(d), lamb_of),
        "ddp muon": lambda d: under(d, DistributedDataParallel(Model().to(d)), muon_of),
    }
)


@program
def muon_by_torch(device: str) -> Training:
    model = Model().to(device)
    muon = torch.optim.Muon([p for p in model.parameters() if p.ndim == 2])
    rest = torch.optim.AdamW([p for p in model.parameters() if p.ndim != 2], foreach=True)
    tokens = tokens_of(device)

    def step() -> None:
        loss_of(model, tokens).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)
        for optimizer in (muon, rest):
            optimizer.step()
        model.zero_grad()

    return Training(step, (model, muon, rest, tokens))


@program
def optimizer_in_shards(device: str) -> Training:
    """ZeRO's first stage by hand: gradients scattered, states sharded, weights gathered."""
    model = Model().to(device)
    params = list(model.parameters())
    sizes = [p.numel() for p in params]
    flat = torch.cat([p.detach().flatten() for p in params])
    mine = nn.Parameter(flat.chunk(WORLD)[dist.get_rank()].clone())
    optimizer, tokens = torch.optim.AdamW([mine], foreach=True), tokens_of(device)

    def step() -> None:
        loss_of(model, tokens).backward()
        mine.grad = torch.empty_like(mine)
        dist.reduce_scatter_tensor(mine.grad, torch.cat([p.grad.flatten() for p in params]))
        optimizer.step()
        dist.all_gather_into_tensor(flat, mine.detach())
        with torch.no_grad():
            for p, part in zip(params, flat.split(sizes), strict=True):
                p.copy_(part.view_as(p))
        model.zero_grad()

    return Training(step, (model, optimizer, tokens, flat, mine))


@program
def moving_average(device: str) -> Training:
    made = ddp(device)
    model = made.kept[0].module
    average = copy.deepcopy(model).requires_grad_(False)

    def step() -> None:
        made.step()
        torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 0.01)

    return Training(step, (*made.kept, average))


@program
def distilled(device: str) -> Training:
    teacher = fsdp(device, Model(3)).requires_grad_(False)
    student = fsdp(device, Model(1))
    optimizer, tokens = adam(student), tokens_of(device)

    def backward() -> None:
        with torch.no_grad():
            target = F.softmax(teacher(tokens), -1)
        F.kl_div(F.log_softmax(student(tokens), -1), target, reduction="batchmean").backward()

    return stepping(backward, optimizer, teacher, student, tokens)


@program
def policy_and_reference(device: str) -> Training:
    """GRPO: groups of answers, advantages over all ranks, a reference that stays."""
    policy, reference = fsdp(device), fsdp(device).requires_grad_(False)
    optimizer, answers = adam(policy), tokens_of(device, 8)
    rewards = torch.rand(8, device=device)

    def chosen(model: nn.Module) -> Tensor:
        return torch.log_softmax(model(answers), -1).gather(-1, answers[..., None]).squeeze(-1)

    def backward() -> None:
        with torch.no_grad():
            before = chosen(reference)
        every = torch.empty(8 * WORLD, device=device)
        dist.all_gather_into_tensor(every, rewards)
        advantage = (rewards - every.mean()) / (every.std() + 1e-4)
        now = chosen(policy)
        ratio = torch.exp(now - before)
        loss = -(ratio.clamp(0.8, 1.2) * advantage[:, None]).mean()
        (loss + 0.04 * (ratio - 1 - now + before).mean()).backward()

    return stepping(backward, optimizer, policy, reference, answers, rewards)


@program
def local_steps(device: str) -> Training:
    """Weights are averaged after each step, gradients never."""
    model = Model().to(device)
    made = training(
        model, torch.optim.SGD(model.parameters(), 0.1, foreach=True), tokens_of(device)
    )

    def step() -> None:
        made.step()
        with torch.no_grad():
            for p in model.parameters():
                dist.all_reduce(p, op=dist.ReduceOp.SUM)
                p.div_(WORLD)

    return Training(step, made.kept)


@program
def filled_by_parts(device: str) -> Training:
    """Memory that is allocated whole and filled piece by piece: in the step, and before it."""
    model, tokens = Model().to(device), tokens_of(device, 8)
    history = torch.zeros(4, 2, TOKENS, VOCABULARY, device=device)

    def backward() -> None:
        with torch.no_grad():
            logits = torch.empty_like(history)
            for part, piece in zip(logits, tokens.chunk(4), strict=True):
                part.copy_(model(piece))
            history[1].copy_(logits[0])
            every = torch.empty(4, 2, device=device)
            for index, part in enumerate(history - logits):
                every[index] = part.square().mean(dim=(-2, -1))
            dist.all_reduce(every)
        loss_of(model, tokens[:2]).backward()

    return stepping(backward, adam(model), model, tokens, history)
