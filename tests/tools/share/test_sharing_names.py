"""The level `names`: no name is left, and every number of an estimate is as it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from typer.testing import CliRunner

import flint
from flint.backends.chakra.reading.reader import read
from flint.backends.cost.estimate import estimate
from flint.cli import app
from flint.cluster.named import load_cluster
from flint.ir.program import Kind
from flint.ir.rank_class import RankClass
from flint.ir.workload import Workload
from flint.requests.estimate import EstimateRequest
from flint.tools.share.leaks.strings import surviving_strings
from flint.tools.share.redact import neutral_scopes, redacted
from tests.long import long_but
from tests.random_programs import programs

EXAMPLES = Path(__file__).parents[3] / "examples"
KINETO = Path(__file__).parents[2] / "data"
#: What each capture is made of: rank classes with messages; experts in a loop.
CAPTURES = {
    "pipeline": ("gpt3_jax.py", "-m", "pipe=2,data=1,model=1", "--set", "num_layers=2"),
    "experts": ("mixtral_jax.py", "-m", "2x2", "--set", "num_layers=2", "--set", "seq=128"),
}
SECRET = "acmecorp"


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a directory of traces for each of CAPTURES."""
    pytest.importorskip("jax", reason="captures JAX programs")
    folder = tmp_path_factory.mktemp("captured")
    for name, (model, *options) in CAPTURES.items():
        told = ["capture", str(EXAMPLES / model), *options, "-c", "h100-dgx", "--no-hints"]
        assert CliRunner().invoke(app, [*told, "-o", str(folder / name)]).exit_code == 0
    return folder


def _planted(workload: Workload) -> Workload:
    """The workload with a company's name wherever a name may stand."""
    names = {n: f"{SECRET}_{n}" for n in workload.mesh.names}
    mesh = flint.Mesh(tuple(names.values()), workload.mesh.sizes)

    def axes(refs):
        return tuple(replace(a, name=names[a.name]) for a in refs)

    made = []
    for p in workload.programs:
        tables = {
            "opcodes": (*p.opcodes[:-1], f"custom_call.{SECRET}"),
            "strings": ("", *(f"{SECRET}/{s}" for s in p.strings[1:])),
            "streams": (p.streams[0], *(f"{SECRET} {s}" for s in p.streams[1:])),
            "groups": tuple(replace(g, axes=axes(g.axes)) for g in p.groups),
            "routes": tuple(replace(r, axes=axes(r.axes)) for r in p.routes),
            "regions": tuple(replace(r, name=SECRET, location=f"{SECRET}.py:1") for r in p.regions),
        }
        made.append(replace(p, mesh=mesh, **tables))
    classes = [
        RankClass(
            f"{SECRET}{c.name}", c.program, {names[a]: w for a, w in c.where.items()}, c.ranks
        )
        for c in workload.classes
    ]
    metadata = {
        **workload.metadata,
        "name": SECRET,
        SECRET: 1,
        "options": {"path": f"/{SECRET}/m.py"},
    }
    return Workload(mesh, tuple(made), tuple(classes), {**metadata, "pipeline": None})


@pytest.mark.parametrize("name", long_but(["pipeline"], CAPTURES))
def test_estimates_are_equal_to_the_last_bit(captured: Path, name: str) -> None:
    """Of every overlap policy that differs in what it reads, on GPUs and TPUs."""
    workload = Workload.load(captured / name / "workload.flint")
    shared = redacted(workload)
    for cluster in ("h100-dgx", "v5p"):
        for policy in (None, "in-order", "fsdp"):
            pair = [
                estimate(
                    w, EstimateRequest(load_cluster(cluster), policy=policy, unpriced_is_zero=True)
                )
                for w in (workload, shared)
            ]
            first, second = (
                (
                    e.step_time_ns,
                    [(c.end_ns, c.memory.breakdown, c.memory.peak_bytes) for c in e.classes],
                )
                for e in pair
            )
            assert first == second


@pytest.mark.parametrize("name", CAPTURES)
def test_a_planted_identity_is_in_no_byte_of_what_is_written(
    captured: Path, name: str, tmp_path: Path
) -> None:
    planted = _planted(Workload.load(captured / name / "workload.flint"))
    assert surviving_strings(planted)
    found = flint.anonymize(planted)
    assert not found.leaks.survivors
    found.save(tmp_path / "shared")
    written = sorted((tmp_path / "shared").iterdir())
    assert len(written) > planted.mesh.size
    for path in written:
        assert SECRET.encode() not in path.read_bytes() and SECRET not in path.name
        if path.suffix == ".flint":
            assert SECRET not in repr(Workload.load(path).programs[0].strings)


