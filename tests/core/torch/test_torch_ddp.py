"""Buckets and all-reduces of DistributedDataParallel, against PyTorch's own reducer."""

from __future__ import annotations

import ast
import inspect
import re
import runpy
import subprocess
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel import distributed as ddp_module
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from flint.errors import FlintError
from flint.frontends.torch_world.record.under_way import UnderWay
from flint.frontends.torch_world.runtime import buckets, ddp

EXAMPLES = Path(__file__).parents[3] / "examples"


def model(extra: bool = False) -> nn.Module:
    """Layers of different sizes, batch norm, and a parameter that nothing uses."""
    made = nn.Sequential(
        nn.Linear(64, 700), nn.ReLU(), nn.Linear(700, 700), nn.BatchNorm1d(700), nn.Linear(700, 9)
    )
    if extra:
        made.register_parameter("unused", nn.Parameter(torch.zeros(50)))
    return made


REAL = """
import json, os, socket, sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn


{model}
def work(rank, port, options):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    for case in options:
        torch.manual_seed(0)
        made = model(case.get("find_unused_parameters", False))
        wrapped = nn.parallel.DistributedDataParallel(made, **case)
        for _ in range(5):  # a static graph rebuilds its buckets after the second
            wrapped(torch.ones(4, 64)).sum().backward()
        log = wrapped._get_ddp_logging_data()
        if rank == 0:
            print(json.dumps([log["bucket_sizes"], log.get("rebuilt_bucket_sizes")]), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.start_processes(work, (port, json.loads(sys.argv[1])), nprocs=2, start_method="fork")
""".replace("{model}", inspect.getsource(model))

CASES: list[dict[str, Any]] = [
    {},
    {"bucket_cap_mb": 1},
    {"bucket_cap_mb": 1, "find_unused_parameters": True},
    {"bucket_cap_mb": 1, "static_graph": True},
    {"bucket_cap_mb": 1, "gradient_as_bucket_view": True},
]


