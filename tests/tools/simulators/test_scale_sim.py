"""`flint simulate --with scalesim`, with a stand-in that has SCALE-Sim's recorded cycles."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from flint.cli import app
from flint.ir.mesh import Mesh
from flint.ir.workload import Workload
from flint.tools.simulators.scale_sim import Array, products_of
from tests.machine_output import valid
from tests.program_rows import ProgramBuilder

CYCLES = Path(__file__).parents[3] / "benchmarks" / "data" / "scalesim" / "cycles.csv"
#: A package that says what the one of that name says. `{ending}` is what it does after two products.
PACKAGE = """
import csv, json, os, sys, time

class scalesim:
    def __init__(self, config, topology, layout, **_):
        text = open(config).read()
        assert "ArrayHeight = 128\\nArrayWidth = 128\\n" in text and "Dataflow = ws" in text
        self.rows = list(csv.reader(open(topology)))[1:]
        assert open(layout).read()

    def run_scale(self, folder):
        os.mkdir(folder)
        cycles = json.load(open({cycles!r}))
        for i, (_, m, n, k, _) in enumerate(self.rows):
            if i == 2:
                {ending}
            print(f"Running Layer {{i}}\\n  0%|   | 0/2\\r\\nTotal cycles: 7")
            print(f"Compute cycles: {{cycles[f'{{m}},{{n}},{{k}}']}}\\nStall cycles: 0")
