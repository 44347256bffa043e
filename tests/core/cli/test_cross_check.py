"""What `--cross-check` says of two workloads, and where it has nothing to say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from flint.backends.summary.cross_check import CrossCheck, Quantity, cross_check
from flint.cross_checking import MOST_OPERATIONS, CaptureBy, cross_checked
from flint.errors import FlintError
from flint.io.documents import as_object
from flint.ir.made_by import CompiledBy, CompilerMemory
from flint.ir.workload import Workload
from flint.tracing import Trace
from tests.program_text import Rows
from tests.project_folders import flint

MEMORY = CompilerMemory(64, 0, 0, 1000, 0)


def workload(*sizes: int, compiled: bool = False, ops: int = 1) -> Workload:
    """A step with an all-reduce of each of these sizes, on a line of its own."""
    rows = Rows()
    value = rows.parameter()
    for _ in range(ops):
        value = rows.op("sort", value)
    for line, size in enumerate(sizes):
        value = rows.all_reduce(value, comm_bytes=size, location=f"model.py:{line}")
    rows.result(value)
    found = Workload.single(rows.build())
    by = CompiledBy("xla-gpu", "h100", "jax-cuda12-plugin 9", "8 GPUs", MEMORY)
    return replace(found, metadata={"compiler": by.to_json()}) if compiled else found


def checked(mine: Workload, other: Workload) -> CrossCheck:
    return cross_check(mine, other, None)


def test_it_names_the_collective_and_the_line_that_differ() -> None:
    found = checked(workload(1000, 3000), workload(1000, 5000, 10, compiled=True))
    wire, collective, products, memory = found.rows
    assert collective.quantity is Quantity.COLLECTIVE and collective.collective == "all_reduce"
    assert (collective.captured_count, collective.compiled_count) == (2, 3)
    assert collective.source == "model.py:1", "the line of 3,000 bytes, not that of 10"
    assert (wire.captured, wire.compiled) == (collective.captured, collective.compiled)
    assert products.difference == 0 and memory.compiled == MEMORY.peak_bytes
    text = found.to_text()
    assert len(text.splitlines()) <= 10
    assert "compiled: its partitioner is the one that runs" in text and "-33.4 %" in text
    assert as_object(found)["rows"][1]["quantity"] == "collective_wire_bytes"


@pytest.mark.parametrize(("size", "warned"), [(1000, False), (910, False), (890, True), (0, True)])
def test_more_than_a_tenth_is_a_warning(size: int, warned: bool) -> None:
    sizes = (size,) if size else ()
    found = checked(workload(*sizes), workload(1000, compiled=True))
    assert bool(found.warning) == warned
    assert not warned or "most of it at model.py:0" in found.warning
    assert ("either" in found.to_text().splitlines()[1]) == (size == 1000)


def test_memory_that_no_compiler_assigned_is_not_compared() -> None:
    by = CompiledBy("xla-gpu", "h100", "jax-cuda12-plugin 9", "4 GPUs")
    other = replace(workload(1000), metadata={"compiler": by.to_json()})
    assert Quantity.MEMORY not in {row.quantity for row in checked(workload(1000), other).rows}


def capture_by(mine: Workload, other: Workload | FlintError) -> CaptureBy[Trace]:
    def by(compiler: str) -> Trace:
        if not compiler:
            return Trace(mine)
        if isinstance(other, FlintError):
            raise other
        return Trace(other)

    return by


def test_a_difference_is_a_warning_of_the_trace() -> None:
    by = capture_by(workload(500), workload(1000, compiled=True))
    for asked in ("xla-gpu", "auto"):
        found = Trace.beside(*cross_checked(by, asked))
        assert found.cross_check is not None and found.cross_check.compiled_by is not None
        assert found.warnings == (found.cross_check.warning,) and found.warnings[0]


@pytest.mark.parametrize(
    ("mine", "chip", "reason"),
    [
        (workload(), "", "the plugin is missing"),
        (workload(), "trn2", "no compiler is known for 'trn2'"),
        (workload(ops=MOST_OPERATIONS + 1), "", "operations on 32 devices; auto compiles up to"),
    ],
    ids=["without a plugin", "another chip", "a large program"],
)
def test_auto_says_why_nothing_was_compared(mine: Workload, chip: str, reason: str) -> None:
    missing = FlintError("FL411", "the plugin is missing")
    _, found = cross_checked(capture_by(mine, missing), "auto", chip)
    assert found.compiled_by is None and not found.warning
    assert found.to_text().startswith("cross-check  not done: ") and reason in found.to_text()


def test_what_no_compiler_takes_is_one_error() -> None:
    recorded = FlintError("FL218", "a recorded program has PyTorch operators")
    with pytest.raises(FlintError, match="nothing to cross-check: a recorded program") as error:
        cross_checked(capture_by(workload(), recorded), "xla-gpu")
    assert error.value.code == "FL252" and error.value.help == "omit --cross-check"
    with pytest.raises(FlintError, match="makes the program itself") as error:
        cross_checked(capture_by(workload(compiled=True), recorded), "auto")
    assert error.value.code == "FL252"
    missing = FlintError("FL411", "the plugin is missing")
    with pytest.raises(FlintError, match="the plugin is missing") as error:
        cross_checked(capture_by(workload(), missing), "xla-gpu")
    assert error.value.code == "FL411"


def test_a_recorded_script_is_refused_before_it_runs(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\nraise SystemExit('it ran')\n")
    arguments = ("--mesh", "2", "--world", "--cross-check", "xla-gpu")
    done = flint("capture", str(script), *arguments)
    assert done.exit_code == 2 and "error[FL252]" in done.output and "it ran" not in done.output
