"""From a draw to a captured workload."""

from __future__ import annotations

from pathlib import Path

from benchmarks.sharing.corpus.draw import Draw
from benchmarks.sharing.corpus.run import Run
from benchmarks.sharing.corpus.training import step_of
from flint.capturing import CaptureOptions, captured
from flint.ir.workload import Workload
from flint.tracing import trace

ROOT = Path(__file__).resolve().parents[3]


def workload_of(draw: Draw) -> Workload:
    """Capture a draw. Raises FlintError, and what a model with such options raises."""
    if draw.example is not None:
        settings = tuple(f"{name}={value}" for name, value in draw.options.items())
        file = str(ROOT / draw.example.model)
        return captured(CaptureOptions(file, draw.mesh, settings=settings)).workload
    assert draw.plan is not None
    run = Run(draw.plan)
    model = draw.family.build(draw.options, run)
    return trace(step_of(model, run, draw.family.name), draw.mesh).workload
