"""`flint verify` as a new user meets it: a repository with a model, and commits that change it."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from flint.tools.change.project.lock import load_lock
from tests.project_folders import MODEL, PROJECT, commit, files, flint, git

pytest.importorskip("jax", reason="captures a JAX program")

DOUBLED = MODEL.replace("HIDDEN = 256", "HIDDEN = 512")
SHARDED = MODEL.replace('UP = (None, None, "model")', 'UP = (None, "data", "model")')
OTHER_NAMES = {
    "def layer": "def gated_block",
    "(layer(": "(gated_block(",
    "def loss": "\n\ndef mean_square",
    "jax.grad(loss)": "jax.grad(mean_square)",
    '"mlp"': '"feed_forward"',
    '"gate"': '"w_left"',
    '"up"': '"a_right"',
    '"down"': '"out"',
    "HIDDEN": "WIDTH",
}
OTHER_SHARDING = 'sharding: [{}, {}, {"model"}] -> [{}, {"data"}, {"model"}]'
BUDGETS = '[capture.train.budgets]\nstep-time = "+10%"\nmemory = "+1GiB"\n'


def renamed() -> str:
    text = MODEL
    for old, new in OTHER_NAMES.items():
        assert old in text
        text = text.replace(old, new)
    return text


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One commit with a model, its project file and the lock that `flint run` wrote."""
    root = tmp_path_factory.mktemp("repository")
    git(root, "init", "-q", "-b", "main", ".")
    (root / "model.py").write_text(MODEL)
    (root / "flint.toml").write_text(PROJECT + BUDGETS)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        assert flint("run").exit_code == 0
    commit(root, "a model")
    assert sorted(git(root, "ls-files").split()) == ["flint.lock", "flint.toml", "model.py"]
    return root


