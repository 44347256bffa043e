"""Flint: what a JAX or PyTorch step would do on every device of a mesh that is not there."""

from pathlib import Path as _Path
from typing import TYPE_CHECKING as _TYPE_CHECKING

_HERE = _Path(__file__).resolve().parent
if not (_HERE / "passes").is_dir():  # checkout whose Git wrote links as files (Windows)
    __path__.append(str(_HERE.parent))

if _TYPE_CHECKING:
    from flint.cluster import Cluster as Cluster
    from flint.errors import FlintError as FlintError
    from flint.frontends.torch_ops.registry import torch_op as torch_op
    from flint.mesh import Mesh as Mesh
    from flint.pipeline import Layers as Layers
    from flint.pipeline import Pipeline as Pipeline
    from flint.pipeline import Stage as Stage
    from flint.pools import Disaggregated as Disaggregated
    from flint.program import Program as Program
    from flint.step import Step as Step
    from flint.step import TorchStep as TorchStep
    from flint.step import WorldStep as WorldStep
    from flint.step import entry as entry
    from flint.tracing import Trace as Trace
    from flint.tracing import trace as trace
    from flint.tracing import trace_distributed as trace_distributed
    from flint.workload import Workload as Workload

# Public names and the modules that define them: `import flint` loads none of them. There is no
# __version__ here on purpose, see docs/decisions/0002-name-and-version.md.
_PUBLIC = {
    "Cluster": "flint.cluster",
    "Disaggregated": "flint.pools",
    "FlintError": "flint.errors",
    "Layers": "flint.pipeline",
    "Mesh": "flint.mesh",
    "Pipeline": "flint.pipeline",
    "Program": "flint.program",
    "Stage": "flint.pipeline",
    "Step": "flint.step",
    "TorchStep": "flint.step",
    "Trace": "flint.tracing",
    "Workload": "flint.workload",
    "WorldStep": "flint.step",
    "entry": "flint.step",
    "torch_op": "flint.frontends.torch_ops.registry",
    "trace": "flint.tracing",
    "trace_distributed": "flint.tracing",
}
__all__ = sorted(_PUBLIC)  # noqa: PLE0605


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'flint' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
