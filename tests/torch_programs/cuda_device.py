"""What programs ask of CUDA before they choose a branch, and what they do with tensors that are there.

Prints one line for each question that a GPU would answer otherwise.
"""

from __future__ import annotations

import copy
import io
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _coalescing_manager
from torch.distributed.tensor import Shard, distribute_tensor

dist.init_process_group("nccl")
RANK = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(RANK)
DEVICE = torch.device("cuda", RANK)
X = torch.randn(4, 4, device=DEVICE)
MODEL = nn.Linear(4, 4).to(DEVICE)
QUESTIONS: list[Callable[[], Any]] = []


def question(function: Callable[[], Any]) -> Callable[[], Any]:
    QUESTIONS.append(function)
    return function


# --- branches -------------------------------------------------------------------------------------

BRANCHES: dict[str, Callable[[], Any]] = {
    "device type": lambda: X.device.type == "cuda",
    "device equality": lambda: X.device == torch.device(f"cuda:{RANK}"),
    "device text": lambda: str(X.device) == f"cuda:{RANK}",
    "is_cuda": lambda: X.is_cuda and not X.is_cpu and not X.cpu().is_cuda,
    "tensor.type()": lambda: X.type() == "torch.cuda.FloatTensor",
    "type of bf16": lambda: X.bfloat16().type() == "torch.cuda.BFloat16Tensor",
    "isinstance": lambda: (
        isinstance(X, torch.cuda.FloatTensor) and not isinstance(X, torch.cuda.HalfTensor)
    ),
    "older types": lambda: (
        X.cpu().type(torch.cuda.FloatTensor).is_cuda and not X.type(torch.FloatTensor).is_cuda
    ),
    "older constructor": lambda: torch.cuda.LongTensor([1, 2]).is_cuda,
    "get_device": lambda: X.get_device() == RANK and torch.cuda.current_device() == RANK,
    "device of a number": lambda: torch.device(RANK) == DEVICE,
    "to a number": lambda: torch.ones(1).to(RANK).is_cuda,
    "accelerator": lambda: torch.accelerator.current_accelerator() == torch.device("cuda"),
    "version": lambda: torch.version.cuda is not None and torch.backends.cuda.is_built(),
    "cudnn": lambda: torch.backends.cudnn.is_available() and torch.backends.cudnn.version() > 8000,
    "generators": lambda: len(torch.cuda.default_generators) == torch.cuda.device_count(),
    "generator": lambda: torch.Generator("cuda").device.type == "cuda",
    "chip": lambda: torch.cuda.get_device_name() == "NVIDIA A100-SXM4-80GB",
    "capability": lambda: torch.cuda.get_device_capability() == (8, 0),
    "memory": lambda: torch.cuda.get_device_properties(0).total_memory == 85100068864,
    "mesh": lambda: init_device_mesh("cuda", (dist.get_world_size(),)).device_type == "cuda",
    "backend": lambda: dist.get_backend() == "nccl",
    "other backend": lambda: dist.get_backend(dist.new_group(backend="gloo")) == "gloo",
    "module": lambda: torch.get_device_module() is torch.cuda,
    "autocast": lambda: torch.autocast("cuda").device == "cuda",
    "pinned": lambda: torch.ones(2).pin_memory().is_pinned(),
}


@question
def default_device() -> bool:
    torch.set_default_device("cuda")
    inside = torch.get_default_device().type, torch.ones(2).is_cuda, torch.tensor(1.0).is_cuda
    torch.set_default_device(None)
    return inside == ("cuda", True, True) and torch.ones(1).device.type == "cpu"


@question
def autocast_state() -> bool:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        states = torch.is_autocast_enabled(), torch.get_autocast_gpu_dtype()
        return states == (True, torch.bfloat16) and MODEL(X).dtype == torch.bfloat16


@question
def sharded_tensor() -> bool:
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    tensor = distribute_tensor(torch.randn(8, 8), mesh, [Shard(0)])
    return tensor.device.type == "cuda" and tensor.to_local().is_cuda


@question
def streams() -> bool:
    stream, event = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True)
    event.record()
    stream.wait_event(event)
    with torch.cuda.stream(stream):
        same = torch.cuda.current_stream() == stream
    return same and stream.device == DEVICE and isinstance(stream, torch.Stream)


# --- parameters keep their identity ---------------------------------------------------------------


@question
def moved_module() -> bool:
    layer = nn.Linear(4, 4)
    weight = layer.weight
    weight.register_post_accumulate_grad_hook(lambda parameter: None)
    layer.cuda()
    return layer.weight is weight and weight.is_cuda


