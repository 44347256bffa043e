"""Weights whole, gradients and optimizer state sharded over data: said with shardings, in JAX."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import flint
from flint.frontends.model_file import Target, importable, load_step
from flint.ir.program import Collective, Kind, Phase
from flint.passes.profiles import rewrite

EXAMPLE = Path(__file__).parents[3] / "examples" / "llama_jax.py"
SMALL = {"num_layers": "2", "seq": "256", "parallel": "tp"}


def captured(entry: str, mesh: str, **settings: str) -> flint.Trace:
    target = Target.parse(f"{EXAMPLE}{entry}")
    with importable(target.path.parent):
        loaded = load_step(target, mesh, settings={**SMALL, **settings})
        return flint.trace(loaded.step, loaded.mesh)


def over_data(trace: flint.Trace) -> Counter[tuple[Collective, Phase]]:
    """Bytes of the rank's input by kind and phase, of what is more than a norm's gradients."""
    program = rewrite(trace.workload, profile="xla-gpu").programs[0]
    found: Counter[tuple[Collective, Phase]] = Counter()
    for row in map(program.row, range(len(program))):
        if row.kind is Kind.COLLECTIVE and str(row.group) == "data" and row.comm_bytes > 1e5:
            times = int(program.trips[row.number])
            found[row.collective, row.phase] += times * row.comm_bytes
    return found


def test_gradients_are_scattered_and_weights_gathered() -> None:
    """Of 8 x 2 devices: half of the weights on each, of the state an eighth of that."""
    plain = captured("", "8x2", optimizer="")
    sharded = captured("", "8x2", optimizer="sharded")
    reduced = over_data(plain)[Collective.ALL_REDUCE, Phase.BACKWARD]
    found = over_data(sharded)
    assert found[Collective.REDUCE_SCATTER, Phase.BACKWARD] == pytest.approx(reduced, rel=0.001)
    assert found[Collective.ALL_GATHER, Phase.OPTIMIZER] == pytest.approx(reduced / 8, rel=0.001)
    assert found.total() == pytest.approx(reduced * 9 / 8, rel=0.001)
    before, after = (_held(trace) for trace in (plain, sharded))
    assert after["optimizer_state"] == pytest.approx(before["optimizer_state"] / 8, rel=0.001)
    assert after["parameters"] == before["parameters"]


def test_a_stage_holds_its_part_of_the_state() -> None:
    mesh = "pipe=2,data=4,model=2"
    before, after = (
        _held(captured(":pipelined", mesh, optimizer=o, microbatches="2", remat="full"))
        for o in ("", "sharded")
    )
    assert after["optimizer_state"] == pytest.approx(before["optimizer_state"] / 4, rel=0.001)
    assert after["parameters"] == before["parameters"]


def _held(trace: flint.Trace) -> dict[str, int]:
    return dict(trace.estimate("h100-dgx").classes[0].memory.breakdown)
