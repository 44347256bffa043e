"""The command line around the transcripts: options, JSON, usage errors, versions."""

import json
import os
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from flint.cli import app, console
from flint.ir.mesh import AxisRef, Group, Mesh
from flint.ir.program import Collective, Kind
from flint.ir.workload import Workload
from flint.requests.estimate import EstimateRequest
from tests.program_rows import ProgramBuilder

#: All options there are: adding one is a decision, and this list is where it is seen.
OPTIONS = {
    "calibrate": "--base --check --collect --force --framework --json --output --quiet --residuals --stack --verbose "
    "-o -q -v [DATA...]",
    "capture": "--args --chip --chunks --compiler --cross-check --cut --granularity --groups --hint --hints --json "
    "--link --mesh --microbatches --output --quiet --ranks --schedule --set --step --steps --tensor-size "
    "--trip-count --verbose --world -m -o -q -v MODEL[:NAME] [-- ARGS]",
    "anonymize": "--force --json --keep --leaks --level --output --quiet --seed --verbose -o -q -v IN",
    "check": "--groups --json --quiet --strict --verbose -q -v DIR|FILE",
    "clusters export": "--force --infragraph --json --output --quiet --verbose -o -q -v NAME",
    "clusters list": "--json --quiet --verbose -q -v",
    "clusters stacks": "--json --quiet --verbose -q -v",
    "clusters show": "--json --quiet --verbose -q -v NAME",
    "compare": "--json --quiet --rank --step --verbose -q -v MEASURED CAPTURED",
    "diff": "--exit-code --fail-over --json --markdown --mesh --quiet --rev --set --verbose -m -q -v BEFORE "
    "[AFTER]",
    "estimate": "--binary --class --compare --force --hints --json --perfetto --quiet --verbose --view --window -q -v PATH",
    "explain": "--collective --json --list --quiet --rank --scope --verbose -q -v PATH",
    "explore": "--against --args --binary --budget --chunks --compiler --cut --dask --devices --explain "
    "--export --force --hint --html --jobs --json --keep-infeasible --machine --mesh --microbatches "
    "--objective --output --quiet --schedule --scheduler --search "
    "--seed --serve --set --simulate --study --sweep --tokens --top --trip-count --verbose --where "
    "--world -j -m -n -o -q -v MODEL[:NAME] [-- ARGS]",
    "export": "--benchmark --custom-collective --force --format --json --output --quiet --rank --verbose -f -o -q -v PATH",
    "grow": "--batch --experts --ffn --force --head-size --heads --json --keep-global-batch --kv-heads --layers "
    "--list --mesh --output --quiet --sequence --set --slots --split --verbose --vocabulary --width -m -o "
    "-q -v IN",
    "import": "--force --json --output --quiet --step --verbose -o -q -v FILE...",
    "learn": "--json --output --quiet --verbose -o -q -v PATH...",
    "mcp": "--allow-run",
    "opt": "--force --json --output --passes --print-after --print-before --quiet --rank-class --verbose "
    "-o -p -q -v PATH",
    "schema": "--json --quiet --verbose -q -v NAME",
    "run": "--anew --jobs --json --quiet --update --verbose -j -q -v [NAME...]",
    "propose": "--args --cluster --compiler --devices --force --hold --json --memory --output --quiet --study "
    "--tries --verbose -c -n -o -q -v MODEL[:NAME]",
    "report": "--class --force --json --output --quiet --verbose -o -q -v PATH [OTHER]",
    "schedules": "--chunks --force --json --microbatches --quiet --ranks --svg --verbose -q -v NAME",
    "serve": "--args --decode-cluster --decode-engine --decode-mesh --decode-replicas --engine --export --force "
    "--goodput --html --json --longest --memory-share --mesh --model-config --output --perfetto --quiet --replicas --requests "
    "--router --set --trip-count --verbose -m -o -q -v MODEL[:NAME]",
    "simulate": "--binary --files --jitter --json --limit --memory --memory-limit --network --quiet --seed --straggler "
    "--system --topology --verbose --with -q -v DIR",
    "synth": "--bytes --count --flops --json --layers --like --memory --mesh --model --output "
    "--quiet --rows --seed --traces --verbose -n -o -q -v",
    "verify": "--comment --force --github --jobs --json --junit --markdown --quiet --verbose -j -q -v "
    "[NAME...]",
}
#: Commands that estimate: they take every option of an estimate beside those of their own.
ESTIMATING = ("capture", "compare", "diff", "estimate", "explore", "report", "serve", "simulate")