@question
def moved_data() -> bool:
    weight = nn.Parameter(torch.randn(4))
    weight.register_hook(lambda gradient: gradient)
    weight.data = weight.data.cuda()
    return weight.is_cuda and isinstance(weight, nn.Parameter)


@question
def copied_module() -> bool:
    twin = copy.deepcopy(MODEL)
    return twin.weight.is_cuda and twin.weight is not MODEL.weight


# --- states of random generators ------------------------------------------------------------------


@question
def device_state() -> bool:
    before = torch.cuda.get_rng_state()
    torch.cuda.manual_seed(5)
    seeded = torch.cuda.initial_seed()
    torch.cuda.set_rng_state(before)
    return before.shape == (16,) and seeded == 5 and torch.cuda.initial_seed() != 5


@question
def host_numbers_are_real() -> bool:
    torch.manual_seed(0)
    first = torch.rand(2).tolist()
    return first == [0.49625658988952637, 0.7682217955589294]


@question
def host_shuffles_are_real() -> bool:
    drawn: list[int] = torch.randperm(20_000).tolist()
    filled = torch.empty((), dtype=torch.int64).random_().item()
    return sorted(drawn) == list(range(20_000)) != drawn and filled > 1


# --- what is read, printed and saved --------------------------------------------------------------


@question
def formats() -> bool:
    loss = X.sum()
    return f"{loss:.3f}" == "1.000" and "%.2f" % loss == "1.00" and "cuda" in repr(X)  # noqa: UP031  the form is what is asked


@question
def arrays() -> bool:
    try:
        X.numpy()
    except TypeError:
        return X.cpu().numpy().shape == np.asarray(X.cpu()).shape == (4, 4)
    return False


@question
def inference() -> bool:
    with torch.inference_mode():
        return bool(MODEL(X).is_inference() and torch.empty(3, device="cuda").is_cuda)


@question
def saved_and_loaded() -> bool:
    buffer = io.BytesIO()
    torch.save({"model": MODEL.state_dict(), "step": torch.tensor(7)}, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, map_location="cuda")
    return loaded["model"]["weight"].is_cuda and loaded["step"].item() == 7


@question
def pickled() -> bool:
    tensor, parameter = pickle.loads(pickle.dumps((X, MODEL.weight)))
    return tensor.device == DEVICE and isinstance(parameter, nn.Parameter)


@question
def same_elements() -> bool:
    return torch.equal(X, X) and torch.allclose(X, X.view(4, 4))


@question
def finite() -> bool:
    return bool(torch.isfinite(X.norm())) and not X.isnan().any() and not (X.norm() < 0)


@question
def tensors_of_tensors() -> bool:
    return torch.tensor([X.sum(), X.mean()], device="cuda").shape == (2,)


@question
def disabled_scaler() -> bool:
    torch.amp.GradScaler("cuda", enabled=False).update()
    return torch.cuda.amp.GradScaler().get_scale() == 65536.0


@question
def coalesced() -> bool:
    with _coalescing_manager(device=DEVICE, async_ops=True) as works:
        for tensor in (X, X.clone()):
            dist.all_reduce(tensor)
    works.wait()
    parts = [torch.empty(16 * dist.get_world_size(), device=DEVICE) for _ in range(2)]
    with _coalescing_manager(device=DEVICE):
        for part in parts:
            dist.all_gather_into_tensor(part, X.flatten())
    return True


@question
def files_of_real_runs_stay() -> bool:
    """`weights.pt` holds something: it is loaded again as saved here, and is not touched."""
    folder = Path(sys.argv[1])
    torch.save(MODEL.state_dict(), folder / "weights.tmp")
    os.replace(folder / "weights.tmp", folder / "weights.pt")
    loaded = torch.load(folder / "weights.pt", weights_only=True)
    return list(loaded) == ["weight", "bias"]


def answer(name: str, ask: Callable[[], Any]) -> None:
    try:
        found = ask()
    except Exception as error:  # noqa: BLE001 - it is what is reported
        found = f"{type(error).__name__}: {error}"
    if found is not True and not (isinstance(found, (bool, np.bool_)) and found):
        print(f"WRONG {name}: {found}")


for name, ask in BRANCHES.items():
    answer(name, ask)
for ask in QUESTIONS:
    answer(ask.__name__, ask)
print(f"ASKED {len(BRANCHES) + len(QUESTIONS)}")

OPTIMIZER = torch.optim.AdamW(MODEL.parameters())
for _ in range(2):
    MODEL(X).sum().backward()
    OPTIMIZER.step()
