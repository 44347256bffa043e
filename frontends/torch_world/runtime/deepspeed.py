"""DeepSpeed's own kernels, which it compiles where the program runs: the recorded stand-ins."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from flint.frontends.torch_world.record.session import Session
from flint.frontends.torch_world.runtime.patching import Function, Patches
from flint.tools.stand_ins.multi_tensor import multi_tensor_adam

DEEPSPEED = Patches()
BUILDERS = "deepspeed.ops.op_builder.builder"
_KERNELS = {"fused_adam": SimpleNamespace(multi_tensor_adam=multi_tensor_adam)}


@DEEPSPEED.replaces(f"{BUILDERS}:OpBuilder.load")
def load(session: Session, original: Function) -> Function:
    """There is no compiler of CUDA here; kernels without a stand-in ask for it, and fail by name."""

    def loaded(builder: Any, verbose: bool = True) -> Any:
        return _KERNELS.get(builder.name) or original(builder, verbose)

    return loaded