@pytest.mark.parametrize("name", CAPTURES)
def test_traces_have_the_same_nodes(captured: Path, name: str, tmp_path: Path) -> None:
    """By the command: durations, dependencies, sizes and groups of each node, and files that check accepts."""
    out = tmp_path / "shared"
    done = CliRunner().invoke(app, ["anonymize", str(captured / name), "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert "only names and sources are removed" in done.stdout
    for path in sorted((captured / name).glob("*.et")):
        before, after = read(path).nodes, read(out / path.name).nodes
        assert [
            (n.id, n.type, n.data_deps, n.ctrl_deps, n.duration_micros, n.attributes)
            for n in before
        ] == [
            (n.id, n.type, n.data_deps, n.ctrl_deps, n.duration_micros, n.attributes) for n in after
        ]
    assert CliRunner().invoke(app, ["check", str(out)]).exit_code == 0


@pytest.mark.parametrize("name", CAPTURES)
def test_traces_without_their_workload_are_redacted_node_by_node(
    captured: Path, name: str, tmp_path: Path
) -> None:
    foreign, out = tmp_path / "foreign", tmp_path / "out"
    foreign.mkdir()
    for path in (captured / name).iterdir():
        if path.suffix == ".et" or path.name == "comm_group.json":
            (foreign / path.name.replace("trace", SECRET)).write_bytes(path.read_bytes())
    (foreign / "notes.txt").write_text(SECRET)
    done = CliRunner().invoke(app, ["anonymize", str(foreign), "-o", str(out), "--json"])
    assert done.exit_code == 0, done.output
    assert not (out / "notes.txt").exists()
    for path in sorted(foreign.glob("*.et")):
        before, after = read(path).nodes, read(out / path.name.replace(SECRET, "trace")).nodes
        assert [(n.id, n.type, n.data_deps, n.duration_micros) for n in before] == [
            (n.id, n.type, n.data_deps, n.duration_micros) for n in after
        ]
        assert [n.attributes.get("comm_size") for n in before] == [
            n.attributes.get("comm_size") for n in after
        ]
    assert CliRunner().invoke(app, ["check", str(out)]).exit_code == 0


@given(programs())
def test_redacting_verifies_changes_no_number_and_is_done_once(program: flint.Program) -> None:
    workload = Workload.single(program, {"name": SECRET})
    shared = redacted(workload)
    shared.verify()
    assert redacted(shared).to_bytes() == shared.to_bytes()
    assert not surviving_strings(shared, workload)
    for column in (
        "op",
        "kind",
        "result_bytes",
        "operand_bytes",
        "flops",
        "comm_bytes",
        "deps",
        "region",
    ):
        assert np.array_equal(getattr(shared.programs[0], column), getattr(program, column))
    rows = [(program.row(r), shared.programs[0].row(r)) for r in range(len(program))]
    assert all(a.shape == b.shape and a.dtype == b.dtype for a, b in rows)
    assert all(b.location == "" for a, b in rows if a.kind is not Kind.COLLECTIVE)


def test_layers_and_kernels_keep_their_rows_apart() -> None:
    """Two scopes have one word exactly if they say the same layer and the same kernel."""
    scopes = [
        "a/b",
        "h/0/attn",
        "h/0/mlp",
        "h/1/attn",
        "h/1/kernel.norm/x",
        "kernel.norm/h/1",
        "kernel.norm2",
    ]
    found = neutral_scopes(scopes)
    assert found["a/b"] == "" and found["h/0/attn"] == found["h/0/mlp"] != found["h/1/attn"]
    assert len({*found.values()}) == 6
    assert neutral_scopes(found.values()) == {w: w for w in found.values()}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["experts", "-o", "OUT", "--level", "shape"], "FL901"),
        (["experts", "-o", "experts/inside"], "FL903"),
        (["experts", "-o", "experts"], "FL509"),
        (["experts", "-o", "OUT", "--leaks", "OUT/leaks.json"], "FL903"),
        (["nowhere.flint", "-o", "OUT"], "FL301"),
        (["broken.flint", "-o", "OUT"], "FL304"),
        (["nothing", "-o", "OUT"], "FL601"),
        (["experts", "-o", "nothing"], "FL501"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(
    captured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: str
) -> None:
    monkeypatch.chdir(captured)
    (captured / "broken.flint").write_bytes(b"no zip")
    (captured / "nothing").mkdir(exist_ok=True)
    (captured / "nothing" / "notes").write_text("mine")
    done = CliRunner().invoke(
        app, ["anonymize", *(a.replace("OUT", str(tmp_path / "out")) for a in arguments)]
    )
    assert done.exit_code == 2 and f"error[{code}]" in done.stderr
    assert not (tmp_path / "out").exists()
    assert (captured / "nothing" / "notes").read_text() == "mine"
