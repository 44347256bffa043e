"""Random programs against what XLA's GPU compiler made of them (`python -m benchmarks.differential`).

The compiler's side is recorded: programs that were equal then stay equal. How it was made:
`--seeds 0:100 --json tests/oracle/differential_xla_gpu.json`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax", reason="the programs are JAX's")

from benchmarks.differential.choices import Choices, shrunk
from benchmarks.differential.programs import BY_NAME, program
from benchmarks.differential.table import traffic_text
from flint.frontends.jax_step.program import capture_jax
from flint.passes.base import run_passes
from flint.passes.compilers.sides import side
from flint.passes.partition.xla import partitioned
from flint.passes.profiles import profile
from tests.long import long_but
from tests.recorded import recorded_version_only

KEPT: dict[int, dict[str, Any]] = {
    kept["seed"]: kept
    for kept in json.loads(
        (Path(__file__).parent / "differential_xla_gpu.json").read_text(encoding="utf-8")
    )["programs"]
    if kept.get("verdict") == "equal"
}
#: One of each family is quick.
FAMILIES = {kept["family"]: [] for kept in KEPT.values()}
for number, one in KEPT.items():
    FAMILIES[one["family"]].append(number)
QUICK = [seed for seeds in FAMILIES.values() for seed in seeds[:1]]


@recorded_version_only
@pytest.mark.parametrize("seed", long_but(QUICK, KEPT))
def test_collectives_are_the_compilers(seed: int) -> None:
    kept = KEPT[seed]
    example = program(Choices(kept["seed"]))
    assert example.name == kept["name"], "the generator changed: record the programs again"
    divided = partitioned(capture_jax(example.step, example.mesh)).program
    found = side(run_passes(divided, profile("xla-gpu").passes))
    assert traffic_text(found.collectives) == kept["compiled"]


@pytest.mark.parametrize("family", sorted(BY_NAME))
def test_the_simplest_choices_are_a_program(family: str) -> None:
    example = program(Choices(), family)
    assert example.family == family
    assert capture_jax(example.step, example.mesh).module


@pytest.mark.parametrize("seed", [133, 9036])
def test_programs_that_stopped_once_are_partitioned(seed: int) -> None:
    """Slices of no elements; parts of an axis that a gather brings together."""
    example = program(Choices(seed))
    assert len(partitioned(capture_jax(example.step, example.mesh)).program)


def test_choices_are_shrunk_to_what_fails() -> None:
    made = [3, 0, 5, 2, 9, 1, 4]
    small = shrunk(made, lambda given: len(given) > 4 and given[2] >= 2 and given[4] >= 7, 100)
    assert small == [0, 0, 2, 0, 7]
