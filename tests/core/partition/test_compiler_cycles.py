"""The cycles that XLA's TPU compiler estimates are a column, and price kernels where that is asked for.

The module is that of test_hlo_dumps.py, compiled for v5p by jax 0.10.2.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("jaxlib", reason="XLA's parser of HLO text is in jaxlib")

from flint.backends.cost.estimate import Estimate, estimate
from flint.cli import app
from flint.cluster.named import load_cluster
from flint.errors import FlintError
from flint.frontends.files.hlo import read_hlo
from flint.ir.edit import Editor
from flint.ir.made_by import CompiledBy
from flint.ir.mesh import Mesh
from flint.ir.program import Kind, Program
from flint.ir.text.parser import parse_program
from flint.ir.text.printer import print_program
from flint.ir.workload import Workload
from flint.passes.hlo.cycles import estimated_cycles
from flint.requests.estimate import EstimateRequest

DUMP = Path(__file__).parents[2] / "golden" / "hlo" / "scanned_block_tpu.txt"
CLOCK_GHZ = 1.75
LAYERS = 3


def cycles_in_the_file() -> Counter[int]:
    """How often a step runs an instruction with so many cycles, told from the text alone."""
    found: Counter[int] = Counter()
    computation = ""
    for line in DUMP.read_text().splitlines():
        if begins := re.match(r"(?:ENTRY )?%?([\w.\-]+) .*\{$", line):
            computation = begins[1]
        for cycles in re.findall(r'"estimated_cycles":"(\d+)"', line):
            found[int(cycles)] += LAYERS if "region" in computation else 1
    return found


CYCLES = cycles_in_the_file()


@pytest.fixture(scope="module")
def program() -> Program:
    found = read_hlo(DUMP.read_bytes(), Mesh.parse("data=2,model=4"))
    assert isinstance(found, Program)
    return found


def compiled(program: Program, name: str = "xla-tpu-cycles", chip: str = "v5p") -> Workload:
    by = CompiledBy(name, chip, "libtpu 0", "2x2x2")
    return Workload.single(program, {"compiler": by.to_json()})


def priced(workload: Workload, cluster: str = "v5p", timing: str | None = "compiler") -> Estimate:
    return estimate(workload, EstimateRequest(load_cluster(cluster), timing=timing))


@pytest.mark.parametrize(
    ("config", "cycles"),
    [
        ('{"window_config":{"estimated_cycles":"123"}}', 123),
        ('{"estimated_cycles":77}', 77),
        ('{"estimated_cycles":"0","window_config":{"estimated_cycles":"5"}}', 5),
        ('{"window_config":{"estimated_cycles":"9223372036854775807"}}', 0),  # libtpu has none
        ('{"estimated_cycles":"-4"}', 0),
        ('{"estimated_cycles":"' + "9" * 5000 + '"}', 0),
        ('{"estimated_cycles":[1],"window_config":[2]}', 0),
        ('{"estimated_cycles":"1"', 0),
        ("", 0),
    ],
)
def test_only_a_number_that_can_be_one_counts(config: str, cycles: int) -> None:
    assert estimated_cycles(SimpleNamespace(backend_config=config.encode())) == cycles


def test_rows_have_the_cycles_of_their_instructions(program: Program) -> None:
    rows = np.flatnonzero(program.cycles)
    found: dict[int, int] = {}
    for row in rows.tolist():
        key = int(program.cycles[row])
        found[key] = found.get(key, 0) + int(program.trips[row])
    assert found == CYCLES
    assert set(program.kind[rows].tolist()) == {Kind.COMPUTE}


def test_the_column_is_kept_by_text_and_file_and_left_out_of_files_without_it(
    program: Program,
) -> None:
    data = Workload.single(program).to_bytes()
    for other in (
        Workload.from_bytes(data, "a.flint").programs[0],
        parse_program(print_program(program)),
    ):
        assert other.cycles.tolist() == program.cycles.tolist()
    without = replace(program, cycles=np.zeros_like(program.cycles))
    assert b"cycles" in data
    assert b"cycles" not in Workload.single(without).to_bytes()


def test_what_merges_with_others_has_no_cycles_that_are_known(program: Program) -> None:
    first, second = np.flatnonzero(program.cycles)[:2].tolist()
    into = np.arange(len(program))
    reader = next(r for r in range(second + 1, len(program)) if second in program.dependencies(r))
    edit = Editor(program)
    into[second] = reader
    edit.merge(into)
    made, place = edit.build()
    assert made.cycles[place[reader]] == 0
    assert made.cycles[place[first]] == program.cycles[first]


def test_kernels_take_their_cycles_and_others_what_flint_says(program: Program) -> None:
    own, found = priced(compiled(program), timing=None), priced(compiled(program))
    assert own.kernel_times is None and "kernel_times" not in own.to_json()
    times = [e.timeline.classes[0].work.duration_ns for e in (own, found)]
    told = program.cycles > 0
    assert times[1][told] == pytest.approx(program.cycles[told] / CLOCK_GHZ, abs=0.01)
    assert times[1][~told].tolist() == times[0][~told].tolist()

    said = found.to_json()["kernel_times"]
    assert said["clock_hz"] == CLOCK_GHZ * 1e9
    assert said["model_step_time_ns"] == pytest.approx(own.step_time_ns, abs=0.001)
    by_cycles = [kind for kind in said["kinds"] if kind["by_cycles"]]
    total = sum(cycles * count for cycles, count in CYCLES.items())
    assert sum(k["count"] for k in by_cycles) == sum(CYCLES.values())
    assert sum(k["compiler_ns"] for k in by_cycles) == pytest.approx(total / CLOCK_GHZ, abs=0.1)
    others = [kind for kind in said["kinds"] if not kind["by_cycles"]]
    assert all(kind["compiler_ns"] == kind["model_ns"] for kind in others)


def test_the_text_says_what_rests_on_what(program: Program) -> None:
    found = priced(compiled(program))
    count = sum(k.count for k in found.kernel_times.kinds) if found.kernel_times else 0
    note = found.notes[0]
    assert f"{sum(CYCLES.values())} of {count} kernels" in note and "at 1.75 GHz" in note
    assert "Flint / compiler" in found.to_text()


def test_a_kernel_without_a_price_has_one_by_its_cycles(program: Program) -> None:
    from flint.ir.program import Flag

    flags = program.flags.copy()
    flags[program.cycles > 0] |= np.uint16(Flag.UNPRICED)
    unknown = compiled(replace(program, flags=flags))
    with pytest.raises(FlintError, match="no price") as error:
        priced(unknown, timing="model")
    assert error.value.code == "FL704"
    assert priced(unknown).unpriced == {}


@pytest.mark.parametrize(
    ("name", "chip", "cluster", "said"),
    [
        ("xla-tpu-cycles", "v5p", "h100-dgx", "no cores whose cycles"),
        ("xla-tpu-cycles", "v5p", "v6e", "are for v5p, not for TPU v6e"),
        ("xla-tpu", "v5p", "v5p", "no cycles of its kernels: xla-tpu made it"),
        ("xla-tpu-cycles", "v5p", "v5p", "no cycles of its kernels: xla-tpu-cycles made it"),
    ],
)
def test_times_that_are_not_there_are_refused(
    program: Program, name: str, chip: str, cluster: str, said: str
) -> None:
    if "no cycles" in said:
        program = replace(program, cycles=np.zeros_like(program.cycles))
    with pytest.raises(FlintError, match=said) as error:
        priced(compiled(program, name, chip), cluster)
    assert error.value.code == "FL719" and error.value.help
    captured = "--compiler xla-tpu-cycles" in error.value.help
    assert captured == (not said.endswith(("xla-tpu-cycles made it", "TPU v6e")))


def test_a_timing_has_a_name(program: Program) -> None:
    with pytest.raises(FlintError, match="unknown timing 'compilers'") as error:
        priced(compiled(program), timing="compilers")
    assert error.value.code == "FL703"


def test_the_cycles_are_a_fidelity_beside_others(program: Program, tmp_path: Path) -> None:
    compiled(program).save(tmp_path / "step.flint")
    asked = ["estimate", str(tmp_path / "step.flint"), "-c", "v5p", "--compare", "compiled,cycles"]
    found = json.loads(CliRunner().invoke(app, [*asked, "--json"]).stdout)["fidelities"]
    own, cycles = (column["measures"]["step_time_ns"] for column in found)
    assert own == pytest.approx(priced(compiled(program), timing=None).step_time_ns)
    assert cycles == pytest.approx(priced(compiled(program)).step_time_ns)
    refused = CliRunner().invoke(app, [*asked, "--timing", "compiler"])
    assert refused.exit_code == 2 and "FL218" in refused.output
