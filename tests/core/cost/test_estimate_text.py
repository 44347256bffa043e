"""An estimate for people: which lines and tables there are."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flint.backends.cost.estimate import Estimate, estimate
from flint.backends.cost.estimate_text import MEMORY_ROWS
from flint.backends.cost.memory.memory import MemoryUse, PeakPlace, RuntimeKind
from flint.cli import app
from flint.cluster.models import Cluster
from flint.ir.mesh import Mesh
from flint.ir.program import Kind
from flint.ir.workload import Workload
from flint.requests.estimate import EstimateRequest
from flint.tracing import Trace
from tests.program_rows import ProgramBuilder

GIB = 2**30


def test_warnings_of_the_capture_are_told_wherever_it_is_looked_at(tmp_path: Path) -> None:
    said = "no operation of this program is sharded"
    workload = replace(_workload(Mesh.parse("data=8")), metadata={"warnings": [said]})
    trace = Trace(workload)
    found = trace.estimate("h100-dgx")
    for looked_at in (trace.summary(), found):
        assert f"warning: {said}" in str(looked_at).splitlines()
        assert said in looked_at._repr_html_()
    assert found.to_json()["warnings"] == [said]
    assert "warnings" not in Trace(replace(workload, metadata={})).estimate("h100-dgx").to_json()
    trace.save(tmp_path / "t")
    told = CliRunner().invoke(app, ["estimate", str(tmp_path / "t"), "-c", "h100-dgx"])
    assert told.stderr.splitlines()[0] == f"warning: {said}"
    assert said not in told.stdout


def _workload(mesh: Mesh) -> Workload:
    b = ProgramBuilder(mesh)
    about = {"dtype": "bfloat16", "shape": (4096, 4096), "result_bytes": 2 * 4096**2}
    x = b.add("parameter", Kind.PARAMETER, name="x", **about)
    b.add(
        "stablehlo.dot_general",
        deps=[x, x],
        operand_bytes=4 * 4096**2,
        flops=2 * 4096**3,
        dims=(1, 4096, 4096, 4096),
        scope="layers/3/mlp",
        location="model.py:41",
        **about,
    )
    return Workload.single(b.build())


@pytest.fixture(scope="module")
def estimated() -> Estimate:
    return estimate(_workload(Mesh(("data",), (1,))), EstimateRequest(Cluster.load("h100-dgx")))


def _lines(text: str, label: str) -> list[str]:
    return [
        line.removeprefix(label).strip() for line in text.splitlines() if line.startswith(label)
    ]


def test_one_device_has_no_mapping(estimated: Estimate) -> None:
    text = estimated.to_text()
    assert "axis" not in text
    on_two = replace(estimated, mapping=(("data", "2", "nvlink"),))
    assert "axis  size  network\ndata     2  nvlink" in on_two.to_text()


def test_a_class_that_does_nothing_has_no_table_of_times(estimated: Estimate) -> None:
    idle = replace(estimated, classes=(replace(estimated.classes[0], shares=()),))
    assert "exposed" in estimated.to_text()
    assert "exposed" not in idle.to_text()


def test_memory_is_shown_with_what_the_chip_has(estimated: Estimate) -> None:
    (shown,) = _lines(estimated.to_text(), "memory  ")
    assert shown == "64.0 MiB + 723 MiB of the runtime of 79.1 GiB, fits"
    full = replace(
        estimated.classes[0].memory, peak_bytes=79 * GIB
    )  # what is beside it does not fit
    tight = replace(estimated, classes=(replace(estimated.classes[0], memory=full),))
    shown, table = _lines(tight.to_text(), "memory  ")
    assert table.startswith("at the peak"), "what fills the memory is listed"
    assert shown == "79.0 GiB + 723 MiB of the runtime of 79.1 GiB, DOES NOT FIT"
    for kind in (RuntimeKind.ALLOCATOR, RuntimeKind.COMMUNICATORS):  # these are not certain
        beside = replace(full, runtime={str(kind): GIB})
        found = replace(estimated, classes=(replace(estimated.classes[0], memory=beside),))
        shown, _ = _lines(found.to_text(), "memory  ")
        assert shown == "79.0 GiB + 1.00 GiB of the runtime of 79.1 GiB, may not fit"


@pytest.mark.parametrize(
    "held, words",
    [
        (1.0, "may not fit (50 %)"),
        (math.exp(0.05), "may not fit (84 %)"),
        (math.exp(-0.05), "may not fit (16 %)"),
        (math.exp(-0.05 * 1.7), "fits"),
        (1.09, "may not fit (96 %)"),  # the program alone is 99 % of the chip's memory
        (1.11, "DOES NOT FIT"),
    ],
)
def test_what_may_not_fit_says_how_probable_that_is(held: float, words: str) -> None:
    """`held` is the memory over what the chip has, where the allocator takes as much as usual: 1.1."""
    peak = round(held / 1.1 * 80 * GIB)
    use = MemoryUse(
        peak, PeakPlace(0, "", "", ""), {}, 80 * GIB, spread=0.05,
        runtime={str(RuntimeKind.ALLOCATOR): round(0.1 * peak)},
    )  # fmt: skip
    assert use.verdict == words
    assert use.fits == (use.too_much <= 0.5)
    assert MemoryUse(0, use.at, {}, 80 * GIB, spread=0.05).verdict == "fits"
    assert replace(use, capacity_bytes=0).verdict == "fits", "nothing is known of the chip"


def test_of_many_classes_those_with_most_memory_are_shown(estimated: Estimate) -> None:
    c = estimated.classes[0]
    many = tuple(
        replace(c, name=f"pipe {i}", memory=replace(c.memory, peak_bytes=(i + 1) * GIB))
        for i in range(MEMORY_ROWS + 3)
    )
    shown = _lines(replace(estimated, classes=many).to_text(), "memory  ")
    assert len(shown) == MEMORY_ROWS + 1
    assert shown[0] == "pipe 3: 4.00 GiB + 723 MiB of the runtime of 79.1 GiB, fits"
    assert shown[-1] == "3 more: up to 3.00 GiB"


def test_the_breakdown_of_the_memory_is_verbose(estimated: Estimate) -> None:
    assert "at the peak" not in estimated.to_text()
    text = estimated.to_text(verbose=True)
    assert _lines(text, "parameters")[0].split() == ["32.0", "MiB", "50.0%"]
    assert "peak of all at stablehlo.dot_general, layers/*/mlp, model.py:41" in text


def test_a_chip_of_simulator_files_has_no_size_of_memory(tmp_path: Path) -> None:
    _workload(Mesh(("data",), (1,))).save(tmp_path / "w.flint")
    (tmp_path / "network.yml").write_text(
        "topology: [ Switch ]\nnpus_count: [ 8 ]\nbandwidth: [ 50 ]\nlatency: [ 500 ]\n"
    )
    command = ["estimate", str(tmp_path / "w.flint"), "-c", str(tmp_path / "network.yml")]
    missing = CliRunner().invoke(app, command)
    assert (missing.exit_code, "system.json is read beside" in missing.stderr) == (2, True)
    (tmp_path / "system.json").write_text(json.dumps({"peak-perf": 900, "local-mem-bw": 3350}))
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0
    assert _lines(result.stdout, "memory  ") == ["64.0 MiB"]
    assert _lines(result.stdout, "cluster ") == ["network: roofline of system.json"]
    assert "priced by a plain roofline" in result.stdout


def test_the_document_names_arguments_at_the_peak_and_the_operations_of_other_values() -> None:
    b = ProgramBuilder(Mesh.parse("1"))
    size = {"dtype": "f32", "shape": (1024, 1024), "result_bytes": 4 * 1024**2}
    x = b.add("parameter", Kind.PARAMETER, name="params['w']", **size)
    b.add("stablehlo.sort", deps=[x], name="not shown", location="m.py:3", **size)
    document = Trace(Workload.single(b.build())).estimate("h100-dgx").to_json()
    memory = document["classes"][0]["memory"]
    found = [(b["opcode"], b["name"], b["location"], b["type"]) for b in memory["buffers"]]
    whole = "f32[1024,1024]"
    assert sorted(found) == [
        ("parameter", "params['w']", "", whole), ("stablehlo.sort", "", "m.py:3", whole),
    ]  # fmt: skip
    assert memory["buffers_left_out"] == 0
