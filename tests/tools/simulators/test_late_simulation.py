"""Ranks that are late: in `flint simulate`, and in what `flint check` says of traces without an order."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from flint.backends.chakra import check, write
from flint.backends.chakra.checking.listed_files import changed_files
from flint.backends.chakra.reading.trace_files import find_traces
from flint.backends.chakra.writing import writer
from flint.backends.chakra.writing.simulator_files import Timing, placeholder_hardware
from flint.backends.cost.astrasim.disturbance import Disturbance, read_disturbance
from flint.backends.cost.astrasim.run import simulate_traces
from flint.cli import app
from flint.errors import FlintError
from flint.ir.workload import Workload
from flint.tools.simulators.inputs import find_inputs
from flint.tools.simulators.rules import disturbed_inputs
from tests.late_ranks import hangs, tangled
from tests.machine_output import valid
from tests.stand_in_simulator import make_binary

#: A tangle whose ranks end on time, and not with LATE, unless their traces say an order.
SEED, LATE = 4, "1:1.5"


@pytest.fixture(scope="module", params=["roofline", "durations"])
def timed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Traces whose times a roofline finds, and traces that say them."""
    folder = tmp_path_factory.mktemp("late") / "traces"
    workload = Workload.single(tangled(SEED))
    program = workload.programs[0]
    hardware = replace(placeholder_hardware(workload.mesh), has_durations=True)
    timing = Timing("", (np.where(program.flops > 0, 370_000.0, 0.0),), hardware)
    write(workload, folder, timing=timing if request.param == "durations" else None)
    return folder


