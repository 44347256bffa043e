"""How sure an estimate is: its interval, what that is made of, and where it is said."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flint.backends.cost.chips.kernels import KernelKind, Kernels
from flint.backends.cost.uncertainty import (
    WIDTH,
    are_sisters,
    deviation_of,
    interval_of,
    kernel_parts,
    library_of,
    parts_of,
    steps_of,
)
from flint.cluster.models import Chip, Cluster, Quantity, SourceKind
from flint.cluster.residuals import Fallback, Part, residual, widening
from flint.ir.product_types import grouped
from tests.estimates import layers, zoo


def test_every_part_has_residuals_of_the_steps_that_it_can_take() -> None:
    networks = (Part.INSIDE, Part.OUTSIDE, Part.MESSAGES)
    for part in Part:
        known = residual(part)
        assert known.each + known.common > 0, part
        for step in (Fallback.CLASS, Fallback.PHYSICS) if part in networks else Fallback:
            found = widening(part, step)
            assert found.each >= 0 and found.common >= 0


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


H100 = Cluster.load("h100-dgx")


def _on(chip: Chip) -> Cluster:
    return H100.model_copy(update={"chip": chip})


def _with(gpu_changes: dict[str, object], **chip_changes: object) -> Cluster:
    """H100's cluster with a changed table of its chip."""
    gpu = H100.chip.gpu.model_copy(update=gpu_changes)
    return _on(H100.chip.model_copy(update={"gpu": gpu, **chip_changes}))


def _lent(*sources: str) -> Cluster:
    """H100 with products of some constants: "" are fitted, the others are assumed for these reasons."""
    kinds = [(s, "assumed" if s else "fitted") for s in sources]
    constants = {
        f"gemm.c{i}": Quantity(value=1.0, kind=k, source=s or "rows")
        for i, (s, k) in enumerate(kinds)
    }
    return _with({"constants": constants, "uses": ()})


@pytest.mark.parametrize(
    ("sources", "steps"),
    [
        (("", ""), {}),
        (("", "a reason"), {}),  # the rows were fitted with it
        (("a reason", "another"), {Fallback.PHYSICS: 1.0}),
        (("", "as h200-dgx: rows"), {Fallback.SISTER: 0.5}),
        (("as H200-SXM-141GB, the same die: rows", ""), {Fallback.SISTER: 0.5}),
        (("as a100-80-dgx: rows",), {Fallback.CLASS: 1.0}),
        (("as PyTorch's, none is measured: rows",), {Fallback.LIBRARY: 1.0}),
        (("as PyTorch's, none is measured: as a100-80-dgx: rows",), {Fallback.LIBRARY: 1.0, Fallback.CLASS: 1.0}),
        (("as MyChip-80GB: rows",), {Fallback.CLASS: 1.0}),
    ],
)  # fmt: skip
def test_a_source_says_which_steps_a_constant_took(sources: tuple[str, ...], steps: object) -> None:
    assert steps_of(Part.PRODUCTS, _lent(*sources)) == steps


@pytest.mark.parametrize(
    ("known", "of_library", "steps"),
    [
        ("rows", "rows", {}),
        ("rows", "as FlashAttention starts, which copies nothing", {Fallback.LIBRARY: 1.0}),
        ("as l40s: rows", "as FlashAttention starts, which copies nothing",
         {Fallback.LIBRARY: 1.0, Fallback.CLASS: 0.5}),
    ],
)  # fmt: skip
def test_a_library_without_rows_is_priced_as_another_one(
    known: str, of_library: str, steps: object
) -> None:
    """A few constants of it do not hide whose the others are."""

    def constant(source: str) -> Quantity:
        return Quantity(value=1.0, kind="fitted" if source == "rows" else "assumed", source=source)

    chips = {"attention.tail": constant(known), "attention.launch_ns": constant(known)}
    cudnn = {"cudnn": {"attention.launch_ns": constant(of_library)}}
    found = _with({"constants": chips, "libraries": cudnn, "uses": ("cudnn",)})
    assert steps_of(Part.ATTENTION, found) == steps


def test_an_interval_does_not_begin_below_the_peak() -> None:
    e = layers()
    fast = replace(e, executed_flops=round(e.executed_flops * 0.99 / e.hfu))
    assert interval_of(fast).low_ns == pytest.approx(0.99 * e.step_time_ns, rel=1e-6)
    assert interval_of(fast).high_ns == interval_of(e).high_ns


