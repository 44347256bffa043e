"""The real side: four forks of this process meet over gloo and write down what their third step did.

    python -m benchmarks.real_ranks.real FOLDER NAME ...

This shares nothing with Flint's own recorder.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import torch
import torch.distributed as dist
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from benchmarks.real_ranks.table import WORLD, begin


class Recorder(TorchDispatchMode):
    """Operators between the ends of two steps of the optimizers."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Any] = []
        self.end = 0
        self.flops = 0
        self.first = True

    def stepped(self, *_: Any) -> None:
        """An optimizer has stepped."""
        if self.first:
            self.events.clear()
            self.flops = 0
        self.end = len(self.events)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # DTensor calls again, with local tensors
        result = func(*args, **(kwargs or {}))
        if not shapes_only((args, kwargs, result)):
            group = group_of(args, kwargs or {})
            if not func.is_view:
                self.events.append([str(func), tensors((args, kwargs)), tensors(result), group])
            formula = flop_registry.get(as_on_gpus(func._overloadpacket))
            if formula:
                self.flops += formula(*args, **(kwargs or {}), out_val=result)
                self.flops += added_biases(str(func), args, result)  # Flint counts them
        return result


def added_biases(name: str, args: Any, result: Any) -> int:
    """Elements to which a product adds a bias, or of which it sums a bias's gradient."""
    if name.startswith("aten.convolution_backward."):
        return int(args[0].numel()) if args[-1][2] else 0
    has_bias = "addmm" in name or (name.startswith("aten.convolution.") and args[2] is not None)
    return int(result.numel()) if has_bias else 0


def as_on_gpus(packet: Any) -> Any:
    """The operator that CPUs have a kernel of their own for."""
    return getattr(torch.ops.aten, packet.__name__.replace("_for_cpu", ""), packet)


def shapes_only(values: Any) -> bool:
    """Whether this ran on tensors without data: DTensor asks so what the shape of a result is."""
    fake = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None
    return fake or any(isinstance(v, torch.Tensor) and v.is_meta for v in tree_leaves(values))


def tensors(values: Any) -> list[Any]:
    """Shapes and types."""
    found = (v for v in tree_leaves(values) if isinstance(v, torch.Tensor))
    return [[list(v.shape), str(v.dtype).removeprefix("torch.")] for v in found]


def group_of(args: Any, kwargs: Any) -> list[int]:
    """Ranks of the process group among the arguments, [] without one."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.ScriptObject) and "ProcessGroup" in str(value._type()):
            return dist.get_process_group_ranks(dist.ProcessGroup.unbox(value))
        if isinstance(value, str) and value.isdigit():
            group = dist.distributed_c10d._resolve_process_group(value)
            return dist.get_process_group_ranks(group)
    return []


class Peak(MemTracker):
    """The most memory of all kinds together.

    It watches the program from its beginning, as what a step finds is not only what it is seen to touch: DDP
    holds buckets in C++, a pipeline the memory that it receives into, and a program what it does not use.
    By module it refuses models that run twice in a step, or hold weights that are not trained: no module is
    asked. The copy with which gloo makes a reduce-scatter from an all-reduce is not counted.
    """

    by_gloo = False

    def __init__(self) -> None:
        super().__init__()
        self._mod_tracker = MagicMock()  # whose hooks do not allow a pipeline's `autograd.grad`

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.by_gloo and str(func) in ("aten.split.Tensor", "aten.copy_.default"):
            return func(*args, **(kwargs or {}))
        self.by_gloo = str(func).startswith("c10d._reduce_scatter_base_")
        return super().__torch_dispatch__(func, types, args, kwargs)

    def again(self) -> None:
        """What was before does not count; what is there does."""
        self._peak_mem_snap = self.get_tracker_snapshot()
        self._peak_mem = {device: kinds["Total"] for device, kinds in self._peak_mem_snap.items()}


def run(name: str, **meeting: Any) -> dict[str, Any]:
    """Three steps of a program: what the third did, and the most memory that it took."""
    recorder, tracker = Recorder(), Peak()
    hook = register_optimizer_step_post_hook(recorder.stepped)
    with tracker:
        training = begin(name, **meeting)
        training.step()  # buckets of DDP are formed anew after it
        with recorder:
            training.step()
            recorder.first = False
            tracker.again()
            training.step()
    hook.remove()
    peak = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    return {"events": recorder.events[: recorder.end], "flops": recorder.flops, "memory": peak}


def rank_of(number: int, names: list[str], folder: Path) -> None:
    """All programs as one rank, one after the other."""
    os.environ.update(RANK=str(number), LOCAL_RANK=str(number), WORLD_SIZE=str(WORLD))
    meeting = {"rank": number, "world_size": WORLD, "timeout": timedelta(seconds=120)}
    for name in names:
        try:
            found = run(
                name,
                init_method=f"file://{folder.resolve()}/{name.replace(chr(32), chr(45))}.store",
                **meeting,
            )
        except BaseException:  # noqa: BLE001 - whatever the program raises is what it did
            found = {"error": traceback.format_exc()}
        (folder / f"{name}.{number}.json").write_text(json.dumps(found))
        if dist.is_initialized():
            dist.destroy_process_group()


def main() -> None:
    """Fork the ranks and wait for them."""
    import benchmarks.real_ranks.parallel  # noqa: F401 - before the forks

    torch.set_num_threads(1)
    folder, *names = sys.argv[1:]
    children = []
    for number in range(WORLD):
        child = os.fork()
        if not child:
            rank_of(number, names, Path(folder))
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