"""


def recorded() -> dict[tuple[int, int, int], int]:
    """Products of SCALE-Sim 3.0.0 on the array of v5p, and their cycles, the cheapest first."""
    with CYCLES.open(encoding="utf-8") as file:
        rows = [r for r in csv.DictReader(file) if r["bw"] == "CALC" and r["dataflow"] == "ws"]
    on = [r for r in rows if r["rows"] == r["cols"] == "128"]
    found = {tuple(int(r[c]) for c in "MNK"): int(r["total_cycles"]) for r in on}
    return dict(sorted(found.items(), key=lambda item: item[1])[:12])  # type: ignore[arg-type]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """Each of the products in a step of four ranks; one of them is a batch of three."""
    b = ProgramBuilder(Mesh.parse("data=4"))
    for number, (m, n, k) in enumerate(recorded()):
        batch = 3 if number == 0 else 1
        dims, flops = (batch, m, n, k), 2 * batch * m * n * k
        b.add("stablehlo.dot_general", dtype="bf16", dims=dims, flops=flops, result_bytes=2 * m * n)
    Workload.single(b.build()).save(tmp_path / "workload.flint")
    return tmp_path / "workload.flint"


@pytest.fixture
def python(tmp_path: Path) -> Callable[..., Path]:
    """Makes an interpreter whose SCALE-Sim ends in some way."""

    def make(ending: str = "pass", wrong: int = 0, *, installed: bool = True) -> Path:
        cycles = {",".join(map(str, p)): c + wrong for p, c in recorded().items()}
        (tmp_path / "cycles.json").write_text(json.dumps(cycles))
        folder = tmp_path / ("with" if installed else "without") / "scalesim"
        folder.mkdir(parents=True)
        (folder / "__init__.py").touch()
        text = PACKAGE.format(cycles=str(tmp_path / "cycles.json"), ending=ending)
        (folder / "scale_sim.py").write_text(text if installed else "import a_package_it_needs")
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\nPYTHONPATH='{folder.parent}' exec '{sys.executable}' \"$@\"\n")
        path.chmod(0o755)
        return path

    return make


def simulate(program: Path, *options: object) -> Result:
    on = () if "-c" in options else ("-c", "v5p")
    arguments = ["simulate", program, "--with", "scalesim", *on, "-q", *options]
    return CliRunner().invoke(app, list(map(str, arguments)), prog_name="flint")


def test_cycles_are_those_that_scale_sim_says(program: Path, python: Callable[..., Path]) -> None:
    found = simulate(program, "--binary", python(), "--limit", 10_000, "--json")
    assert found.exit_code == 0, found.output
    document = valid(found.stdout, "flint.scalesim/1")
    assert document["notes"] == [] and document["failure"] is None
    said = {(p["m"], p["n"], p["k"]): p for p in document["products"]}
    assert set(said) == set(recorded())
    for shape, cycles in recorded().items():
        assert said[shape]["cycles"] == said[shape]["simulated_cycles"] == cycles
    counts = [said[shape]["count"] for shape in recorded()]
    assert counts == [12, *[4] * 11]
    total = sum(c * n for c, n in zip(recorded().values(), counts, strict=True))
    assert document["total_cycles"] == document["compared_cycles"] == total
    assert document["difference_cycles"] == 0


def test_convolutions_count_as_products_and_attention_does_not() -> None:
    b = ProgramBuilder(Mesh.parse("data=2"))
    b.add("stablehlo.convolution", dtype="bf16", dims=(1, 8, 16, 4), flops=1024, result_bytes=256)
    b.add("custom_call.attention", dtype="bf16", dims=(2, 8, 8, 4), flops=1024, result_bytes=256)
    b.add("stablehlo.add", dtype="bf16", shape=(8,), flops=8, result_bytes=16)
    found = products_of(Workload.single(b.build()), Array(128, 128, "ws", 1))
    assert [(p.m, p.n, p.k, p.count) for p in found] == [(8, 16, 4, 2)]
    assert found[0].cycles == 2 * 128 + 128 + 8 - 2 - 1


#: What a stand-in does, code, sentence, and how many products are compared.
BAD: dict[str, tuple[dict[str, Any], str, str, int]] = {
    "crashes": (
        {"ending": "raise TypeError('only 0-dimensional arrays')"},
        "FL714",
        "SCALE-Sim crashed (status 1) after 2 of 12 products",
        2,
    ),
    "hungry": (
        {"ending": "raise MemoryError('Unable to allocate 8 GiB')"},
        "FL715",
        "SCALE-Sim ran out of memory after 2 of 12 products",
        2,
    ),
    "stops": ({"ending": "sys.exit(0)"}, "FL712", "ended after cycles for 2 of 12 products", 2),
    "differs": ({"wrong": 1}, "FL717", "differ for 12 products, such as", 12),
}


@pytest.mark.parametrize("name", BAD)
def test_what_goes_wrong_is_one_error(
    name: str, program: Path, python: Callable[..., Path]
) -> None:
    behaviour, code, sentence, compared = BAD[name]
    found = simulate(program, "--binary", python(**behaviour), "--limit", 10_000, "--json")
    assert found.exit_code == 1, found.output
    document: Any = valid(found.stdout, "flint.scalesim/1")
    assert sum(p["simulated_cycles"] is not None for p in document["products"]) == compared
    assert found.stderr.count("error[") == 1 and f"error[{code}]" in found.stderr
    assert sentence in found.stderr


def test_products_that_the_limit_does_not_hold_are_not_run(
    program: Path, python: Callable[..., Path]
) -> None:
    found = simulate(program, "--binary", python(), "--limit", 6)
    assert found.exit_code == 0
    assert " were not simulated: SCALE-Sim would take about " in found.stdout
    rows = [line.split() for line in found.stdout.splitlines() if line.endswith(("+0", "-"))]
    assert {row[-1] for row in rows} == {"+0", "-"}


def test_the_end_of_its_time_is_no_error(
    program: Path, python: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    binary = python(ending="time.sleep(600)")
    monkeypatch.setenv("FLINT_CHILD_IDLE_SECONDS", "1")
    found = simulate(program, "--binary", binary, "--limit", 10_000)
    assert found.exit_code == 0
    told = "SCALE-Sim made no progress for 1 seconds: 10 products were not simulated"
    assert told in found.stdout


def test_without_scale_sim_the_cycles_are_flints(
    program: Path, python: Callable[..., Path]
) -> None:
    found = simulate(program, "--json")
    if "not installed" in found.stdout:  # else it is in the environment of the tests
        assert found.exit_code == 0 and '"simulated_cycles": null' in found.stdout
    found = simulate(program, "--binary", python(installed=False))
    assert found.exit_code == 2 and "has no SCALE-Sim" in found.stderr
    for options, sentence in (
        (("--binary", "no-such-python"), "error[FL710]: there is no interpreter no-such-python"),
        (
            ("--network", "n.yml"),
            "error[FL218]: --network does not apply to this run with scalesim",
        ),
        (("-c", "h100-dgx"), "error[FL705]"),
    ):
        found = simulate(program, *options)
        assert found.exit_code == 2 and sentence in found.stderr
