"""Devices that wait for the slowest of them."""

from __future__ import annotations

import numpy as np
import pytest
from jax.sharding import AbstractMesh

import flint
from flint.backends.cost.notes import expected_largest, slower_than_mean, waiting_devices
from flint.cluster.models import Cluster, Quantity, SourceKind
from flint.ir.workload import Workload
from tests.estimates import zoo

H100 = Cluster.load("h100-dgx")


def _differing(variation: float) -> Cluster:
    value = Quantity(value=variation, kind=SourceKind.MEASURED, source="this test")
    return H100.model_copy(update={"chip": H100.chip.model_copy(update={"variation": value})})


@pytest.mark.parametrize("count", [1, 2, 8, 64, 512, 4096])
def test_the_expected_largest_of_normal_numbers(count: int) -> None:
    """Against the mean of 4,000 draws."""
    draws = np.random.default_rng(7).standard_normal((4000, count)).max(axis=1)
    spread = float(draws.std()) / 4000**0.5
    assert expected_largest(count) == pytest.approx(
        float(draws.mean()), abs=4 * spread + 0.02 * (count > 1)
    )


def test_all_devices_along_axes_with_communication_wait() -> None:
    trace = zoo("llama_fsdp_tp")
    assert waiting_devices(trace.workload) == trace.workload.mesh.size

    def alone(x):  # type: ignore[no-untyped-def]
        return x @ x

    import jax
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    mesh = AbstractMesh((4, 2), ("data", "model"))
    x = jax.ShapeDtypeStruct((8, 64, 64), "float32", sharding=NamedSharding(mesh, P("data")))
    assert waiting_devices(flint.trace(flint.Step(alone, (x,)), "data=4,model=2").workload) == 1


def _step_ns(workload: Workload, variation: float) -> float:
    return flint.Trace(workload).estimate(_differing(variation)).step_time_ns


def test_a_step_waits_for_the_slowest_and_says_so() -> None:
    trace = zoo("llama_fsdp_tp")
    count = trace.workload.mesh.size
    alike, differing = trace.estimate(_differing(0)), trace.estimate(_differing(0.02))
    assert slower_than_mean(trace.workload, _differing(0.02)) == 1 + 0.02 * expected_largest(count)
    busy = [sum(s.busy_ns for s in e.classes[0].shares if not s.over) for e in (alike, differing)]
    assert busy[1] / busy[0] == pytest.approx(1 + 0.02 * expected_largest(count), rel=1e-4)
    assert differing.step_time_ns > alike.step_time_ns
    assert f"{count:,} devices wait for the slowest" in differing.to_text()
    assert "wait for the slowest" not in alike.to_text()
    assert [_step_ns(trace.workload, v) for v in (0, 0.01, 0.02)] == sorted(
        _step_ns(trace.workload, v) for v in (0, 0.01, 0.02)
    )