def test_kernels_without_constants_of_their_own_take_a_step() -> None:
    bare = {"constants": {}, "libraries": {}}
    assert steps_of(Part.PRODUCTS, H100) == {}
    assert steps_of(Part.PRODUCTS, _with({**bare, "like": "h200-dgx"})) == {Fallback.SISTER: 1.0}
    assert steps_of(Part.PRODUCTS, _with({**bare, "like": "l40s"})) == {Fallback.CLASS: 1.0}
    assert steps_of(Part.DECODING, _on(H100.chip.model_copy(update={"gpu": None}))) == {
        Fallback.ROOFLINE: 1.0
    }
    rest = {n: q for n, q in H100.chip.gpu.constants.items() if not n.startswith("gather.")}
    assert steps_of(Part.LOOK_UPS, _with({"constants": rest, "uses": ()})) == {
        Fallback.LIBRARY: 1.0
    }


def test_constants_of_another_class_make_an_interval_wider_than_a_sisters(tmp_path: Path) -> None:
    """What chips of a user's own take from a base."""
    peak = 'kind = "datasheet", source = "its datasheet"'

    def own(base: str, flops: float) -> float:
        path = tmp_path / "own.toml"
        path.write_text(
            f'name = "own"\ntitle = "own"\nbase = "{base}"\n[chip]\nname = "own"\n'
            f"[chip.peak_flops_per_s]\nbf16 = {{ value = {flops:g}, {peak} }}\n"
        )
        found = zoo("llama_fsdp_tp").estimate(path).interval
        assert found is not None
        return found.deviation

    assert own("l40s", 360e12) < own("l40s", 165e12)


def test_chips_are_sisters_by_what_a_unit_does_and_how_many_there_are() -> None:
    def are(one: str, other: str) -> bool:
        return are_sisters(Cluster.load(one).chip, Cluster.load(other).chip)

    sisters = [
        ("h100-dgx", "h200-dgx"),
        ("b200-dgx", "gb300-nvl72"),
        ("l40s", "rtx-pro-6000"),
        ("mi300x", "mi325x"),
    ]
    others = [
        ("h100-dgx", "a100-80-dgx"),
        ("a100-80-dgx", "l40s"),
        ("a100-80-dgx", "mi300x"),
        ("v5p", "v6e"),
        ("v6e", "h100-dgx"),
    ]
    assert [are(*pair) for pair in sisters] == [True] * len(sisters)
    assert [are(*pair) for pair in others] == [False] * len(others)


def test_a_measured_host_is_trusted() -> None:
    launch = {"value": 5e3, "source": "this test"}
    for kind, steps in ((SourceKind.MEASURED, {}), (SourceKind.ASSUMED, {Fallback.PHYSICS: 1.0})):
        host = H100.model_copy(update={"host_launch_ns": Quantity(kind=kind, **launch)})
        assert steps_of(Part.HOST, host) == steps


def test_kernels_are_of_parts_by_kind_type_and_queries() -> None:
    kind = np.array([KernelKind.GEMM] * 4 + [KernelKind.ATTENTION] * 2 + [KernelKind.SORT])
    dims = np.array([[1, 8, 8, 8]] * 5 + [[8, 1, 64, 64], [0, 0, 0, 0]])
    zeros = np.zeros(7, np.int64)
    kernels = Kernels(
        kind=kind, dtype=np.array([0, 1, 2, 3, 0, 0, 0]), dims=dims, flops=zeros, read_bytes=zeros,
        written_bytes=zeros, elements=zeros, arrays=zeros, causal=zeros > 0,
        dtypes=("bf16", "f8E4M3FN", grouped("bf16", 4), grouped("f8E4M3FN", 4)),
    )  # fmt: skip
    assert [list(Part)[n] for n in kernel_parts(kernels)] == [
        *(Part.PRODUCTS, Part.NARROW, Part.GROUPED, Part.NARROW_GROUPED),
        *(Part.ATTENTION, Part.DECODING, Part.OTHERS),
    ]


def test_a_library_with_rows_of_its_own_has_its_own_width() -> None:
    """On B200, Triton's experts are further off than TensorRT-LLM's, and no part of a cluster's whole."""
    chip = Cluster.load("b200-dgx").chip
    widths = {}
    for library in ("moe-triton", "moe-trtllm"):
        gpu = chip.gpu.model_copy(update={"uses": ("cudnn", library, "sustained")})
        its = library_of(Part.GROUPED, chip.model_copy(update={"gpu": gpu}))
        assert its == library
        widths[its] = deviation_of(Part.GROUPED, {}, chip.name, its)
    assert widths["moe-triton"] > 1.5 * widths["moe-trtllm"]
    assert library_of(Part.GROUPED, chip) == library_of(Part.HOST, chip) == ""
    known = residual(Part.GROUPED, chip.name)
    assert residual(Part.GROUPED, chip.name, "a library without rows") == known


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