@pytest.fixture
def here(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The repository as it was committed, and as the current folder."""
    monkeypatch.chdir(repository)
    yield repository
    git(repository, "checkout", "-q", "main")
    git(repository, "reset", "-q", "--hard")


def change(folder: Path, text: str) -> None:
    """A commit beside main with another model."""
    git(folder, "checkout", "-q", "--detach")
    (folder / "model.py").write_text(text)
    commit(folder, "a change")


# Tests of one state of the model stand together: each other state is captured anew.


def test_a_doubled_size(here: Path) -> None:
    change(here, DOUBLED)
    result = flint("verify")
    first = result.stdout.splitlines()[:5]
    assert result.exit_code == 1
    assert first[0].startswith("train on h100-dgx: changed: train on data=4 x model=2, step time ")
    assert first[1].startswith("shape: 256 -> 512, 1024 -> 2048 in params['down'], params['gate']")
    assert first[2].startswith("over budget: step time 658 us -> 837 us (+27.2 %), budget ")
    assert "backward all_reduce over data at model.py:" in first[2]
    assert result.stdout.splitlines()[-1] == "1 capture: 1 changed, 1 over budget"
    both = flint("verify", "--json", "--github")
    assert json.loads(both.stdout)["fails"], "stdout is one document"
    assert both.stderr.startswith("::error file=model.py,line=")
    assert flint("verify", "--markdown").stdout.startswith("<!-- flint verify -->\n### 1 capture: ")
    assert git(here, "status", "--porcelain") == ""


def test_diff_of_a_capture_is_estimated_as_it_says(here: Path) -> None:
    change(here, DOUBLED)
    result = flint("diff", "train", "--rev", "main")
    assert result.exit_code == 0
    assert result.stdout.startswith(
        "changed: train on data=4 x model=2, step time 658 us -> 837 us"
    )
    (here / "flint.toml").write_text(PROJECT + "medel = 1\n")
    wrong = flint("diff", "train", "--rev", "main")
    assert (wrong.exit_code, wrong.stdout) == (2, "")
    assert "unknown key 'capture.train.medel'" in wrong.stderr and "flint.toml:7" in wrong.stderr


def test_what_git_shows_of_an_accepted_change(here: Path) -> None:
    change(here, DOUBLED)
    assert flint("run", "--update").exit_code == 0
    lines = git(here, "diff", "-U0", "flint.lock").splitlines()
    new = [x[1:].strip() for x in lines if x.startswith("+") and not x.startswith("+++")]
    old = [x for x in lines if x.startswith("-") and not x.startswith("---")]
    assert len(new) == len(old), "lines are replaced, none moves"
    keys = {x.split(":")[0].strip('"') for x in new if not x.startswith("{")}
    assert {"structure", "flops"} < keys
    assert not keys & {"made_with", "name", "mesh", "options", "kernels", "trip_counts", "chip"}
    names = [x for x in new if x.startswith('{"name"')]
    assert len(names) == 4 and all("512" in x for x in names)
    assert flint("verify").exit_code == 0


def test_another_sharding(here: Path) -> None:
    change(here, SHARDED)
    result = flint("verify")
    first = result.stdout.splitlines()[:5]
    assert result.exit_code == 0, "the budgets hold"
    assert "changed: train on data=4 x model=2, step time " in first[0]
    assert first[1].startswith(f"{OTHER_SHARDING} of params['gate'], params['up']")
    assert result.stdout.splitlines()[-1] == "1 capture: 1 changed"
    (here / "flint.toml").write_text(PROJECT)
    result = flint("verify")
    assert result.exit_code == 1 and "note: it has no budgets: any change fails" in result.stdout


def test_without_the_accepted_program_causes_and_lines_are_named(here: Path) -> None:
    change(here, SHARDED)
    shutil.rmtree(here / ".flint_cache" / "accepted")
    lock = here / "flint.lock"
    lock.write_text(lock.read_text().replace('"jaxlib": "', '"jaxlib": "0.'))
    found = load_lock(lock)
    assert found is not None
    lines = flint("verify").stdout.splitlines()
    assert lines[1].startswith(f"{OTHER_SHARDING} of ")
    grew = [line for line in lines if "all_gather" in line]
    assert grew and all("data" in line and "model.py:" in line for line in grew)
    versions = f"note: flint.lock was made with other versions: jaxlib {found.made_with['train']['jaxlib']} -> "
    assert any(line.startswith(versions) for line in lines)


def test_other_names_alone(here: Path) -> None:
    change(here, renamed())
    before = files(here)["flint.lock"]
    for project in (PROJECT + BUDGETS, PROJECT):  # without budgets any change fails
        (here / "flint.toml").write_text(project)
        result = flint("verify")
        assert result.exit_code == 0
        assert result.stdout.splitlines() == [
            "train on h100-dgx: equal: train on data=4 x model=2 (3 arguments renamed)",
            "1 capture: 1 equal",
        ]
    assert files(here)["flint.lock"] == before
    assert (here / ".flint_cache" / "accepted" / "train.flint").is_file(), "it is known again"


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        ('"bytes:dta" = "+0"', "the mesh has no axis 'dta'; did you mean 'data'?"),
        ('"exposed-time:pipe" = "+0"', "the mesh has no axis 'pipe'"),
    ],
)
def test_a_budget_that_cannot_be_told(here: Path, budget: str, said: str) -> None:
    (here / "flint.toml").write_text(f"{PROJECT}{BUDGETS}{budget}\n")
    before = files(here)["flint.lock"]
    result = flint("verify")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error[FL721]: ") and said in result.stderr
    assert files(here)["flint.lock"] == before


def test_captures_that_are_gone_are_told_and_dropped(here: Path) -> None:
    text = (here / "flint.toml").read_text()
    (here / "flint.toml").write_text(text.replace("capture.train", "capture.other"))
    assert flint("run").exit_code == 0
    result = flint("verify")
    assert result.exit_code == 0 and "warning: flint.toml no longer has train" in result.stderr
    assert "error[FL722]" in flint("verify", "train").stderr
    assert flint("run", "--update", "other").exit_code == 0
    assert list(json.loads((here / "flint.lock").read_text())["captures"]) == ["other", "train"]
    assert flint("run", "--update").exit_code == 0
    assert list(json.loads((here / "flint.lock").read_text())["captures"]) == ["other"]


def test_traces_are_written_where_asked_and_only_when_needed(here: Path) -> None:
    options = '[capture.train.traces]\noutput = "traces"\nranks = "0"\n'
    (here / "flint.toml").write_text(PROJECT + BUDGETS + options)
    written = here / "traces" / "trace.0.et"

    def wrote() -> bool:
        before = written.stat().st_mtime_ns if written.exists() else 0
        assert flint("run").exit_code == 0
        return written.stat().st_mtime_ns != before

    assert [wrote(), wrote()] == [True, False]
    (here / "flint.toml").write_text(PROJECT + BUDGETS + options + 'granularity = "op"\n')
    assert [wrote(), wrote()] == [True, False]
    written.unlink()
    assert wrote()
    shutil.rmtree(here / "traces")
    assert wrote()


def test_traces_are_timed_as_the_estimate_is(here: Path) -> None:
    """Placed by its map, and written again when a base of the cluster changes."""
    derate = 'derate = { value = 1.0, kind = "assumed", source = "a question" }\n'
    base = f'name = "b"\ntitle = "B"\nbase = "h100-dgx"\n{derate}'
    (here / "base.toml").write_text(base)
    (here / "mine.toml").write_text('name = "m"\ntitle = "M"\nbase = "base.toml"\n')
    options = '[capture.train.traces]\noutput = "traces"\ncluster = "mine.toml"\n'

    def run(placed: str) -> tuple[bytes, str]:
        text = PROJECT.replace("[capture.train]\n", f"[capture.train]\n{placed}")
        (here / "flint.toml").write_text(text + BUDGETS + options)
        assert flint("run", "--update").exit_code == 0
        folder = here / "traces"
        return (folder / "trace.0.et").read_bytes(), (folder / "network.yml").read_text()

    nodes, network = run("")
    assert run('map = "data=ib,model=ib"\n')[1] != network
    assert run("") == (nodes, network)
    (here / "base.toml").write_text(base.replace("1.0", "0.5"))
    assert run("")[0] != nodes


def test_an_interrupted_run_ends_its_captures(here: Path) -> None:
    import signal
    import sys
    import time

    (here / "model.py").write_text("import time\nopen('began', 'w').close()\ntime.sleep(600)\n")
    command = [sys.executable, "-m", "flint", "run"]
    began = here / "began"
    # What runs in the background of a shell has SIGINT ignored, and its children leave it so.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(command, cwd=here, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        while not began.exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)  # shells let background jobs ignore SIGINT
        _, said = process.communicate(timeout=300)  # it does not wait for the model
    began.unlink()
    assert process.returncode == 143 and "terminated" in said