def _flint(*arguments):
    return CliRunner().invoke(app, arguments, prog_name="flint")


@pytest.fixture
def saved(tmp_path):
    b = ProgramBuilder(Mesh.parse("data=4,model=2"))
    w = b.add("parameter", Kind.PARAMETER, name="w", dtype="f32", shape=(8,), result_bytes=32)
    b.add(
        "sdy.all_gather",
        Kind.COLLECTIVE,
        deps=[w],
        dtype="f32",
        shape=(32,),
        collective=Collective.ALL_GATHER,
        group=Group((AxisRef("data"),)),
        comm_bytes=32,
        scope="layers/attention",
    )
    Workload.single(b.build()).save(tmp_path / "workload.flint")
    return tmp_path


def _commands(group, prefix=""):
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def test_options_of_all_commands():
    expected = dict(OPTIONS)
    found = {}
    for name, command in _commands(typer.main.get_command(app)):
        options = [o for p in command.params for o in p.opts if o.startswith("-")]
        arguments = [p.metavar for p in command.params if not p.opts[0].startswith("-")]
        found[name] = " ".join([*sorted(options), *arguments])
    estimate = {flag for o in EstimateRequest.options().values() for flag in o.flags}
    for name in ESTIMATING:
        words = OPTIONS[name].split()
        own = {w for w in words if w.startswith("-") and w != "--"} - {"[--"}
        rest = [w for w in words if w not in own]
        assert not own & estimate, name
        expected[name] = " ".join([*sorted(own | estimate), *rest])
    assert found == expected


def test_defaults_of_all_options(golden):
    """A switch that is on, or a number that is another, unless somebody says so: seen here."""
    lines = [
        f"{name} {parameter.opts[0]} = {getattr(parameter.default, 'value', parameter.default)}"
        for name, command in _commands(typer.main.get_command(app))
        for parameter in command.params
        if parameter.param_type_name == "option"
        if parameter.is_flag or parameter.default not in (None, False)
    ]
    golden("cli/defaults.txt", "\n".join([*sorted(lines), ""]))


def test_json_keeps_every_digit(capsys):
    numbers = {
        "schema": "flint.x/1",
        "a": 2**63 + 1,
        "b": 0.1 + 0.2,
        "c": 1e-12,
        "d": -0.0,
        "e": "é",
    }
    console.print_json(numbers)
    assert json.loads(capsys.readouterr().out) == numbers