@pytest.fixture(scope="module")
def unordered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Traces as others write them: nothing says which of two ready collectives is first."""
    folder = tmp_path_factory.mktemp("open") / "traces"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "in_one_order", lambda programs, lowered, *_: list(lowered))
        write(Workload.single(tangled(SEED)), folder)
    return folder


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--straggler", "99:1.1"], "have ranks 0 to"),
        (["--straggler", "1:nan"], "--straggler has no value '1:nan'"),
        (["--straggler", "1:inf"], "--straggler has no value"),
        (["--straggler", "1:0"], "--straggler has no value"),
        (["--straggler", "1:-2"], "--straggler has no value"),
        (["--straggler", "-1:2"], "--straggler has no value"),
        (["--straggler", "1"], "give RANK:FACTOR"),
        (["--straggler", "1:1e300"], "--straggler has no value"),
        (["--straggler", "1:2", "--straggler", "1:3"], "rank 1 already has a factor"),
        (["--jitter", "100%"], "from 0 to below 100"),
        (["--jitter", "-5"], "--jitter has no value"),
        (["--jitter", "nan%"], "--jitter has no value"),
        (["--jitter", "5", "--seed", "-1"], "--seed has no value"),
    ],
)
def test_what_is_no_disturbance_is_refused(options: list[str], words: str, unordered: Path) -> None:
    found = CliRunner().invoke(app, ["simulate", str(unordered), *options])
    assert found.exit_code == 2 and "FL727" in found.output and words in found.output


def test_options_that_a_run_does_not_take_are_refused(unordered: Path) -> None:
    late = ["simulate", str(unordered), "--straggler", "1:2"]
    for more in (["-c", "h100-dgx"], ["--with", "scalesim", "-c", "v5p"], ["--limit", "3"]):
        found = CliRunner().invoke(app, [*late, *more])
        assert found.exit_code == 2 and "FL218" in found.output, found.output


def test_factors_are_of_seed_and_rank() -> None:
    late = read_disturbance(["3:1.5"], "20%", 7)
    assert late == Disturbance(((3, 1.5),), 0.2, 7)
    assert late.factors(3, 4) == read_disturbance(["3:1.5"], "20", 7).factors(3, 4)
    assert late.factors(3, 4) != late.factors(2, 4) != replace(late, seed=8).factors(2, 4)
    assert all(0.8 <= f <= 1.2 for f in late.factors(2, 1000))
    assert all(1.2 <= f <= 1.8 for f in late.factors(3, 1000))


def test_late_ranks_take_longer_and_the_same_each_time(timed: Path) -> None:
    command = ["simulate", str(timed), "--straggler", "2:1.5", "--jitter", "3%", "--json"]
    texts = [CliRunner().invoke(app, command).stdout for _ in range(2)]
    assert texts[0] == texts[1]
    document = valid(texts[0], "flint.simulation/1")
    (run, *_) = document["runs"]
    assert document["disturbance"] == "rank 2 x1.5, jitter 3% of seed 0"
    calm = simulate_traces(timed, timed / "network.yml")
    assert run["undisturbed_ns"] == calm.step_time_ns < run["step_time_ns"]
    assert run["compute_ns"][2] == pytest.approx(1.5 * calm.compute_ns[2], rel=0.05)


def test_copies_for_other_simulators_say_the_same_times(timed: Path) -> None:
    late = Disturbance(((1, 1.3),), 0.1, 5)
    for each in (late, replace(late, jitter=0.0)):
        rules = simulate_traces(timed, timed / "network.yml", disturbance=each)
        inputs = find_inputs(timed, [timed / "network.yml"])
        with disturbed_inputs(inputs, each) as changed:
            folder = changed.traces.folder
            for name in ("comm_group.json", "manifest.json"):
                shutil.copyfile(timed / name, folder / name)
            copied = simulate_traces(folder, timed / "network.yml")
        assert copied.end_ns == rules.end_ns
        assert copied.end_ns != simulate_traces(timed, timed / "network.yml").end_ns


def test_another_simulator_is_given_late_ranks(timed: Path, tmp_path: Path) -> None:
    binary = make_binary(tmp_path / "simulator", "fine")
    command = ["simulate", str(timed), "--binary", str(binary), "--straggler", "1:2"]
    found = CliRunner().invoke(app, command)
    assert found.exit_code == 0, found.output
    assert "disturbed  rank 1 x2" in found.stdout and "undisturbed" in found.stdout


def test_ranks_that_wait_for_ever_are_a_failure(unordered: Path) -> None:
    calm = CliRunner().invoke(app, ["simulate", str(unordered)])
    assert calm.exit_code == 0 and "all ranks finished" in calm.stdout, calm.output
    found = CliRunner().invoke(app, ["simulate", str(unordered), "--straggler", LATE])
    assert found.exit_code == 1, found.output
    assert "NOT FINISHED" in found.stdout and "error[FL707]" in found.output


def test_traces_without_an_order_are_ok_at_their_times_only(unordered: Path) -> None:
    assert hangs(unordered, read_disturbance([LATE], None, 0))
    text = CliRunner().invoke(app, ["check", str(unordered)])
    assert text.exit_code == 0 and "ok at these times only: " in text.stdout
    assert "durations decide which of nodes" in text.stdout
    strict = CliRunner().invoke(app, ["check", str(unordered), "--strict", "--json"])
    document = valid(strict.stdout, "flint.check/1")
    assert strict.exit_code == 1
    assert (document["ok"], document["proved"]) == (True, "these-times")
    assert json.dumps(document["doubt"]) in strict.stdout


def test_traces_with_an_order_are_ok_at_any_times(timed: Path) -> None:
    for options in ([], ["--strict"]):
        found = CliRunner().invoke(app, ["check", str(timed), *options])
        assert found.exit_code == 0 and found.stdout.startswith("ok: "), found.output
    assert check(timed).doubt == ""


def test_times_are_made_up_where_no_file_says_them(unordered: Path, tmp_path: Path) -> None:
    """And not modelled settings leave it open."""
    folder = tmp_path / "traces"
    shutil.copytree(unordered, folder)
    for name in ("manifest.json", "network.yml", "system.json"):
        (folder / name).unlink()
    report = check(folder)
    assert report.ok and "made-up times" in report.doubt
    shutil.copytree(unordered, tmp_path / "direct")
    (tmp_path / "direct" / "manifest.json").unlink()
    system = tmp_path / "direct" / "system.json"
    system.write_text(system.read_text().replace('"ring"', '"direct"'))
    report = check(tmp_path / "direct")
    assert (report.ok, str(report.proved)) == (True, "nothing")
    assert "is not modeled" in report.doubt


def test_a_straggler_may_be_the_last_rank_and_no_other() -> None:
    late = read_disturbance(["7:2"], None, 0)
    late.require_ranks(8)
    with pytest.raises(FlintError, match="names rank 7, but the traces have ranks 0 to 6"):
        late.require_ranks(7)


@pytest.mark.parametrize("runner", ["rules", "astra-sim", "late", "estimate"])
def test_files_that_were_changed_are_run_and_told(runner: str, timed: Path, tmp_path: Path) -> None:
    """As `flint check` tells it: an edited trace, settings; not files that nobody wrote."""
    folder = tmp_path / "traces"
    shutil.copytree(timed, folder)
    command = {
        "rules": ["simulate", str(folder), "--network", str(folder / "network.yml")],
        "astra-sim": ["simulate", str(folder), "--binary"],
        "late": ["simulate", str(folder), "--straggler", "1:0.5"],
        "estimate": ["estimate", str(folder), "-c", str(folder / "network.yml"), "--overlap", "astra-sim"],
    }[runner]  # fmt: skip
    if runner == "astra-sim":
        command.append(str(make_binary(tmp_path / "simulator", "fine")))
    (folder / "mine.txt").write_text("a note")
    found = CliRunner().invoke(app, [*command, "--json"])
    assert json.loads(found.stdout)["warnings"] == [] and "warning" not in found.stderr
    system = folder / "system.json"
    system.write_text(system.read_text() + "\n")
    (told,) = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)["warnings"]
    assert told.startswith("1 file is not as Flint wrote them, by the manifest: system.json")
    for rank in (0, 1):
        trace = next(folder.glob(f"*.{rank}.et"))
        content = trace.read_bytes()
        trace.unlink()  # equal traces are one file
        trace.write_bytes(content + b"\x00")
    (told,) = changed_files(find_traces(folder))
    assert told.startswith("3 files are not as Flint wrote them") and trace.name in told


def test_options_that_change_nothing_are_told(timed: Path) -> None:
    for options, told in (
        (["--seed", "3"], ["--seed changes nothing without --jitter"]),
        (["--seed", "0", "--straggler", "1:2"], ["--seed changes nothing without --jitter"]),
        (["--seed", "3", "--jitter", "5"], []),
    ):
        found = CliRunner().invoke(app, ["simulate", str(timed), *options, "--json"])
        assert valid(found.stdout, "flint.simulation/1")["warnings"] == told
        assert [line for line in found.stderr.splitlines() if "warning" in line] == [
            f"warning: {t}" for t in told
        ]
