"""Try both PyTorch ways in on every kind of model of tests/torch_zoo.py.

    python benchmarks/torch_coverage.py
    python benchmarks/torch_coverage.py --routes annotated --models lstm,unet

`annotated`: forward, backward and AdamW of the module in bfloat16 on a 2x4 mesh, ZeRO-3 over "data".
`world`: the script tests/torch_programs/fsdp_zoo.py (FSDP2, AdamW) on 8 ranks. Columns: seconds of
the capture, imports of PyTorch and JAX left out for `annotated`; operations of rank 0 and its
collectives. Exits with 1 if one failed. Models of HuggingFace need `pip install transformers`.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import flint
from flint.ir.program import Kind as RowKind
from flint.tracing import Trace, trace_script
from tests.torch_zoo import KINDS, Kind

HEADINGS = ("model", "route", "seconds", "operations", "collectives", "result")
WIDTHS = (20, 10, 8, 11, 12, 0)


def main() -> int:
    """Try the chosen models and print a line for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--models", default=",".join(KINDS))
    parser.add_argument("--routes", default="annotated,world")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    _print_row(HEADINGS)
    failed = False
    for name in options.models.split(","):
        for route in options.routes.split(","):
            row = attempt(KINDS[name], route)
            failed |= row[-1] not in ("ok", "not installed")
            _print_row((name, route, *row))
    return int(failed)


def attempt(kind: Kind, route: str) -> tuple[str, ...]:
    """Seconds, operations, collectives and "ok", or what went wrong."""
    if not kind.installed:
        return "", "", "", "not installed"
    started = time.perf_counter()
    try:
        trace = ROUTES[route](kind)
    except Exception as error:  # noqa: BLE001 - the table says what every model raises
        said = str(error).split("\n")[0]
        return f"{time.perf_counter() - started:.1f}", "", "", f"{type(error).__name__}: {said}"
    seconds = time.perf_counter() - started
    program = trace.workload.program_of(0)
    program.verify()
    collectives = int(np.sum(program.kind == RowKind.COLLECTIVE))
    return f"{seconds:.1f}", str(len(program)), str(collectives), "ok"


def annotated(kind: Kind) -> Trace:
    """A training step of the module as it is written for one device."""
    import torch

    def halved(tensors: Any) -> tuple[Any, ...]:
        return tuple(t.bfloat16() if t.is_floating_point() else t for t in tensors)

    module, inputs, targets = kind.on("meta", batch=8)
    step = flint.TorchStep(
        module.to(torch.bfloat16),
        halved(inputs),
        loss=kind.loss,
        loss_args=halved(targets),
        optimizer="adamw",
        fsdp="data",
        name=kind.name,
    )
    return flint.trace(step, {"data": 2, "model": 4})


def world(kind: Kind) -> Trace:
    """The same model under FSDP2."""
    return trace_script(ROOT / "tests/torch_programs/fsdp_zoo.py", {"data": 8}, [kind.name])


ROUTES = {"annotated": annotated, "world": world}


def _print_row(cells: tuple[str, ...]) -> None:
    print(*(c.ljust(w) for c, w in zip(cells, WIDTHS, strict=True)), flush=True)


if __name__ == "__main__":
    sys.exit(main())
