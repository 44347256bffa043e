"""How sure an estimate is: its interval, what that is made of, and where it is said."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from flint.backends.cost.uncertainty import WIDTH, interval_of, parts_of, trust_of
from flint.cluster.models import Cluster, Quantity, SourceKind
from flint.cluster.residuals import Part, Trust, residual
from tests.estimates import layers, zoo


def test_every_part_has_residuals_and_borrowed_ones_are_no_smaller() -> None:
    for part in Part:
        own, borrowed = residual(part, Trust.OWN), residual(part, Trust.BORROWED)
        assert 0 < math.hypot(own.each, own.common) <= math.hypot(borrowed.each, borrowed.common), (
            part
        )


def test_the_width_holds_80_percent_of_a_normal_distribution() -> None:
    draws = np.random.default_rng(3).standard_normal(200_000)
    assert float((np.abs(draws) < WIDTH).mean()) == pytest.approx(0.8, abs=0.003)


def test_shares_of_parts_add_up_to_the_step() -> None:
    parts = parts_of(layers())
    assert sum(p.share for p in parts) == pytest.approx(1)
    assert {p.part for p in parts} >= {Part.PRODUCTS, Part.INSIDE}
    assert all(p.kernels >= 1 - 1e-9 for p in parts)


def test_an_interval_is_made_of_its_parts() -> None:
    e = layers()
    found = interval_of(e)
    assert found.low_ns < e.step_time_ns < found.high_ns
    assert math.sqrt(found.low_ns * found.high_ns) == pytest.approx(e.step_time_ns)
    variance = sum((s.share * s.deviation) ** 2 for s in found.parts)
    assert math.log(found.high_ns / e.step_time_ns) == pytest.approx(WIDTH * math.sqrt(variance))
    assert found.parts[-1].part is Part.STEP


def test_communication_is_outside_where_it_leaves_the_innermost_tier() -> None:
    """A torus has one tier, which its table shows with the sides that an axis takes of it."""
    nodes, torus = (
        {p.part for p in parts_of(zoo("llama_fsdp_tp").estimate(c))} for c in ("h100-dgx", "v5p")
    )
    assert {Part.INSIDE, Part.OUTSIDE} <= nodes
    assert Part.INSIDE in torus and Part.OUTSIDE not in torus


def test_constants_of_another_chip_make_it_wider() -> None:
    """H100's constants on a chip that has none of its own."""
    h100 = Cluster.load("h100-dgx")
    bare = h100.chip.gpu.model_copy(update={"constants": {}, "libraries": {}, "like": "h100-dgx"})
    chip = h100.chip.model_copy(update={"gpu": bare})
    borrowed = h100.model_copy(update={"chip": chip})
    assert trust_of(Part.PRODUCTS, h100) is Trust.OWN
    assert trust_of(Part.PRODUCTS, borrowed) is Trust.BORROWED
    own, lent = (zoo("llama_fsdp_tp").estimate(c).interval for c in (h100, borrowed))
    assert own is not None and lent is not None
    assert lent.deviation > own.deviation


def test_a_measured_host_is_trusted() -> None:
    launch = {"value": 5e3, "source": "this test"}
    plain = Cluster.load("h100-dgx")
    for kind, trust in ((SourceKind.MEASURED, Trust.OWN), (SourceKind.ASSUMED, Trust.BORROWED)):
        host = plain.model_copy(update={"host_launch_ns": Quantity(kind=kind, **launch)})
        assert trust_of(Part.HOST, host) is trust


def test_text_and_json_say_it() -> None:
    e = layers()
    assert e.interval is not None
    text, found = e.to_text(), e.to_json()["interval"]
    assert "(80%: " in text.split("step time", 1)[1].splitlines()[0]
    assert found["low_ns"] == round(e.interval.low_ns, 3)
    assert found["probability"] == 0.8
    assert {p["part"] for p in found["parts"]} >= {"products", "step"}


def test_the_document_has_times_to_picoseconds_and_shares_to_millionths() -> None:
    estimate = layers()
    document = json.loads(json.dumps(estimate.to_json()))
    assert abs(document["step_time_ns"] - estimate.step_time_ns) <= 0.0005
    assert abs(document["mfu"] - estimate.mfu) <= 5e-7 and document["mfu"] > 0
    assert abs(document["hfu"] - estimate.hfu) <= 5e-7 and document["hfu"] > 0
    for told, made in zip(document["classes"], estimate.classes, strict=True):
        assert abs(told["end_ns"] - made.end_ns) <= 0.0005
        assert told["memory"]["peak_bytes"] == made.memory.peak_bytes
        exposed = sum(share["exposed_ns"] for share in told["shares"])
        assert exposed == pytest.approx(made.exposed_ns + made.compute_ns, abs=0.001)
