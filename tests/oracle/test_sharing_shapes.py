"""The level `shapes`: totals and step times within the bound, on workloads that it did not look at while searching."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

import flint
from flint.backends.cost.estimate import estimate
from flint.backends.cost.memory.memory import step_memory
from flint.cluster.named import load_cluster
from flint.ir.program import Kind
from flint.ir.workload import Workload
from flint.passes.work.totals import totals
from flint.requests.estimate import EstimateRequest
from flint.tools.share.anonymize import Anonymized
from flint.tools.share.redact import redacted
from flint.tools.share.shapes.perturb import MACHINES
from flint.tools.share.sizes import Sizes
from flint.tools.share.totals import comm_bytes_by_label
from tests.long import long_but
from tests.oracle.test_sharing_sizes import capture

RECORDED = Path(__file__).resolve().parents[2] / "benchmarks" / "compare_models"
PUBLIC = ("model=8b", "parallel=fsdp+tp")
KEEP = {"llama": 0.02, "bert-small": 0.02, "vit": 0.03}
QUICK = ("bert-small", "vit")


def original(name: str) -> Workload:
    if name == "llama":
        return capture("8x8", PUBLIC)
    return Workload.load(RECORDED / f"{name}.flint")


@cache
def shared(name: str) -> Anonymized:
    return flint.anonymize(original(name), level="shapes", keep=KEEP[name], seed=7)


@pytest.mark.parametrize("name", long_but(QUICK, KEEP))
def test_totals_of_every_program_stay_within_the_bound(name: str) -> None:
    before, after = original(name), shared(name).workload
    names = dict(zip(before.mesh.names, after.mesh.names, strict=True))
    for a, b in zip(before.programs, after.programs, strict=True):
        one, two = totals(a), totals(b)
        assert within(one.flops, two.flops, KEEP[name])
        assert within(one.parameter_bytes, two.parameter_bytes, KEEP[name])
        labels = {
            ",".join(names.get(x, x) for x in label.split(",")): v
            for label, v in comm_bytes_by_label(a).items()
        }
        assert labels.keys() == comm_bytes_by_label(b).keys()
        assert all(within(v, comm_bytes_by_label(b)[k], KEEP[name]) for k, v in labels.items())
        assert one.executed_op_count > 0


@pytest.mark.parametrize("name", long_but(QUICK, KEEP))
def test_steps_take_as_long_and_as_much_memory(name: str) -> None:
    before, after = original(name), shared(name).workload
    for machine in (MACHINES[0], MACHINES[-1]):
        a, b = (
            estimate(w, EstimateRequest(load_cluster(machine), unpriced_is_zero=True))
            for w in (before, after)
        )
        assert within(a.step_time_ns, b.step_time_ns, KEEP[name])
        peaks = [max(c.memory.total_bytes for c in e.classes) for e in (a, b)]
        assert within(*peaks, KEEP[name])


@pytest.mark.parametrize("name", long_but(QUICK, KEEP))
def test_sizes_change_and_rows_fit_what_they_read(name: str) -> None:
    found, before = shared(name), redacted(original(name))
    found.workload.verify()
    assert Sizes.of(found.workload).unexplained == Sizes.of(before).unexplained
    assert found.moves is not None
    assert 2 * found.moves.changed >= found.moves.variables
    changed = [
        a.shapes[i] != b.shapes[j]
        for a, b in zip(before.programs, found.workload.programs, strict=True)
        for i, j, kind in zip(a.shape.tolist(), b.shape.tolist(), a.kind.tolist(), strict=True)
        if kind == Kind.COMPUTE
    ]
    assert np.mean(changed) > 0.25


@pytest.mark.long
def test_it_is_drawn_again_with_its_seed() -> None:
    again = flint.anonymize(original("bert-small"), level="shapes", keep="2 %", seed=7)
    assert again.workload.to_bytes() == shared("bert-small").workload.to_bytes()
    other = flint.anonymize(original("bert-small"), level="shapes", keep=0.02, seed=8)
    assert other.workload.to_bytes() != again.workload.to_bytes()


@pytest.mark.long
def test_changes_are_of_what_was_written() -> None:
    found = shared("llama")
    changes = {c.name: c for c in found.changes}
    program = found.workload.programs[0]
    assert changes["FLOPs"].after == totals(program).flops
    assert changes["bytes of parameters"].after == totals(program).parameter_bytes
    assert all(abs(c.share) <= KEEP["llama"] for c in found.changes)
    assert step_memory(found.workload)[0].peak_bytes > 0


def within(before: float, after: float, keep: float) -> bool:
    return abs(after - before) <= keep * before
