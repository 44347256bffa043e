"""Flint: what a JAX or PyTorch step would do on every device of a virtual mesh."""

from pathlib import Path as _Path
from typing import TYPE_CHECKING as _TYPE_CHECKING

_HERE = _Path(__file__).resolve().parent
if not (_HERE / "passes").is_dir():  # checkout whose Git wrote links as files (Windows)
    __path__.append(str(_HERE.parent))

if _TYPE_CHECKING:
    from flint.backends.cost.estimate import Estimate as Estimate
    from flint.cluster.models import Cluster as Cluster
    from flint.errors import FlintError as FlintError
    from flint.frontends.torch_ops.registry import torch_op as torch_op
    from flint.ir.mesh import Mesh as Mesh
    from flint.ir.op_class import OpClass as OpClass
    from flint.ir.program import Program as Program
    from flint.ir.workload import Workload as Workload
    from flint.passes.work.declared import CostEstimate as CostEstimate
    from flint.passes.work.declared import KernelCall as KernelCall
    from flint.passes.work.declared import cost_of as cost_of
    from flint.steps.entry import entry as entry
    from flint.steps.pipeline import Layers as Layers
    from flint.steps.pipeline import Pipeline as Pipeline
    from flint.steps.pipeline import Stage as Stage
    from flint.steps.pools import Disaggregated as Disaggregated
    from flint.steps.step import Step as Step
    from flint.steps.step import TorchStep as TorchStep
    from flint.steps.step import WorldStep as WorldStep

    # what tools add (`flint.api`), for type checkers, which read no entry points
    from flint.tools.change.diff.difference import Difference as Difference
    from flint.tools.explore.api import Answer as Answer
    from flint.tools.explore.api import explore as explore
    from flint.tools.explore.propose.answer import Proposal as Proposal
    from flint.tools.explore.propose.api import propose as propose
    from flint.tools.explore.propose.constrained import constrained as constrained
    from flint.tools.explore.propose.sharded import sharded as sharded
    from flint.tools.hints.hint import Hint as Hint
    from flint.tools.hints.hint import StepHints as StepHints
    from flint.tools.measure.calibration.calibrate import calibrate as calibrate
    from flint.tools.measure.calibration.result import Calibration as Calibration
    from flint.tools.measure.comparison.result import MeasuredComparison as MeasuredComparison
    from flint.tools.measure.imported import import_profiles as import_profiles
    from flint.tools.share.anonymize import Anonymized as Anonymized
    from flint.tools.share.anonymize import anonymize as anonymize
    from flint.tools.share.growing.grow import Grown as Grown
    from flint.tools.share.growing.grow import grow as grow
    from flint.tools.share.synth.synthesize import Synthetic as Synthetic
    from flint.tools.share.synth.synthesize import learn as learn
    from flint.tools.share.synth.synthesize import synth as synth
    from flint.tracing import Trace as Trace
    from flint.tracing import trace as trace
    from flint.tracing import trace_distributed as trace_distributed

# Public names and the modules that define them: `import flint` loads none of them. There is no
# __version__ here on purpose, see docs/decisions/0002-name-and-version.md.
_PUBLIC = {
    "Cluster": "flint.cluster.models",
    "CostEstimate": "flint.passes.work.declared",
    "Disaggregated": "flint.steps.pools",
    "Estimate": "flint.backends.cost.estimate",
    "FlintError": "flint.errors",
    "KernelCall": "flint.passes.work.declared",
    "Layers": "flint.steps.pipeline",
    "Mesh": "flint.ir.mesh",
    "OpClass": "flint.ir.op_class",
    "Pipeline": "flint.steps.pipeline",
    "Program": "flint.ir.program",
    "Stage": "flint.steps.pipeline",
    "Step": "flint.steps.step",
    "TorchStep": "flint.steps.step",
    "Trace": "flint.tracing",
    "Workload": "flint.ir.workload",
    "WorldStep": "flint.steps.step",
    "cost_of": "flint.passes.work.declared",
    "entry": "flint.steps.entry",
    "torch_op": "flint.frontends.torch_ops.registry",
    "trace": "flint.tracing",
    "trace_distributed": "flint.tracing",
}


def _names() -> list[str]:
    """Public names, including those of installed tools; entry points are read on demand."""
    from flint.plugins import API, registered

    return sorted({*_PUBLIC, *(name for name in registered(API) if "." not in name)})


def __getattr__(name: str) -> object:
    if name == "__all__":
        return _names()
    if name.startswith("_"):
        raise AttributeError(f"module 'flint' has no attribute {name!r}")
    from importlib import import_module

    if name in _PUBLIC:
        value = getattr(import_module(_PUBLIC[name]), name)
    else:
        from flint.plugins import API, load, registered

        if name not in registered(API):
            raise AttributeError(f"module 'flint' has no attribute {name!r}")
        value = load(API, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return _names()