def test_every_command_takes_json():
    assert all("--json" in options for name, options in OPTIONS.items() if name != "mcp")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["captur"], "No such command 'captur'"),
        (["capture"], "Missing argument"),
        (["check", "--unknown"], "No such option: --unknown"),
        (["explain", "trace", "--collective", "one"], "Invalid value for '--collective'"),
        (["clusters", "show"], "Missing argument"),
        (["clusters", "show", "h100-dgz"], "error[FL702]: no cluster is called 'h100-dgz'; did"),
        (["clusters", "sho"], "No such command 'sho'"),
        (["clusters", "export", "h100-dgx"], "error[FL218]: clusters export needs a format"),
        (["export", "trace", "-f", "svg"], "'svg' is not one of"),
        (["export", "trace", "-f", "chakra", "-o", "t", "--force"], "--force is for files"),
        (["capture", "-m", "8x4"], "Missing argument"),
        (["capture", "-m", "json.tool"], "error[FL101]: the mesh is missing"),
        (["capture", "-m", "8", "-m", "package.train", "--", "a"], "error[FL2"),
        (["capture", "m.py", "--compiler", "gcc"], "'gcc' is not one of"),
        (["capture", "m.py", "--steps", "3"], "--chip, --hint and arguments after the model"),
        (["capture", "m.py", "--", "--batch", "3"], "error[FL218]"),
        (["capture", "m.py", "--world", "--set", "a=1"], "error[FL218]"),
        (["capture", "m.py", "--world"], "error[FL101]: the mesh is missing"),
        (["capture", "m.py", "--world", "--hint", "a"], "error[FL101]"),
        (["capture", "m.py", "--world", "-m", "8", "--hint", "a"], "error[FL216]: --hint a is not"),
    ],
)
def test_usage_errors_exit_2_on_stderr(arguments, said):
    result = _flint(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


def test_no_arguments_print_help_and_exit_2():
    result = _flint()
    assert result.exit_code == 2
    assert "capture" in result.output


def test_version_is_that_of_the_distribution(monkeypatch):
    import importlib.metadata

    monkeypatch.setattr(importlib.metadata, "version", {"flint-ir": "1.2.3"}.__getitem__)
    assert _flint("--version").stdout == "flint 1.2.3\n"

    def absent(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", absent)
    result = _flint("--version")
    assert (result.exit_code, result.stdout) == (
        0,
        "flint (not installed: run from a source tree)\n",
    )


@pytest.mark.cold
def test_python_dash_m_flint():
    path = os.pathsep.join(p for p in sys.path if p)
    result = subprocess.run(
        [sys.executable, "-m", "flint", "explain", "nowhere"],
        capture_output=True,
        check=False,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert (result.returncode, result.stdout) == (2, "")
    said, help_ = result.stderr.splitlines()
    assert said == "error[FL301]: cannot read nowhere: No such file or directory"
    assert help_.startswith("  help: give a directory that flint capture wrote")


def test_explain_json(saved):
    listed = json.loads(_flint("explain", str(saved), "--json").stdout)
    assert listed["schema"] == "flint.explain/1"
    assert [c["payload_bytes"] for c in listed["collectives"]] == [32]
    one = json.loads(_flint("explain", str(saved), "--collective", "0", "--json").stdout)
    assert one["collective"]["parameters"] == ["w"]
    scope = json.loads(_flint("explain", str(saved), "--scope", "attention", "--json").stdout)
    assert scope["scope"]["ops"] == 1


def test_explain_says_when_there_is_nothing_to_explain(tmp_path):
    b = ProgramBuilder(Mesh.parse("2"))
    b.add("stablehlo.add")
    Workload.single(b.build()).save(tmp_path / "w.flint")
    assert _flint("explain", str(tmp_path / "w.flint")).stdout == "no collectives\n"


def test_directories_without_one_workload(tmp_path, saved):
    (tmp_path / "none").mkdir()
    result = _flint("explain", str(tmp_path / "none"))
    assert result.exit_code == 2
    assert "holds no .flint file" in result.stderr
    (saved / "other.flint").write_bytes(b"")
    assert "holds 2 .flint files: other.flint, workload.flint" in (
        _flint("explain", str(saved)).stderr
    )


def test_export_writes_what_it_prints(saved):
    shown = _flint("export", str(saved), "-f", "dot").stdout
    target = saved / "graph.dot"
    result = _flint("export", str(saved), "-f", "dot", "-o", str(target), "-q")
    assert (result.exit_code, result.output) == (0, "")
    assert target.read_text() == shown


def test_granularity_is_of_the_traces_and_the_workload_stays_whole(tmp_path):
    pytest.importorskip("jax", reason="captures a JAX program")
    model = tmp_path / "model.py"
    model.write_text(
        "import jax, jax.numpy as jnp\n"
        "def f(x): return jnp.tanh(x @ x) * 2 + 1\n"
        "def args(mesh): return (jax.ShapeDtypeStruct((8, 8), 'float32'),)\n"
    )
    found = {}
    for granularity in ("op", "kernel"):
        out = tmp_path / granularity
        result = _flint(
            "capture",
            f"{model}:f",
            *("--args", f"{model}:args", "-m", "4x2", "-o", str(out), "--json"),
            *("--granularity", granularity, "--profile", "xla-gpu"),
        )
        found[granularity] = json.loads(result.stdout)
        options = json.loads((out / "manifest.json").read_text())["options"]
        assert options["granularity"] == granularity
        assert Workload.load(out / "workload.flint").metadata["profile"] == "xla-gpu"
    assert found["kernel"]["summary"] == found["op"]["summary"]
    assert found["op"]["summary"]["classes"][0]["flops"] == 1024 + 3 * 64
    assert found["kernel"]["files"]["nodes"]["all"] < found["op"]["files"]["nodes"]["all"]


def test_a_summary_on_a_cluster_is_the_same_with_and_without_traces(tmp_path):
    """XLA for GPUs sends both sums in one all-reduce."""
    pytest.importorskip("jax", reason="captures a JAX program")
    model = tmp_path / "model.py"
    model.write_text(
        "import jax\nfrom jax.sharding import NamedSharding, PartitionSpec as P\n"
        "def f(x, y): return x.T @ x, y.T @ x\n"
        "def args(mesh):\n"
        "    one = jax.ShapeDtypeStruct((8, 8), 'float32', sharding=NamedSharding(mesh, P('data')))\n"
        "    return one, one\n"
    )
    found = []
    for options in ((), ("-c", "h100-dgx"), ("-c", "h100-dgx", "-o", str(tmp_path / "t"))):
        given = (f"{model}:f", "--args", f"{model}:args", "-m", "4x2", "--json", *options)
        (one,) = json.loads(_flint("capture", *given).stdout)["summary"]["classes"]
        found.append([(c["count"], c["comm_bytes"]) for c in one["collectives"]])
    assert found == [[(2, 512)], [(1, 512)], [(1, 512)]]


def test_capture_json_is_reproducible_without_timings(tmp_path):
    pytest.importorskip("jax", reason="captures a JAX program")
    model = tmp_path / "model.py"
    model.write_text(
        "import jax\n"
        "print('hello')\n"
        "def f(x): return x @ x\n"
        "def args(mesh): return (jax.ShapeDtypeStruct((8, 8), 'float32'),)\n"
    )
    documents = []
    for _ in range(2):
        result = _flint("capture", f"{model}:f", "--args", f"{model}:args", "-m", "4x2", "--json")
        printed, warned = result.stderr.splitlines()
        assert (result.exit_code, printed) == (0, "hello")
        assert warned.startswith("warning: no operation of this program is sharded")
        documents.append(json.loads(result.stdout))
        assert min(documents[-1].pop("timings").values()) >= 0
    assert documents[0] == documents[1]
    assert documents[0]["schema"] == "flint.capture/1"
    assert documents[0]["files"] is None
    (one,) = documents[0]["summary"]["classes"]
    assert (one["flops"], one["parameter_bytes"], one["ranks"]) == (1024, 256, 8)


def test_clusters_list_is_one_line_for_each(tmp_path):
    from flint.cluster.models import Cluster

    head, *lines = _flint("clusters", "list").stdout.splitlines()
    assert head.split() == ["name", "chips", "bf16", "memory", "bandwidth", "networks"]
    assert [line.split()[0] for line in lines] == Cluster.names()
    (h100,) = [line for line in lines if line.startswith("h100-dgx")]
    assert "989 TFLOP/s   85 GB  3,350 GB/s  nvlink 8, ib" in h100
    listed = json.loads(_flint("clusters", "list", "--json").stdout)
    assert listed["schema"] == "flint.clusters/1"
    assert [c["name"] for c in listed["clusters"]] == Cluster.names()


def test_clusters_show_says_where_each_number_is_from():
    from flint.cluster.models import Cluster

    result = _flint("clusters", "show", "v5p")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "v5p: TPU v5p, 3D torus"
    (shape,) = [line for line in lines if line.startswith("network.ici.torus_shape")]
    assert shape.split() == ["network.ici.torus_shape", "16x20x28"]
    (peak,) = [line for line in lines if line.startswith("chip.peak_flops_per_s.bf16")]
    assert peak.split()[1:3] == ["4.59e+14", "datasheet"]
    assert "docs.cloud.google.com/tpu/docs/v5p" in peak
    shown = json.loads(_flint("clusters", "show", "v5p", "--json").stdout)
    assert shown["schema"] == "flint.clusters/1"
    assert "other class: products " in shown["trust"] and shown["trust"] in result.stdout
    assert Cluster.model_validate(shown["cluster"]) == Cluster.load("v5p")


def test_clusters_show_reads_a_file(tmp_path):
    from flint.cluster.load import PRESETS

    path = tmp_path / "mine.toml"
    text = (PRESETS / "h100-dgx.toml").read_text("utf-8")
    path.write_text(text.replace('name = "h100-dgx"', 'name = "mine"'), "utf-8")
    assert _flint("clusters", "show", str(path)).stdout.startswith("mine: DGX H100")
    path.write_text(text.replace("latency_ns", "latencyns", 1), "utf-8")
    result = _flint("clusters", "show", str(path))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "did you mean 'latency_ns'?" in result.stderr


def test_clusters_show_reads_the_files_of_astrasim(tmp_path):
    (tmp_path / "network.yml").write_text(
        "topology: [ Switch ]\nnpus_count: [ 8 ]\nbandwidth: [ 400 ]\nlatency: [ 500 ]\n"
    )
    (tmp_path / "system.json").write_text('{"peak-perf": 900, "local-mem-bw": 3350}')
    result = _flint("clusters", "show", str(tmp_path / "network.yml"))
    assert result.stdout.startswith("network: read from network.yml\n")
    assert "network.dim0.latency_ns" in result.stdout
    (tmp_path / "system.json").unlink()
    result = _flint("clusters", "show", str(tmp_path / "network.yml"))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error[FL706]: cannot read")


LONG = "x" * 300


@pytest.mark.parametrize(
    "arguments",
    [
        ("capture", LONG, "-m", "4"),
        ("capture", f"{LONG}.py:step", "-m", "4"),
        ("capture", LONG, "--world", "-m", "4"),
        ("capture", "model.py", "-m", "4", "--args", f"{LONG}.py:arguments"),
        ("capture", "model.py", "-m", "4", "-o", LONG),
        ("capture", "model.py", "-m", "4", "-o", "out", "-c", f"{LONG}.toml"),
        ("check", LONG),
        ("check", f"{LONG}/trace"),
        ("estimate", LONG, "-c", "h100-dgx"),
        ("estimate", "OUT", "-c", f"{LONG}.toml"),
        ("estimate", "OUT", "-c", f"{LONG}/network.yml"),
        ("estimate", "OUT", "-c", "h100-dgx", "--perfetto", LONG),
        ("explain", LONG),
        ("export", LONG),
        ("export", "OUT", "-o", LONG),
        ("clusters", "show", f"{LONG}.toml"),
    ],
)
def test_a_name_that_is_too_long_is_an_error(saved, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text("")
    before = sorted(os.listdir(tmp_path))
    found = _flint(*(str(saved) if a == "OUT" else a for a in arguments))
    assert found.exit_code == 2 and "error[FL" in found.stderr
    assert sorted(os.listdir(tmp_path)) == before


def test_a_trace_between_two_renames_is_named(saved, tmp_path):
    from flint.backends.chakra import write

    write(Workload.load(next(saved.glob("*.flint"))), tmp_path / ".trace.flint-old")
    for command in (("estimate", "-c", "h100-dgx"), ("check",)):
        found = _flint(*command, str(tmp_path / "trace"))
        assert found.exit_code == 2
        assert f"mv {tmp_path}/.trace.flint-old {tmp_path}/trace" in found.stderr


def test_a_command_that_cannot_be_imported_is_listed_and_says_why(tmp_path) -> None:
    (tmp_path / "their_module.py").write_text("raise RuntimeError('no licence')\n")
    (info := tmp_path / "their-1.0.dist-info").mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[flint.commands]\nbroken = their_module:run\n")
    environment = {**os.environ, "PYTHONPATH": f"{os.getcwd()}:{tmp_path}"}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "flint", *arguments]
        return subprocess.run(command, check=False, capture_output=True, text=True, env=environment)

    listed, used = run("--help"), run("broken", "x", "--unknown")
    assert listed.returncode == 0 and "  broken " in listed.stdout and "  verify " in listed.stdout
    assert (
        used.returncode == 2
        and "FL882" in used.stderr
        and "no licence (package their)" in used.stderr
    )
