"""Peak memory of captured programs against what XLA's own compilers said, and what ran on its chips.

The compilers' figures are in benchmarks/data/compiled_memory; `python -m benchmarks.compiled_memory`
prints all of them. Here are some that are captured in a few seconds.
"""

from __future__ import annotations

import pytest

from benchmarks.compiled_memory import BARS, rows
from benchmarks.step_rows import tpu_recipes
from flint.cluster.models import Cluster
from flint.requests.estimate import EstimateRequest
from tests.recorded import recorded_version_only

pytestmark = recorded_version_only

ROWS = {(r.name, r.compiler): r for r in rows()}
#: HBM of a v6e that programs may use, in GiB.
V6E_GIB = 31.25


@pytest.mark.parametrize("name", ["ring attention", "decode", "llama tp remat full", "llama 8B"])
def test_a_program_needs_what_xla_for_gpus_says(name: str) -> None:
    row = ROWS[name, "gpu"]
    assert row.estimated_bytes(row.capture()) == pytest.approx(row.peak_bytes, rel=BARS["gpu"])


@pytest.mark.long
def test_a_residual_network_keeps_what_xla_keeps() -> None:
    """Normalised images are calculated again by each reader, not stored for all."""
    row = ROWS["resnet50 small", "gpu"]
    assert row.estimated_bytes(row.capture()) == pytest.approx(row.peak_bytes, rel=BARS["gpu"])


@pytest.mark.parametrize("name", ["llama fsdp+tp remat none", "llama 70B"])
def test_a_program_needs_what_xla_for_tpus_says(name: str) -> None:
    row = ROWS[name, "tpu"]
    assert row.estimated_bytes(row.capture()) == pytest.approx(row.peak_bytes, rel=BARS["tpu"])


def test_what_maxtext_ran_fits() -> None:
    """Llama 3.1 8B on 8 and on 256 chips, which keeps inputs of layers and projections on the host."""
    ran = [c for c in tpu_recipes() if c.label.endswith((" 8 chips", " 256 chips"))]
    for case in (c for c in ran if "llama" in c.label):
        found = _estimate(case)
        assert found / 2**30 < V6E_GIB, case.label


def _estimate(case: object) -> int:
    from benchmarks.accuracy_steps import captured
    from flint.backends.cost.estimate import estimate

    found = estimate(captured(case), EstimateRequest(Cluster.load("v6e"), stack="maxtext"))  # type: ignore[arg-type]
    return found.classes[0].memory.total_bytes
