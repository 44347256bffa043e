"""What a workload keeps: as much as the last question, and nothing that changes an answer."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import pytest

from flint.backends.cost.estimate import Estimate, estimate
from flint.cluster.models import Cluster
from flint.ir.mesh import AxisRef, Group, Mesh
from flint.ir.program import Collective, Kind, Phase
from flint.ir.workload import Kept, Workload
from flint.passes.profiles import kernels_for
from flint.requests.estimate import EstimateRequest
from tests.program_rows import ProgramBuilder

MESH = Mesh(("data", "model"), (4, 2))


def workload(size: int = 512) -> Workload:
    """Two layers of products, element-wise work and gradients that are reduced."""
    b = ProgramBuilder(MESH)
    of = {"dtype": "float32", "shape": (size, size), "result_bytes": 4 * size**2}
    x = b.add("parameter", Kind.PARAMETER, **of)
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        dims, flops = (1, size, size, size), 2 * size**3
        moved = 8 * size**2
        x = b.add("stablehlo.dot_general", deps=[x], dims=dims, flops=flops, operand_bytes=moved,
                  phase=phase, **of)  # fmt: skip
        x = b.add("stablehlo.tanh", deps=[x], operand_bytes=4 * size**2, phase=phase, **of)
        b.add("sdy.all_reduce", Kind.COLLECTIVE, deps=[x], collective=Collective.ALL_REDUCE,
              group=Group((AxisRef("data"),)), comm_bytes=4 * size**2, phase=phase, **of)  # fmt: skip
    return Workload.single(b.build(), {"name": "two"})


def text(found: Estimate) -> str:
    return str(found.to_json())


def test_only_the_last_result_of_a_name_is_kept() -> None:
    kept, made = Kept(), []

    def make(value: int) -> int:
        made.append(value)
        return value

    assert [kept.get("square", k, lambda k=k: make(k * k)) for k in (2, 2, 3, 3, 2)] == [
        4, 4, 9, 9, 4,
    ]  # fmt: skip
    assert made == [4, 9, 4]
    assert kept.get("other", 2, lambda: 5) == 5
    assert kept.get("square", 2, lambda: 7) == 4


def test_nothing_kept_is_part_of_a_workload() -> None:
    whole = workload()
    before = whole.to_bytes()
    kernels = kernels_for(whole, "xla-gpu")
    assert kernels_for(whole, "xla-gpu") is kernels
    assert whole.to_bytes() == before
    others = (pickle.loads(pickle.dumps(whole)), copy.deepcopy(whole), replace(whole))
    for other in others:
        assert kernels_for(other, "xla-gpu") is not kernels
    assert kernels_for(whole, "xla-tpu") is not kernels
    assert kernels_for(whole, "xla-gpu") is not kernels  # only one profile's are kept
    changed = replace(whole, programs=workload(64).programs)
    assert kernels_for(changed, "xla-gpu").programs[0].flops.sum() < kernels.programs[0].flops.sum()


def test_questions_do_not_change_answers() -> None:
    """In any order, a workload that was asked before says what a new one does."""
    whole = workload()
    asked = [
        ("h100-dgx", "xla-gpu", "overlap"),
        ("h100-dgx", "xla-gpu", "ddp"),
        ("h100-dgx", "xla-gpu", "xla"),
        ("a100-40-dgx", "xla-gpu", "overlap"),
        ("a100-40-dgx", "xla-gpu+flash", "xla"),
        ("h100-dgx", "xla-gpu+flash", "overlap"),
        ("h100-dgx", "inductor", "overlap"),
        ("v5p", "xla-tpu", "overlap"),
        ("h100-dgx", "xla-gpu", "overlap"),
    ]
    found = set()
    for name, profile, policy in (*asked, *asked[::-1]):
        cluster = Cluster.load(name)
        again = estimate(whole, EstimateRequest(cluster, profile=profile, policy=policy))
        assert text(again) == text(
            estimate(workload(), EstimateRequest(cluster, profile=profile, policy=policy))
        )
        assert again.classes[0].memory.capacity_bytes == cluster.chip.memory_bytes.value
        found.add(text(again))
    assert len(found) == len(set(asked))


def test_the_second_estimate_rewrites_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from flint.passes.base import Pass
    from flint.passes.fusion.chains import FuseChains
    from flint.passes.fusion.kernels import FuseKernels

    whole, cluster = workload(), Cluster.load("h100-dgx")
    first = estimate(whole, EstimateRequest(cluster))

    def refuse(self: Pass, program: object) -> None:
        raise AssertionError(f"{self.name} ran again")

    for each in (FuseChains, FuseKernels):
        monkeypatch.setattr(each, "apply", refuse)
    assert text(estimate(whole, EstimateRequest(cluster))) == text(first)
    with pytest.raises(AssertionError, match="ran again"):
        estimate(workload(), EstimateRequest(cluster))
