"""Models of some kinds of tests/torch_zoo.py go both ways in.

That all kinds are exported, gradients included, is in tests/oracle/test_torch_numeric_models.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("jax")

import flint
from flint.ir.program import Kind as RowKind
from flint.tracing import Trace, trace_script
from tests.long import long_but
from tests.torch_zoo import KINDS, Kind

FSDP = Path(__file__).parents[1] / "torch_programs" / "fsdp_zoo.py"
KINDS_HERE = ("llama_plain", "mixtral_like", "bert_like", "mamba_like", "dlrm_bag", "unet", "lstm")


def annotated(kind: Kind) -> Trace:
    """Forward, backward and AdamW in bfloat16 of the module as it is written for one device; ZeRO-3."""
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
    """The same model under FSDP2 on 8 ranks."""
    return trace_script(FSDP, {"data": 8}, [kind.name])


ATTEMPTS = [(name, route) for name in KINDS_HERE for route in (annotated, world)]


@pytest.mark.parametrize(("name", "route"), long_but(ATTEMPTS[2:3], ATTEMPTS))
@pytest.mark.filterwarnings("ignore")
def test_a_training_step_is_captured(name: str, route: Any) -> None:
    program = route(KINDS[name]).workload.program_of(0)
    program.verify()
    assert len(program) > 100
    assert np.sum(program.kind == RowKind.COLLECTIVE) >= 2
