"""`flint simulate` with a simulator that behaves as badly as it can."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flint.backends.chakra import write
from flint.backends.chakra.reading.reader import Decoder, records
from flint.backends.chakra.schema import NodeType
from flint.backends.cost.astrasim.run import simulate_traces
from flint.backends.cost.astrasim.step import NeverEndsError, Waiting
from flint.cli import app
from flint.errors import FlintError
from flint.ir.mesh import AxisRef, Group, Mesh, Route
from flint.ir.program import Collective, Kind
from flint.ir.workload import Workload
from flint.tools.simulators.inputs import find_inputs, lay_out
from tests.chakra_traces import coll, layered_program, trace_bytes
from tests.machine_output import valid
from tests.program_rows import ProgramBuilder
from tests.stand_in_simulator import make_binary

MESH = "data=4,model=2"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("of") / "empty traces"
    folder.parent.mkdir(exist_ok=True)
    write(Workload.single(layered_program(MESH, layers=2)), folder.parent / "traces")
    (folder.parent / "traces").rename(folder)  # ASTRA-sim ignores paths with "empty" in them
    return folder


@pytest.fixture
def simulator(tmp_path, monkeypatch):
    """Makes a binary that behaves; looks afterwards that no process of it lives."""
    pids = tmp_path / "pids"
    pids.touch()
    monkeypatch.setenv("STAND_IN_PIDS", str(pids))

    yield lambda behaviour, name="simulator": make_binary(tmp_path / name, behaviour)
    for pid in map(int, pids.read_text().split()):
        assert _ended(pid), pid


def _ended(pid, seconds=5.0):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


def _simulate(folder, binary, *options):
    arguments = ["simulate", str(folder), "--with", "astra-sim", "-q", "--binary", str(binary)]
    return CliRunner().invoke(app, [*arguments, *map(str, options)], prog_name="flint")


def _contents(folder):
    return {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.rglob("*")}


def test_a_rank_is_read_from_any_noise_and_nothing_is_written(written, simulator):
    before = _contents(written)
    found = _simulate(written, simulator("fine"), "--json")
    assert found.exit_code == 0, found.output
    document = valid(found.stdout, "flint.simulation/1")
    (run,) = document["runs"]
    assert run["end_ns"] == [1000, 1000, 1001, 1001, 1002, 1002, 1003, 1003]
    assert run["compute_ns"] == [700] * 8 and run["comm_ns"] == [500] * 8
    assert run["exposed_ns"] == [end - 700 for end in run["end_ns"]]
    assert run["finished"] and run["step_time_ns"] == 1003 and run["slowest"] == 6
    assert _contents(written) == before


def test_numbers_that_contradict_each_other_are_no_result(written, simulator):
    found = _simulate(written, simulator("contradicts"), "--json")
    document = valid(found.stdout, "flint.simulation/1")
    (run,) = document["runs"]
    assert found.exit_code == 1 and not run["finished"] and run["step_time_ns"] is None
    assert run["failure"]["code"] == "FL716" and "waited 9,999 of 500" in run["failure"]["message"]
    assert [r for r, end in enumerate(run["end_ns"]) if end is None] == [1, 2, 3]


def test_older_ones_say_less(written, simulator):
    found = _simulate(written, simulator("plain"))
    assert found.exit_code == 0
    assert "step time  57.0 ns (57 cycles of 1 ns), all ranks finished" in found.stdout
    assert "\n7          57         -             -        -\n" in found.stdout


def test_traces_that_may_not_be_written_are_copied_for_it(written, tmp_path, monkeypatch):
    """ASTRA-sim opens them for writing, and does not run without."""
    inputs = find_inputs(written)
    for writable in (True, False):
        monkeypatch.setattr("os.access", lambda *_, writable=writable: writable)
        folder = tmp_path / str(writable)
        folder.mkdir()
        options = lay_out(inputs, inputs.cases[0], folder)
        assert not any("empty" in value for value in options.values())
        for rank, path in inputs.traces.paths.items():
            laid = folder / f"{options['workload-configuration']}.{rank}.et"
            assert laid.read_bytes() == path.read_bytes()
            assert laid.samefile(path) == writable


#: Behaviour, options, code, and what the one error says.
BAD = {
    "unfinished": (
        "FL712",
        "ended with status 0 on network.yml, and 3 of 8 ranks did not finish: 3-4,6",
    ),
    "silent": (
        "FL716",
        "ended with status 0 and printed nothing that ASTRA-sim prints on network.yml, and 8 of 8",
    ),
    "chatty": ("FL716", "printed nothing that ASTRA-sim prints"),
    "spins": ("FL713", "did not finish in 1 seconds on network.yml, and "),
    "closes": ("FL713", "did not finish in 1 seconds on network.yml, and "),
    "crashes": ("FL714", "crashed (SIGABRT) on network.yml, and 7 of 8 ranks did not finish: 1-7"),
    "fails": ("FL714", "ended with status 1 on network.yml, and 8 of 8 ranks"),
    "hungry": ("FL715", "ran out of memory of 512 MiB on network.yml, and 8 of 8 ranks"),
    "killed": ("FL715", "ran out of memory of 512 MiB on network.yml, and 7 of 8 ranks"),
}
#: What was said last, where something was.
SAID = {
    "crashes": "it said: AstraSim: ring.cc:42: Assertion `index_in_ring >= 0' failed.",
    "fails": "[workload] [critical] workload file: t.3.et does not exist",
    "hungry": "std::bad_alloc",
}


@pytest.mark.parametrize("behaviour", BAD)
def test_a_run_that_goes_wrong_is_one_error(behaviour, written, simulator):
    code, sentence = BAD[behaviour]
    limit = 1 if code == "FL713" else 60
    found = _simulate(written, simulator(behaviour), "--limit", limit, "--memory-limit", 0.5)
    assert found.exit_code == 1, found.output
    errors = [line for line in found.stderr.splitlines() if line.startswith("error")]
    assert len(errors) == 1 and errors[0].startswith(f"error[{code}]: simulator ")
    assert sentence in errors[0]
    assert SAID.get(behaviour, "") in found.stderr
    assert "NOT FINISHED" in found.stdout and "step time" not in found.stdout


def test_what_does_nothing_at_all_is_given_up_before_the_limit(written, simulator, monkeypatch):
    monkeypatch.setenv("FLINT_CHILD_IDLE_SECONDS", "1")
    found = _simulate(written, simulator("hangs"), "--limit", 500)
    assert found.exit_code == 1
    told = "made no progress for 1 seconds on network.yml, and 2 of 8 ranks did not finish: 6-7"
    assert "error[FL713]: simulator " + told in found.stderr
    assert "no rank waits forever because of them" in found.stdout


def test_success_is_that_every_rank_finished_whatever_the_status(written, simulator):
    found = _simulate(written, simulator("late"))
    assert found.exit_code == 0
    assert "note: after every rank had finished, the simulator crashed (SIGSEGV)" in found.stdout
    found = _simulate(written, simulator("leaves"), "--limit", 60)
    assert found.exit_code == 0
    assert "note: it named ranks that the network does not have: 8" in found.stdout


def test_several_networks_in_one_run(written, simulator, tmp_path):
    other = tmp_path / "other.yml"
    other.write_bytes((written / "network.yml").read_bytes())
    options = ("--network", written / "network.yml", "--network", other)
    system = ("--system", written / "system.json")
    found = _simulate(written, simulator("unfinished"), *options, *system, "--json")
    assert found.exit_code == 1
    runs = valid(found.stdout, "flint.simulation/1")["runs"]
    assert [r["network"] for r in runs] == ["network.yml", "other.yml"]
    assert [r["unfinished"] for r in runs] == [[3, 4, 6]] * 2
    assert found.stderr.count("error[FL712]") == 2


def test_the_simulator_ends_with_flint(written, simulator):
    """Also where Flint is killed, and can end nothing."""
    binary = simulator("hangs")
    command = [sys.executable, "-m", "flint", "simulate", written, "--with", "astra-sim"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    flint = subprocess.Popen([*command, "--binary", binary], env=environment)
    pids = Path(os.environ["STAND_IN_PIDS"])
    until = time.monotonic() + 30
    while len(pids.read_text().split()) < 2 and time.monotonic() < until:
        time.sleep(0.05)
    first, second = map(int, pids.read_text().split())
    flint.send_signal(signal.SIGKILL)
    flint.wait()
    assert _ended(first) and _ended(second)


# --- what Flint says of it -------------------------------------------------------------------------


@pytest.fixture
def computing(tmp_path):
    """Traces of a program with computation between collectives."""
    b = ProgramBuilder(Mesh.parse(MESH))
    last = b.add("param", Kind.PARAMETER, dtype="f32", shape=(1 << 20,), result_bytes=4 << 20)
    for axis in ("model", "data", "model"):
        last = b.add(
            "stablehlo.add", deps=[last], dtype="f32", shape=(1 << 20,), result_bytes=4 << 20
        )
        last = b.add(
            "all_reduce",
            Kind.COLLECTIVE,
            deps=[last],
            collective=Collective.ALL_REDUCE,
            group=Group((AxisRef(axis),)),
            comm_bytes=4 << 20,
        )
    b.add(
        "permute",
        Kind.COLLECTIVE,
        deps=[last],
        collective=Collective.PERMUTE,
        route=Route((AxisRef("data"),), 1),
        comm_bytes=1 << 20,
    )
    write(Workload.single(b.build()), tmp_path / "traces")
    return tmp_path / "traces"


def test_the_way_from_the_estimate_adds_up(computing, simulator):
    (run,) = _runs(_simulate(computing, simulator("plain"), "-c", "h100-dgx", "--json"))
    assert run["notes"] == []
    way = run["comparison"]
    rules = simulate_traces(computing, computing / "network.yml")
    assert way["rules_step_time_ns"] == rules.step_time_ns and not way["rules_note"]
    assert way["cluster"] == "h100-dgx" and way["estimated_ns"] > 0
    terms = {t["name"]: t["ns"] for t in way["terms"]}
    assert sum(terms.values()) == pytest.approx(run["step_time_ns"] - way["estimated_ns"], abs=0.1)
    assert terms["the simulator"] == run["step_time_ns"] - rules.step_time_ns
    assert all(t["because"] for t in way["terms"])
    one = {(c["kind"], c["over"]): c for c in way["communication"]}
    spent = rules.spent[rules.slowest]
    took = sum(s.busy_ns + s.waited_ns for s in spent)
    assert sum(c["simulated_ns"] for c in one.values()) == took > 0
    counts = {key: [c["simulated_count"], c["estimated_count"]] for key, c in one.items()}
    assert counts == {
        ("all_reduce", "data"): [1, 1],
        ("all_reduce", "model"): [2, 2],
        ("message", "data"): [1, 1],
    }


def test_what_the_simulator_tells_apart_counts_where_the_rules_say_nothing(computing, simulator):
    system = computing / "system.json"
    system.write_text(system.read_text().replace('"ring"', '"direct"'))
    (run,) = _runs(_simulate(computing, simulator("fine"), "-c", "h100-dgx", "--json"))
    way = run["comparison"]
    assert way["rules_step_time_ns"] is None and "is not modeled" in way["rules_note"]
    terms = {t["name"]: t["ns"] for t in way["terms"]}
    assert list(terms) == ["computation", "exposed communication, waits"]
    assert sum(terms.values()) == pytest.approx(1003 - way["estimated_ns"], abs=0.1)
    assert any("its all-reduce-implementation is not modeled" in note for note in run["notes"])


def test_one_slot_is_what_the_rules_take_longer_with_it(tmp_path, simulator):
    """Two equal all-reduces that nothing keeps apart take twice as long one after the other.

    In traces of Flint the second waits for the first, whatever the rule: these are another's.
    """
    b = ProgramBuilder(Mesh.parse("data=4"))
    for _ in range(2):
        b.add(
            "all_reduce",
            Kind.COLLECTIVE,
            collective=Collective.ALL_REDUCE,
            group=Group((AxisRef("data"),)),
            comm_bytes=1 << 20,
        )
    write(Workload.single(b.build()), tmp_path / "traces")
    network = tmp_path / "traces" / "network.yml"
    for path in (tmp_path / "traces").glob("*.et"):
        path.write_bytes(trace_bytes([coll(n, "1", comm_size=1 << 20) for n in range(2)]))
    rules = simulate_traces(tmp_path / "traces", network)
    assert rules.step_time_ns == 2 * rules.spent[0][0].busy_ns / rules.spent[0][0].count
    found = _simulate(tmp_path / "traces", simulator("plain"), "-c", "h100-dgx", "--json")
    terms = {t["name"]: t["ns"] for t in _runs(found)[0]["comparison"]["terms"]}
    assert terms["one communication at a time"] == rules.step_time_ns / 2


def test_a_hang_says_what_ranks_wait_for(written, simulator, tmp_path):
    """Rank 3 leaves out its last collective: its group waits for it, and who needs these."""
    folder = tmp_path / "hang"
    shutil.copytree(written, folder)
    path = folder / "trace.3.et"
    data, decoder = path.read_bytes(), Decoder()
    spans = list(records(data, "trace"))
    nodes = [decoder.node(data[a:b], "trace", a) for a, b in spans[1:]]
    last = max(i for i, n in enumerate(nodes) if n.type is NodeType.COMM_COLL)
    path.write_bytes(data[: spans[last][1]])
    (run,) = _runs(_simulate(folder, simulator("unfinished"), "--json"))
    groups = json.loads((folder / "comm_group.json").read_text())
    members = groups[str(nodes[last].attributes["pg_name"][1])]
    waiting = {w["rank"]: w for w in run["waiting"]}
    assert set(waiting) == set(members) - {3}
    assert all(w["absent"] == [3] and w["node"] == nodes[last].id for w in waiting.values())
    told = _simulate(folder, simulator("unfinished"))
    assert f"rank {min(waiting)} waits in node {nodes[last].id} (" in told.stderr
    assert "for rank 3" in told.stdout and "; rank 3 has ended without joining;" in told.stderr
    sound = _simulate(written, simulator("unfinished"))
    assert "the cause is in the simulator or its settings" in sound.stdout


def test_ranks_that_wait_for_each_other_wait_in_a_circle():
    waiting = [Waiting(r, 7, "", "a message of 8 bytes with tag 1", (1 - r,)) for r in (0, 1)]
    error = NeverEndsError([0, 1], waiting)
    assert error.cause.startswith("in a circle, first: rank 0 waits in node 7, a message of 8 ")
    assert error.cause.endswith("for rank 1") and error.help == error.cause
    later = Waiting(2, 9, "sum", "all_reduce of 8 bytes between ranks 2-4", (3, 4))
    cause = NeverEndsError([0, 1, 2, 3], [*waiting, later]).cause
    assert cause == f"{later}; rank 4 has ended without joining" and "(sum)" in cause


def _runs(found):
    return valid(found.stdout, "flint.simulation/1")["runs"]


# --- what cannot be run ----------------------------------------------------------------------------


def test_binaries_that_cannot_be_run(written, tmp_path, monkeypatch):
    not_executable = tmp_path / "data"
    not_executable.write_bytes(b"\x7fELF and nothing more")
    bad = {tmp_path / "none": "there is no", tmp_path: "is a directory"}
    bad[not_executable] = "is not executable"
    for binary, sentence in bad.items():
        _one_error(_simulate(written, binary), "FL710", sentence)
    not_executable.chmod(0o755)
    _one_error(_simulate(written, not_executable), "FL710", "is not a program for this machine")
    (script := tmp_path / "script").write_text("#!/nowhere/python\n")
    script.chmod(0o755)
    _one_error(_simulate(written, script), "FL710", "names an interpreter that does not exist")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("FLINT_ASTRA_SIM", raising=False)
    found = CliRunner().invoke(app, ["simulate", str(written), "--with", "astra-sim"])
    _one_error(found, "FL710", "no ASTRA-sim is named, and there is none in PATH")


def test_the_environment_and_path_name_the_binary(written, simulator, monkeypatch, tmp_path):
    name = "AstraSim_Analytical_Congestion_Unaware"
    simulator("plain", name)
    command = ["simulate", str(written), "--with", "astra-sim", "--json"]
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert json.loads(CliRunner().invoke(app, command).stdout)["binary"] == name
    assert json.loads(_simulate(written, name, "--json").stdout)["binary"] == name
    monkeypatch.setenv("FLINT_ASTRA_SIM", str(simulator("unfinished", "other")))
    assert json.loads(CliRunner().invoke(app, command).stdout)["binary"] == "other"


def _one_error(found, code, sentence):
    assert found.exit_code == 2, found.output
    assert found.stderr.count("error[") == 1 and f"error[{code}]" in found.stderr
    assert sentence in found.stderr


def test_traces_that_a_simulator_cannot_be_given(written, simulator, tmp_path):
    binary = simulator("fine")
    bare = tmp_path / "bare"
    bare.mkdir()
    for path in written.glob("trace.*.et"):
        (bare / path.name).write_bytes(path.read_bytes())
    _one_error(
        _simulate(bare, binary), "FL711", "there is no file network.yml, which ASTRA-sim needs"
    )
    misspelled = _simulate(written, binary, "--network", "ns4")
    _one_error(misspelled, "FL711", "which ASTRA-sim needs; did you mean 'ns3'?")
    text = (written / "network.yml").read_text()
    (bare / "network.yml").write_text(text.replace("npus_count: [ 2, 4 ]", "npus_count: [ 2, 8 ]"))
    _one_error(_simulate(bare, binary), "FL711", "8 of 16 ranks have no trace, the first is 8")
    (bare / "network.yml").write_text(text)
    _one_error(_simulate(bare, binary), "FL711", "there is no file system.json")
    (bare / "system.json").write_bytes((written / "system.json").read_bytes())
    (bare / "network.yml").write_text(text.replace("npus_count: [ 2, 4 ]", "npus_count: [ 2, 2 ]"))
    _one_error(_simulate(bare, binary), "FL711", "network.yml is for 4 ranks, but 8 have a trace")
    (bare / "network.yml").write_text(text)
    _one_error(_simulate(bare, binary), "FL711", "there is no file memory.json")
    aware = simulator("fine", "AstraSim_Analytical_Congestion_Aware")
    _one_error(_simulate(written, aware), "FL711", "takes networks of one dimension")
    (bare / "trace.5.et").unlink()
    _one_error(_simulate(bare, binary), "FL711", "1 of 8 ranks have no trace, the first is 5")
    _one_error(_simulate(tmp_path / "nowhere", binary), "FL601", "there are no Chakra traces")


def test_more_traces_than_files_that_may_be_open(written, simulator, monkeypatch):
    for most, is_enough in ((8 + 63, False), (8 + 64, True), (resource.RLIM_INFINITY, True)):
        monkeypatch.setattr("resource.getrlimit", lambda _, most=most: (7, most))
        if is_enough:
            assert find_inputs(written).ranks == 8
            continue
        with pytest.raises(
            FlintError, match="opens 8 traces at once, but only 71 open files are"
        ) as e:
            find_inputs(written)
        assert e.value.code == "FL711" and e.value.help == "allow more: ulimit -Hn 72"


def test_large_traces_are_not_run_a_second_time(computing, simulator, monkeypatch):
    monkeypatch.setattr("flint.tools.simulators.explained.MOST_BYTES", 100)
    (run,) = _runs(_simulate(computing, simulator("fine"), "--json"))
    assert run["comparison"] is None and run["finished"]
    assert "of traces were not also run by Flint's rules of ASTRA-sim" in run["notes"][0]


@pytest.mark.parametrize("option", ["--limit", "--memory-limit"])
def test_limits_are_above_nothing(option, written, simulator):
    _one_error(_simulate(written, simulator("fine"), option, 0), "FL504", "is not a limit")
