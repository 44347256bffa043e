"""DeepSpeed's own kernels, which it compiles where the program runs: the recorded stand-ins."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from flint.frontends.torch_world.packages.package import packages
from flint.frontends.torch_world.record.session import Session
from flint.frontends.torch_world.runtime.patching import Function, Patches

DEEPSPEED = Patches()
BUILDERS = "deepspeed.ops.op_builder.builder"
#: Its extensions, and those of Apex that have the same kernels under the same names.
_ALIKE = {"fused_adam": "amp_C"}


@DEEPSPEED.replaces(f"{BUILDERS}:OpBuilder.load")
def load(session: Session, original: Function) -> Function:
    """There is no compiler of CUDA here; kernels without a stand-in ask for it, and fail by name."""

    def loaded(builder: Any, verbose: bool = True) -> Any:
        package = packages().get(_ALIKE.get(builder.name, ""))
        if package is None:
            return original(builder, verbose)
        return SimpleNamespace(**package.names(package.name))

    return loaded