class Collectives(TorchDispatchMode):  # type: ignore[misc]
    """Notes c10d operators with the bytes that they carry, and what is done to flat buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[str, int]] = []
        self.ops: list[str] = []
        self.under_way = UnderWay()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops.append(func.__name__)
        self.under_way.latest = None
        if func.namespace == "c10d":
            tensors = args[0] if isinstance(args[0], list) else [args[0]]
            self.sent.append((func.__name__, sum(t.nbytes for t in tensors)))
        result = func(*args, **(kwargs or {}))
        if func.namespace == "c10d":
            self.under_way.starts(
                result,
                tensors,
                [t for t in pytree.tree_leaves(args) if isinstance(t, torch.Tensor)],
            )
        return result

    def reduced(self) -> list[int]:
        return [num_bytes for name, num_bytes in self.sent if name.startswith("allreduce_")]


@contextmanager
def world(size: int = 8) -> Iterator[Collectives]:
    """A fake process group and fake tensors, with the reducer in Python."""
    dist.init_process_group("fake", rank=0, world_size=size, store=FakeStore())
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dist, "Reducer", ddp.Reducer)
            patch.setattr(dist, "Logger", ddp.Logger)
            patch.setattr(dist, "_register_comm_hook", ddp.register_comm_hook)
            patch.setattr(dist, "_register_builtin_comm_hook", ddp.register_builtin_comm_hook)
            patch.setattr(DistributedDataParallel, "_check_comm_hook", ddp.check_comm_hook)
            patch.setattr(
                ddp_module, "_verify_param_shape_across_processes", ddp.verify_param_shapes
            )
            with FakeTensorMode(), Collectives() as seen:
                patch.setattr(
                    torch._C._distributed_c10d.FakeWork,
                    "get_future",
                    lambda work: buckets.future_of(work, seen.under_way),
                )
                yield seen
    finally:
        dist.destroy_process_group()


def steps(wrapped: Any, seen: Collectives, count: int = 2) -> list[int]:
    """Bytes of the all-reduces of the last of `count` steps."""
    for _ in range(count):
        for param in wrapped.parameters():
            param.grad = None
        seen.sent.clear()
        seen.ops.clear()
        wrapped(torch.ones(4, 64)).sum().backward()
    return seen.reduced()


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """Bucket sizes that two real processes report for each of `CASES`."""
    import json

    script = tmp_path_factory.mktemp("ddp") / "real.py"
    script.write_text(REAL)
    command = [sys.executable, "-W", "ignore", str(script), json.dumps(CASES)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_buckets_are_those_of_real_processes(case: int, real: list[list[str]]) -> None:
    with world(size=2) as seen:
        unused = CASES[case].get("find_unused_parameters", False)
        wrapped = DistributedDataParallel(model(unused), **CASES[case])
        reduced = steps(wrapped, seen)
        log = wrapped._get_ddp_logging_data()
    assert [log["bucket_sizes"], log.get("rebuilt_bucket_sizes")] == real[case]
    expected = [int(size) for size in (real[case][1] or real[case][0]).split(",")]
    used_map = [4 * len(list(wrapped.parameters()))] if unused else []
    assert reduced == expected + used_map


@pytest.mark.long
def test_resnet_50_reduces_its_gradients_in_six_buckets() -> None:
    example = runpy.run_path(str(EXAMPLES / "torch_resnet50_ddp.py"))
    with world() as seen:
        wrapped = DistributedDataParallel(example["ResNet"]())
        images = torch.ones(2, 3, 64, 64)
        for _ in range(2):
            seen.sent.clear()
            wrapped(images).sum().backward()
    parameters = list(wrapped.parameters())
    _, limits = dist._compute_bucket_assignment_by_size(parameters[::-1], [1 << 20, 25 << 20])
    assert sum(seen.reduced()) == 4 * 25_557_032
    assert len(seen.reduced()) == len(limits) == 5
    assert seen.reduced()[0] == 4 * (1000 * 2048 + 1000)  # the classifier is over 1 MiB by itself
    broadcast = [num_bytes for name, num_bytes in seen.sent if name.startswith("broadcast_")]
    assert sum(broadcast) == 4 * 2 * 26_560 + 8 * 53  # running statistics and their counters


def test_parameters_and_buffers_come_from_rank_0() -> None:
    with world() as seen:
        made = model()
        seen.sent.clear()
        DistributedDataParallel(made)
        state = sum(tensor.nbytes for tensor in made.state_dict().values())
    assert {name for name, _ in seen.sent} == {"broadcast_.default"}
    assert sum(num_bytes for _, num_bytes in seen.sent) == state


def test_no_sync_accumulates_without_communication() -> None:
    with world() as seen:
        wrapped = DistributedDataParallel(model())
        steps(wrapped, seen)
        seen.sent.clear()
        with wrapped.no_sync():
            wrapped(torch.ones(4, 64)).sum().backward()
        assert seen.reduced() == []
        wrapped(torch.ones(4, 64)).sum().backward()
        assert len(seen.reduced()) == 2


def test_gradients_are_divided_once_each_and_waited_for_at_the_end() -> None:
    with world() as seen:
        wrapped = DistributedDataParallel(model(), bucket_cap_mb=1)
        steps(wrapped, seen)
        assert seen.ops.count("mul.out") == len(list(wrapped.parameters()))
        last = len(seen.ops) - 1 - seen.ops[::-1].index("allreduce_.default")
        assert seen.ops[last + 1 :].count("copy_.default") == len(list(wrapped.parameters()))


def test_gradients_that_are_bucket_views_are_not_copied_back() -> None:
    with world() as seen:
        wrapped = DistributedDataParallel(model(), gradient_as_bucket_view=True)
        steps(wrapped, seen)
        last = len(seen.ops) - 1 - seen.ops[::-1].index("allreduce_.default")
        assert "copy_.default" not in seen.ops[last + 1 :]
        assert all(param.grad.untyped_storage().nbytes() > 10**5 for param in wrapped.parameters())


@pytest.mark.parametrize("hook", ["bf16_compress_hook", "fp16_compress_hook"])
def test_compression_hooks_halve_the_bytes(hook: str) -> None:
    with world() as seen:
        wrapped = DistributedDataParallel(model())
        whole = steps(wrapped, seen)
        wrapped = DistributedDataParallel(model())
        wrapped.register_comm_hook(None, getattr(default_hooks, hook))
        assert steps(wrapped, seen) == [num_bytes // 2 for num_bytes in whole]
        assert "mul.out" not in seen.ops  # the hook divides


def test_a_compressed_bucket_goes_when_gradients_are_there() -> None:
    compressed: list[Any] = []

    def hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        small = bucket.buffer().half()
        compressed.append(weakref.ref(small.untyped_storage()))
        done = dist.all_reduce(small, async_op=True).get_future()
        return done.then(lambda future: bucket.buffer().copy_(future.value()[0]))

    with world() as seen:
        wrapped = DistributedDataParallel(model())
        wrapped.register_comm_hook(None, hook)
        steps(wrapped, seen)
    assert compressed and all(small() is None for small in compressed)


def test_hooks_built_in_and_of_the_user() -> None:
    def hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        done = dist.all_reduce(bucket.buffer() / 8, async_op=True).get_future()
        return done.then(lambda future: future.value()[0] * 2)

    with world() as seen:
        wrapped = DistributedDataParallel(model())
        wrapped._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
        half = steps(wrapped, seen)
        wrapped = DistributedDataParallel(model())
        wrapped.register_comm_hook(None, hook)
        assert steps(wrapped, seen) == [2 * num_bytes for num_bytes in half]
        assert all(param.grad is not None for param in wrapped.parameters())


def test_a_handle_holds_what_is_written_and_what_is_read_until_it_is_waited_for() -> None:
    with world() as seen:
        tensors = [torch.ones(8 * size) for size in (8, 1)]
        memory = [weakref.ref(t.untyped_storage()) for t in tensors]
        work = dist.all_gather_single(*tensors, async_op=True)
        del tensors
        assert [m() is not None for m in memory] == [True, True]
        seen.under_way.waited(work)
        assert [m() is not None for m in memory] == [True, False]
        del work
        assert [m() is not None for m in memory] == [False, False]


def test_powersgd_communicates_in_what_follows_its_first_collective() -> None:
    """A number of 128 x 64 weights: the bias, then P of 128 x 1, then Q of 64 x 1."""
    state = PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=1)
    with world() as seen:
        wrapped = DistributedDataParallel(nn.Linear(64, 128))
        wrapped.register_comm_hook(state, powerSGD_hook)
        assert steps(wrapped, seen, 4) == [4 * 128, 4 * 128, 4 * 64]


def test_hooks_are_told_which_bucket_is_the_last() -> None:
    told: list[tuple[int, bool]] = []

    def hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        told.append((bucket.index(), bucket.is_last()))
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future()

    with world() as seen:
        wrapped = DistributedDataParallel(model(), bucket_cap_mb=1)
        wrapped.register_comm_hook(None, hook)
        steps(wrapped, seen)
    count = max(number for number, _ in told) + 1
    assert count > 1
    assert {(number, number == count - 1) for number in range(count)} <= set(told[-count:])


def test_arguments_of_the_reducer_are_those_of_pytorch() -> None:
    """Their names and defaults, as the documentation that pybind11 writes has them."""
    ours = inspect.signature(ddp.Reducer).parameters
    documented = str(dist.Reducer.__init__.__doc__).partition("(self:")[2]
    theirs = re.findall(r", (\w+): [^=]*?(?:= (\w+|\[\]|\{\}))?(?=, \w+: |\) -> )", documented)
    assert len(theirs) > 10
    assert [name for name, _ in theirs] == list(ours)[: len(theirs)]
    for name, default in theirs:
        if default.isdigit() or default in ("True", "False"):
            assert ours[name].default == ast.literal_eval(default), name


def test_sparse_gradients_are_an_error() -> None:
    with world(), pytest.raises(FlintError) as caught:
        DistributedDataParallel(nn.Embedding(10, 4, sparse=True))
    assert caught.value.code == "FL235"
