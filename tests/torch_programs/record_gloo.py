"""Run a script as one rank of a real world of gloo processes, and write down what it did.

    RANK=0 WORLD_SIZE=4 ... python record_gloo.py OUTPUT.json SCRIPT.py [ARGUMENTS]

Operators between the first and the second step of the optimizer go to OUTPUT as a list of
`[name, inputs, outputs, ranks of the group]`, a tensor being `[shape, type]`. This is written apart
from Flint's own recorder on purpose, and shares nothing with it.

GPUs have kernels for RMS norms where CPUs have none: PyTorch's own formulas are made these kernels.
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._decomp import decomposition_table
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self.events: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # DTensor calls again, with local tensors
        result = func(*args, **(kwargs or {}))
        if self.steps == 1 and not shapes_only((args, kwargs, result)):
            inputs = tensors((args, kwargs))
            self.events.append([str(func), inputs, tensors(result), group_of(args, kwargs or {})])
        return result


def shapes_only(values: Any) -> bool:
    """Whether this ran on tensors without data: DTensor asks so what the shape of a result is."""
    fake = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None
    return fake or any(isinstance(v, torch.Tensor) and v.is_meta for v in tree_leaves(values))


def tensors(values: Any) -> list[Any]:
    return [
        [list(v.shape), str(v.dtype).removeprefix("torch.")]
        for v in tree_leaves(values)
        if isinstance(v, torch.Tensor)
    ]


def group_of(args: Any, kwargs: Any) -> list[int]:
    """Ranks of the process group among the arguments, [] without one."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.ScriptObject) and "ProcessGroup" in str(value._type()):
            return dist.get_process_group_ranks(dist.ProcessGroup.unbox(value))
        if isinstance(value, str) and value.isdigit():
            group = dist.distributed_c10d._resolve_process_group(value)
            return dist.get_process_group_ranks(group)
    return []


def main() -> None:
    output, script, *arguments = sys.argv[1:]
    sys.argv = [script, *arguments]
    recorder = Recorder()

    def count_step(*_: Any) -> None:
        recorder.steps += 1

    register_optimizer_step_post_hook(count_step)
    kernels = torch.library.Library("aten", "IMPL", "CPU")
    for name in ("_fused_rms_norm", "_fused_rms_norm_backward"):
        operator = getattr(torch.ops.aten, name).default
        kernels.impl(name, decomposition_table[operator])
    with recorder:
        runpy.run_path(script, run_name="__main__")
    Path(output).write_text(json.dumps(recorder.events))


if __name__ == "__main__":
    main()
