"""Options of an estimate that change nothing are told, and those that change something are not."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from flint.ir.program import Flag
from flint.ir.workload import Workload
from flint.requests.estimate import EstimateRequest
from flint.tracing import Trace
from tests.estimates import zoo
from tests.measured_programs import one_rank
from tests.program_rows import ProgramBuilder

#: For each option values that change nothing of a step of a dense transformer on 8 GPUs of one
#: node, and one that does (None: this program has none).
OPTIONS: dict[str, tuple[list[Any], Any]] = {
    "stack": (["xla"], "serving"),
    "profile": (["xla-gpu"], "torch"),
    "policy": (["xla"], "in-order"),
    "mapping": (["model=nvlink", {"model": "nvlink"}], None),
    "unpriced_is_zero": ([True], None),
    "timing": (["model"], None),
    "scale": ([["attention=2x"], ["network:latency=1x"]], ["gemm=2x"]),
    "replace": ([["attention=h200-dgx"], ["gemm=h100-dgx"]], ["gemm=a100-80-dgx"]),
    "slow": ([["rank:7=1"], ["nvlink@rank:7=100%"]], ["rank:7=1.5"]),
    "chip_map": ([["rank:7=h100-dgx"]], ["rank:7=a100-80-dgx"]),
    "measured": ([], [one_rank()]),
    "collective_algorithm": ([], None),  # in tests/tools/interop, which makes such files
    "routing": (["balanced", "power-law:1.2"], None),
}


def idle(options: dict[str, Any], trace: Trace | None = None) -> list[str]:
    notes = (trace or zoo("llama_fsdp_tp")).estimate("h100-dgx", **options).notes
    return [n.partition(" changes nothing")[0] for n in notes if "changes nothing" in n]


def test_one_text_is_a_list_of_one() -> None:
    """In Python, where a text has letters and a table has keys: as on the command line."""
    for written in ("gemm=2x", ["gemm=2x"], {"gemm": "2x"}):
        asked = EstimateRequest.of({"cluster": "h100-dgx", "scale": written})
        assert asked.scale == ("gemm=2x",)
    assert EstimateRequest.of({"cluster": "h100-dgx", "slow": "rank:0=2"}).slow == ("rank:0=2",)


def test_every_option_is_known() -> None:
    """A new option needs values in the table above."""
    asked = set(inspect.signature(Trace.estimate).parameters) - {"self", "cluster"}
    assert asked == set(OPTIONS) == set(EstimateRequest.options()) - {"cluster"}


@pytest.mark.parametrize(
    ("name", "value"), [(n, v) for n, (values, _) in OPTIONS.items() for v in values]
)
def test_what_changes_nothing_is_told(name: str, value: Any) -> None:
    flag = EstimateRequest.options()[name].flag
    (said,) = idle({name: value})
    assert said.startswith(flag)


@pytest.mark.parametrize(
    ("name", "value"), [(n, v) for n, (_, v) in OPTIONS.items() if v is not None]
)
def test_what_changes_something_is_not(name: str, value: Any) -> None:
    assert idle({name: value}) == []


def test_each_of_several_is_left_out_by_itself() -> None:
    several = {"scale": ["gemm=2x", "attention=2x"], "policy": "xla", "routing": "power-law:1.2"}
    assert sorted(idle(several)) == [
        "--overlap xla",
        "--routing power-law:1.2",
        "--scale attention=2x",
    ]


def test_without_unpriced_operations_their_price_changes_nothing() -> None:
    b = ProgramBuilder(zoo("llama_fsdp_tp").mesh)
    b.add("custom_call.mine", dtype="bfloat16", shape=(8,), result_bytes=16, flags=Flag.UNPRICED)
    trace = Trace(Workload.single(b.build()))
    assert idle({"unpriced_is_zero": True}, trace) == []
